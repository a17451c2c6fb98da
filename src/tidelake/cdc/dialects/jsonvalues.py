"""Values that a tool writes in another form than Debezium, as JSON."""

import base64
import re
from typing import TypeAlias

import msgspec

from tidelake.cdc.core.ops import Unfit
from tidelake.cdc.core.rawjson import TEXT

# A value as JSON.
Json: TypeAlias = bytes

_NUMBER = re.compile(rb'"(-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)"')


# How a date of MySQL begins that has no day.
ZERO = b'"0000-00-00'


def as_number(value: Json) -> Json:
    """A number that is written as a text."""
    found = _NUMBER.fullmatch(value)
    return value if found is None else found[1]


def as_boolean(value: Json) -> Json:
    """A boolean that is written as 0 or 1, perhaps in a text."""
    return {b"0": b"false", b"1": b"true", b'"0"': b"false", b'"1"': b"true"}.get(value, value)


def as_base64(value: Json) -> Json:
    """Bytes that are written as a text, one character each."""
    if not value.startswith(b'"'):
        return value
    try:
        return b'"%b"' % base64.b64encode(TEXT.decode(value).encode("latin-1"))
    except (UnicodeError, msgspec.DecodeError) as error:
        raise Unfit(f"it is no text of bytes: {error}") from None


def as_hexadecimal(value: Json) -> Json:
    """Bytes that are written as a text of hexadecimal digits."""
    if not value.startswith(b'"'):
        return value
    try:
        return b'"%b"' % base64.b64encode(bytes.fromhex(TEXT.decode(value).removeprefix("\\x")))
    except (ValueError, msgspec.DecodeError) as error:
        raise Unfit(f"it is no text of hexadecimal digits: {error}") from None


def zero_as_null(value: Json) -> Json:
    """MySQL's `0000-00-00`, which is no day, as null."""
    return b"null" if value.startswith(ZERO) else value


def zero_refused(value: Json) -> Json:
    """Any other value."""
    if value.startswith(ZERO):
        raise Unfit(
            "0000-00-00 is no day: take it for null with zero_times='null', or use a column of type string"
        )
    return value
