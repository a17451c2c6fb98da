"""Arrow arrays made of NumPy's and Python's values, and NumPy's made of them, without pandas.

Owns the way around `pyarrow.array`, `pyarrow.scalar`, `to_numpy`, and kernels that get Python's values. These
import pandas first where it is installed, which takes as long as all else of a first read. Must not know
updates or their schemas. Invariant: the arrays are those that pyarrow itself makes.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

# Asking Arrow for them takes longer than looking at a few values.
_DTYPES = {
    pa.from_numpy_dtype(np.dtype(name)).id: np.dtype(name)
    for name in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8")
}


TEXTS = {pa.string().id, pa.binary().id}
SIGNED = {kind.id for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())}


def from_numpy(values: npt.NDArray[np.generic], null: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """An array of booleans or of numbers, which are not copied if they lie side by side."""
    data = _bits(values) if values.dtype == np.bool_ else pa.py_buffer(np.ascontiguousarray(values))
    valid = None if null is None else _bits(~null)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [valid, data])


def places(*values: int) -> pa.Array:
    """Some row numbers, as `take` wants them."""
    return from_numpy(np.array(values, np.int64))


def binaries(values: Sequence[bytes]) -> pa.Array:
    """A binary array without nulls."""
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum([len(value) for value in values], out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers, 0)


def as_mask(array: pa.Array) -> npt.NDArray[np.bool_]:
    """Booleans as NumPy's; False where null."""
    if not len(array):
        return np.zeros(0, np.bool_)
    end = array.offset + len(array)
    values, valid = array.buffers()[1], array.buffers()[0]
    result = _flags(values, end)[array.offset :]
    return result & _flags(valid, end)[array.offset :] if array.null_count else result


def to_numpy(array: pa.Array) -> npt.NDArray[Any]:
    """Booleans, False where null; or numbers of any width, not copied, arbitrary where null."""
    kind = array.type
    found = _DTYPES.get(kind.id)
    if found is None and pa.types.is_boolean(kind):
        return as_mask(array)
    return raw(array, found or np.dtype(kind.to_pandas_dtype()))


def raw(array: pa.Array, dtype: np.dtype[np.generic]) -> npt.NDArray[np.generic]:
    """The values buffer of a fixed-width array as NumPy sees it: not copied, arbitrary where null."""
    buffer = array.buffers()[1]
    if buffer is None or len(array) == 0:
        return np.zeros(len(array), dtype)
    return np.frombuffer(buffer, dtype, count=array.offset + len(array))[array.offset :]


def null_mask(array: pa.Array) -> npt.NDArray[np.bool_]:
    """Where an array of any type is null."""
    return as_mask(array.is_null())


def _flags(bits: pa.Buffer, count: int) -> npt.NDArray[np.bool_]:
    return np.unpackbits(np.frombuffer(bits, np.uint8), count=count, bitorder="little").view(np.bool_)


def _bits(values: npt.NDArray[np.generic]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(values.astype(np.bool_, copy=False), bitorder="little"))
