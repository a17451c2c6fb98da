"""How a JSON value encodes a value of a column, where the type alone does not say it.

Owns the forms that change streams use: numbers that count days or fractions of seconds, and decimals as
the bytes of a whole number. It must not know who says which form a column has.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from tidelake.errors import UsageError

Form: TypeAlias = Literal["plain", "untold", "bytes", "scaled", "days", "s", "ms", "us", "ns"]
_FORMS: tuple[Form, ...] = ("bytes", "days", "s", "ms", "us", "ns")


@dataclass(frozen=True)
class Encoding:
    """Of one column, at any depth.

    Attributes:
        form: `"plain"`: as `tidelake.data.json.values` says. `"bytes"`: a decimal as base64 of a whole
            number in two's complement, most significant byte first. `"scaled"`: an object of `scale` and
            such a `value`. `"days"`, `"s"`, `"ms"`, `"us"`, `"ns"`: the unit in which a number counts from
            1970.
        scale: digits after the point in the form `"bytes"`; None: as many as the column has.
        inner: encodings of the fields of a struct by name, or of a list's items under `""`; those that
            are not there are plain.
    """

    form: Form = "plain"
    scale: int | None = None
    inner: tuple[tuple[str, "Encoding"], ...] = ()

    def of(self, name: str) -> "Encoding":
        """The encoding of a field, or of items under the name `""`."""
        return next((encoding for field, encoding in self.inner if field == name), PLAIN)


PLAIN = Encoding()


def encoding(text: str) -> Encoding:
    """An encoding as people write it: `bytes`, `bytes:2` (the scale), `days`, `s`, `ms`, `us`, `ns`."""
    form, _, scale = text.partition(":")
    for known in _FORMS:
        if form == known and (not scale or (known == "bytes" and scale.isascii() and scale.isdigit())):
            return Encoding(known, int(scale) if scale else None)
    raise UsageError(f"encoding {text!r} is unknown: use bytes, bytes:SCALE, days, s, ms, us or ns")
