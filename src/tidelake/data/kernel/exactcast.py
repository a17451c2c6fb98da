"""Values of one type as values of another, exactly: what would change is refused.

Owns where Arrow's own cast is wrong, or lacks a kernel; must not know columns or messages. Arrow wraps
decimals that overflow, rounds whole numbers to float16, looks up the names of zones, refuses a whole number
for a decimal of few digits, and does not decode dictionaries of views.

INVARIANT: the result is null where the array is, and equal to it elsewhere.
"""

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelake.data.kernel.types import arrow_type, data_type

_DIGITS = {32: 9, 64: 18, 128: 38, 256: 76}
_FLOAT16_MAX = 2**11


def cast_exactly(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The same values as `kind`."""
    found, is_ = array.type, pa.types
    if found.equals(kind):
        return array
    if is_.is_dictionary(found):
        values = array.dictionary
        plain = cast_exactly(values, arrow_type(data_type(values.type, "")))
        return cast_exactly(plain.take(array.indices), kind)
    if not _is_hard(found, kind):
        return array.cast(kind)
    if is_.is_struct(found):
        children = [
            cast_exactly(child, field.type) for child, field in zip(array.flatten(), kind, strict=True)
        ]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())
    if is_.is_nested(found):
        return _list(array, kind.value_type).cast(kind)
    if is_.is_timestamp(found):
        # The instant is known; the zone's name need not be.
        return array.cast(pa.int64()).cast(pa.timestamp(found.unit, kind.tz)).cast(kind)
    if is_.is_decimal(kind):
        return _decimals(array, kind)
    too_large = pc.greater(pc.abs(array.cast(pa.decimal128(20, 0))), _FLOAT16_MAX)
    if pc.any(too_large, min_count=0).as_py():
        raise pa.ArrowInvalid(f"a whole number past {_FLOAT16_MAX} is not exact as float16")
    return array.cast(kind)


def _decimals(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Numbers as decimals. All that Arrow computes with has the digits that the result has, at most."""
    found = array.type
    found = (
        pa.decimal128(20, 0) if pa.types.is_integer(found) else pa.decimal256(found.precision, found.scale)
    )
    numbers = array.cast(found)
    whole = kind.precision - kind.scale
    if whole < found.precision - found.scale:
        limit = pa.scalar(Decimal((0, (1,), whole)), found)
        if pc.any(pc.greater_equal(pc.abs(numbers), limit), min_count=0).as_py():
            raise pa.ArrowInvalid(f"a number has more digits before the point than {kind} has")
    # As texts, into the widest decimals: those of fewer bits do not take zeros at the end of a text.
    return numbers.cast(pa.string()).cast(pa.decimal256(kind.precision, kind.scale)).cast(kind)


def _list(array: pa.Array, item: pa.DataType) -> pa.Array:
    """A list with its items cast."""
    if array.offset:
        array = array.take(pa.array(np.arange(len(array))))
    found, items = array.type, cast_exactly(array.values, item)
    field = pa.field("item", items.type)
    if pa.types.is_fixed_size_list(found):
        shape, own = pa.list_(field, found.list_size), 1
    else:
        shape, own = (pa.large_list if pa.types.is_large_list(found) else pa.list_)(field), 2
    return pa.Array.from_buffers(shape, len(array), array.buffers()[:own], children=[items])


def _is_hard(found: pa.DataType, kind: pa.DataType) -> bool:
    """Whether Arrow's own cast may be wrong, or fail, for values that fit."""
    is_ = pa.types
    if is_.is_dictionary(found):
        return True
    if is_.is_struct(found):
        return any(_is_hard(a.type, b.type) for a, b in zip(found, kind, strict=True))
    if is_.is_nested(found):
        return _is_hard(found.value_type, kind.value_type)
    if is_.is_timestamp(found):
        return bool(found.tz != kind.tz)
    if is_.is_decimal(kind):
        return not _has_room(found, kind)
    return bool(is_.is_integer(found) and is_.is_float16(kind))


def _has_room(found: pa.DataType, kind: pa.DataType) -> bool:
    """Whether every value of a number type, at the scale of a decimal type, fits its width."""
    if pa.types.is_integer(found):
        return bool(kind.precision - kind.scale >= 20)
    if not pa.types.is_decimal(found):
        return True
    digits = found.precision + max(0, kind.scale - found.scale)
    return bool(digits <= _DIGITS[kind.bit_width])
