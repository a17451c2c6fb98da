"""Where a literal stands among the values of a column: exactly, even if the column cannot hold it.

Owns the encoding of single values, and which literal fits which type; must not know SQL. `x >= 1.5` for an
integer is `x >= 2`, and `x < 300` is true for every int8: nothing is rounded to fit. The exception is a
number that is compared with floats, which becomes the nearest double, as in any SQL.
"""

import math
import re
import struct
from dataclasses import dataclass
from decimal import Decimal
from typing import TypeAlias

from tidelake.model.instants import Moment, day_number
from tidelake.model.predicate import NULL, PAST
from tidelake.model.schema import Column, DataType

_PRESENT = b"\x01"
_SIGNED = re.compile(r"int(\d+)")
_UNSIGNED = re.compile(r"uint(\d+)")
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY_S = 86_400
_NAN, _SIGN, _ONES = 0x7FF8 << 48, 1 << 63, (1 << 64) - 1
_WHOLE = re.compile(r"\d{1,18}")
_NUMBER = re.compile(r"(\d{1,15})(?:\.(\d{1,15}))?")
_COLUMN_DIGITS_MAX = 38  # of a decimal, in all engines
# No column has so many digits.
_DIGITS_MAX = 256


@dataclass(frozen=True)
class Double:
    """A literal that is written as a double."""

    value: float


@dataclass(frozen=True)
class Day:
    """A date: days since 1970-01-01."""

    days: int


Value: TypeAlias = bool | Decimal | str | bytes | Double | Day | Moment


@dataclass(frozen=True)
class Place:
    """Where a literal stands among the values of a column.

    Attributes:
        least: the encoded values that are not less than the literal begin here.
        above: those that are greater begin here; the same as `least` if no value equals the literal.
    """

    least: bytes
    above: bytes


