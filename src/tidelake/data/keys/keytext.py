"""Encoded keys as text for people, so that messages can say which rows they mean.

Owns how far an encoded, perhaps truncated key can be read back; must not be used to compare keys. What it
cannot read it shows as hexadecimal digits.
"""

import re

from tidelake.model.schema import Column, Schema

_SIGNED = re.compile(r"int\d+|date\d+|time\d+|timestamp|duration")
_WORD_BYTES = 8
_CHARS_MAX = 40


def key_text(encoded: bytes | None, schema: Schema) -> str:
    """A key bound such as `id=17, name='ab'`; the columns that a truncation left out are missing."""
    if encoded is None:
        return "the end"
    shown, rest = [], encoded
    for column in schema.key:
        if not rest:
            break
        text, rest = _value(rest, column)
        shown.append(f"{column.name}={text}")
    return ", ".join(shown) or "the start"


def _value(data: bytes, column: Column) -> tuple[str, bytes]:
    """One column's value as text, and the bytes after it."""
    body, kind = data[1:], column.type.name
    if data[:1] == b"\x02":
        return "null", body
    if kind in ("string", "binary", "fixed_size_binary"):
        end = _end_of_text(body)
        raw = body[:end].replace(b"\x00\xff", b"\x00")
        text = raw.decode(errors="replace") if kind == "string" else raw.hex()
        return repr(text[:_CHARS_MAX]), body[end + 2 :]
    if len(body) < _WORD_BYTES or not (_SIGNED.fullmatch(kind) or re.fullmatch(r"uint\d+|bool", kind)):
        # The length of these bytes is unknown, so the values after them cannot be found.
        return body[:_CHARS_MAX].hex() or "?", b""
    word = int.from_bytes(body[:_WORD_BYTES], "big")
    return str(word - (1 << 63) if _SIGNED.fullmatch(kind) else word), body[_WORD_BYTES:]


def _end_of_text(body: bytes) -> int:
    """Where an encoded text ends: at the first `00` that no `FF` follows."""
    at = body.find(b"\x00")
    while at >= 0 and body[at + 1 : at + 2] == b"\xff":
        at = body.find(b"\x00", at + 2)
    return len(body) if at < 0 else at
