"""Canonical values: one form for values that count as equal.

Owns what `-0.0` and NaN become, and what is stored under a null; must not know columns, updates or messages.
Invariant: after `canonical` equal values have equal bits, at any depth, so that grouping by bits and by order
agree.
"""

import numpy as np
import pyarrow as pa

from tidelake.data.kernel.arrays import raw

_NAN_BITS = {2: 0x7E00, 4: 0x7FC00000, 8: 0x7FF8000000000000}


def has_floats(kind: pa.DataType) -> bool:
    """Whether a type is, or contains, a floating-point type."""
    if pa.types.is_nested(kind):
        return any(has_floats(kind.field(i).type) for i in range(kind.num_fields))
    return bool(pa.types.is_floating(kind))


def canonical(array: pa.Array) -> pa.Array:
    """The same values with `0.0` for `-0.0` and one form of NaN; the array itself if nothing changes."""
    kind = array.type
    if not has_floats(kind):
        return array
    if pa.types.is_floating(kind):
        return _floats(array)
    if array.offset:
        # Not all children of a slice know of the slice; a copy has no offset.
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


def filled(array: pa.Array, nullable: bool = True) -> pa.Array:
    """The same values without nulls in fields that are "not null", where the parent is null.

    Arrow's `take` leaves such nulls, and Parquet refuses them. The validity is removed; the bytes below it
    stay, which Parquet does not write. The array itself if nothing changes.
    """
    kind = array.type
    drop = not nullable and array.null_count > 0
    if not drop and not _has_required(kind):
        return array
    if array.offset:
        array = array.take(pa.array(np.arange(len(array))))
    buffers = array.buffers()
    if not pa.types.is_nested(kind):
        return pa.Array.from_buffers(kind, len(array), [None, *buffers[1:]])
    if pa.types.is_struct(kind):
        children = [array.field(i) for i in range(kind.num_fields)]
    else:
        children = [array.values]
    changed = [filled(child, kind.field(i).nullable) for i, child in enumerate(children)]
    if not drop and all(new is old for new, old in zip(changed, children, strict=True)):
        return array
    validity = None if drop else buffers[0]
    own = buffers[1:2] if pa.types.is_list(kind) else []
    return pa.Array.from_buffers(kind, len(array), [validity, *own], children=changed)


def _has_required(kind: pa.DataType) -> bool:
    fields = [kind.field(i) for i in range(kind.num_fields)] if pa.types.is_nested(kind) else []
    return any(not field.nullable or _has_required(field.type) for field in fields)


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
