"""Canonical values: one form for values that count as equal.

Owns what `-0.0` and NaN become; must not know columns, updates or messages. Invariant: afterwards
equal values have equal bits, at any depth, so that grouping by bits and by order agree.
"""

import numpy as np
import pyarrow as pa

from tidelake.data.encode import raw

_NAN_BITS = {2: 0x7E00, 4: 0x7FC00000, 8: 0x7FF8000000000000}


def has_floats(kind: pa.DataType) -> bool:
    """Whether a type is, or contains, a floating-point type."""
    if pa.types.is_nested(kind):
        return any(has_floats(kind.field(i).type) for i in range(kind.num_fields))
    return bool(pa.types.is_floating(kind))


def canonical(array: pa.Array) -> pa.Array:
    """The same values with `0.0` for `-0.0` and one NaN for all; the array itself where nothing changes."""
    kind = array.type
    if not has_floats(kind):
        return array
    if pa.types.is_floating(kind):
        return _floats(array)
    if array.offset:
        # Children of a slice do not all know of the slice; a copy has no offset.
        array = array.take(pa.array(np.arange(len(array))))
    if pa.types.is_struct(kind):
        children = [array.field(i) for i in range(kind.num_fields)]
    else:
        children = [array.values]
    changed = [canonical(child) for child in children]
    if all(new is old for new, old in zip(changed, children, strict=True)):
        return array
    own = 2 if pa.types.is_list(kind) else 1
    return pa.Array.from_buffers(kind, len(array), array.buffers()[:own], children=changed)


def _floats(array: pa.Array) -> pa.Array:
    width = array.type.bit_width // 8
    bits = raw(array, np.dtype(f"u{width}"))
    values = raw(array, np.dtype(f"f{width}"))
    nan = np.isnan(values)
    negative_zero = bits == 1 << (8 * width - 1)
    wrong = negative_zero | (nan & (bits != _NAN_BITS[width]))
    if not wrong.any():
        return array
    fixed = bits.copy()
    fixed[nan] = _NAN_BITS[width]
    fixed[negative_zero] = 0
    if not array.null_count:
        return pa.Array.from_buffers(array.type, len(array), [None, pa.py_buffer(fixed)])
    valid = array.is_valid().buffers()[1]
    return pa.Array.from_buffers(array.type, len(array), [valid, pa.py_buffer(fixed)])