def place(value: Value, column: Column) -> Place | None:
    """Where a literal stands among a column's values; None if the two cannot be compared."""
    name, params = column.type.name, column.type.params
    if isinstance(value, Decimal | Double):
        return _number(value, column.type)
    if isinstance(value, bool):
        return _at(encoded_word(int(value), signed=False)) if name == "bool" else None
    if isinstance(value, str):
        return _at(encoded_text(value.encode())) if name == "string" else None
    if isinstance(value, bytes):
        return _at(encoded_text(value)) if name in ("binary", "fixed_size_binary") else None
    if isinstance(value, Day) and name == "date32":
        return _integer(value.days, True, 32)
    if isinstance(value, Day) and name == "date64":
        return _integer(value.days * _DAY_S * 1000, True, 64)
    if name != "timestamp" or (len(params) > 1) != (isinstance(value, Moment) and value.zoned):
        return None
    ns = value.ns if isinstance(value, Moment) else value.days * _DAY_S * 10**9
    floor, rest = divmod(ns, 10**9 // _PER_SECOND[str(params[0])])
    return _integer(floor, not rest, 64)


def exact_number(digits: str, column: Column) -> bool:
    """Whether a number, as it is written, is compared with a column without rounding, in every engine."""
    name, params = column.type.name, column.type.params
    if name.startswith(("int", "uint")):
        return _WHOLE.fullmatch(digits) is not None
    found = _NUMBER.fullmatch(digits)
    if found is None:
        return False
    if name == "float64":
        return Decimal(float(digits)) == Decimal(digits)
    if name == "float32":
        return Decimal(struct.unpack("f", struct.pack("f", float(digits)))[0]) == Decimal(digits)
    if name.startswith("decimal"):
        precision, scale = int(params[0]), int(params[1])
        whole, places = max(precision - scale, len(found[1])), max(scale, len(found[2] or ""))
        return scale >= 0 and whole + places <= _COLUMN_DIGITS_MAX
    return False


def beginning(prefix: str) -> tuple[bytes, bytes]:
    """The interval of the strings that begin with `prefix`."""
    raw = prefix.encode()
    if not raw:
        return _PRESENT, NULL
    # No byte of UTF-8 is FF, so the last byte has a successor.
    return _open_text(raw), _open_text(raw[:-1] + bytes([raw[-1] + 1]))


def day(text: str) -> Day | None:
    """The date in the text `yyyy-mm-dd`; None if it is not a date."""
    days = day_number(text)
    return None if days is None else Day(days)


def _number(value: Decimal | Double, type_: DataType) -> Place | None:
    if type_.name.startswith("float"):
        return _float(value)
    if isinstance(value, Double):
        # Exactly the number that it is, because the column has exact numbers.
        if not math.isfinite(value.value):
            return None
        value = Decimal(value.value)
    if type_.name.startswith("decimal"):
        # Decimals compare by all their bits, even if the number has more digits than the type.
        floor, whole = _floor(value, int(type_.params[1]))
        return (
            _at(encoded_decimal(floor)) if whole and _fits(floor, 256) else _between(_from_decimal(floor + 1))
        )
    signed, unsigned = _SIGNED.fullmatch(type_.name), _UNSIGNED.fullmatch(type_.name)
    if signed is not None:
        return _integer(*_floor(value, 0), int(signed[1]), signed=True)
    return _integer(*_floor(value, 0), int(unsigned[1]), signed=False) if unsigned is not None else None


def _integer(floor: int, whole: bool, bits: int, *, signed: bool = True) -> Place:
    """The place, among integers, of `floor` if `whole`; else of a number between that and the next one."""
    least, end = (-(1 << (bits - 1)), 1 << (bits - 1)) if signed else (0, 1 << bits)
    if whole and least <= floor < end:
        return _at(encoded_word(floor, signed=signed))
    if floor < least:
        return _between(_PRESENT)
    return _between(NULL if floor + 1 >= end else encoded_word(floor + 1, signed=signed))


def _floor(value: Decimal, scale: int) -> tuple[int, bool]:
    """`value * 10**scale` rounded down, and whether nothing was lost."""
    sign, digits, exponent = value.as_tuple()
    places = int(exponent) + scale
    if not any(digits):
        return 0, True
    if len(digits) + places > _DIGITS_MAX:
        # Past any column; written out, the number would be as long as its exponent says.
        return (-1 if sign else 1) << 512, True
    if len(digits) + places < 0:
        return (-1 if sign else 0), False
    number = int("".join(map(str, digits))) * (-1 if sign else 1)
    if places >= 0:
        return number * 10**places, True
    floor, rest = divmod(number, 10**-places)
    return floor, not rest


def _fits(number: int, bits: int) -> bool:
    return -(1 << (bits - 1)) <= number < 1 << (bits - 1)


def _from_decimal(number: int) -> bytes:
    """Where the encoded decimals begin that are not less than `number`; both without their scale."""
    if _fits(number, 256):
        return encoded_decimal(number)
    return _PRESENT if number < 0 else NULL


def _float(value: Decimal | Double) -> Place:
    nearest = value.value if isinstance(value, Double) else float(value)
    if isinstance(value, Double) or math.isfinite(nearest):
        return _at(encoded_float(nearest))
    # Between the greatest finite number and infinity, where there is no value.
    return _between(encoded_float(math.inf) if nearest > 0 else encoded_float(-math.inf) + PAST)


def encoded_word(value: int, *, signed: bool) -> bytes:
    """The encoding of an integer, a date or a time."""
    return _PRESENT + (value + _SIGN if signed else value).to_bytes(8, "big")


def encoded_float(value: float) -> bytes:
    """The encoding of a float, of any width."""
    bits: int = _NAN if math.isnan(value) else struct.unpack(">Q", struct.pack(">d", value + 0.0))[0]
    return encoded_word(bits ^ _ONES if bits & _SIGN else bits | _SIGN, signed=False)


def encoded_decimal(unscaled: int) -> bytes:
    """The encoding of a decimal of at most 256 bits, without its scale."""
    if _fits(unscaled, 128):
        return b"\x01\x80" + (unscaled + (1 << 127)).to_bytes(16, "big")
    return (b"\x01\x40" if unscaled < 0 else b"\x01\xc0") + (unscaled + (1 << 255)).to_bytes(32, "big")


def encoded_text(raw: bytes) -> bytes:
    """The encoding of a string, of its UTF-8, or of binary data."""
    return _open_text(raw) + b"\x00\x01"


def _open_text(raw: bytes) -> bytes:
    """The common beginning of the encodings of all texts that begin with `raw`."""
    return _PRESENT + raw.replace(b"\x00", b"\x00\xff")


def _at(encoded: bytes) -> Place:
    return Place(encoded, encoded + PAST)


def _between(start: bytes) -> Place:
    return Place(start, start)
