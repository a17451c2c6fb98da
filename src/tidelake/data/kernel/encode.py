"""An order-preserving encoding of values: comparing the bytes compares the values.

Owns the bytes in which key bounds, statistics and sparse indexes are kept, so they are a stored format. Must
not know parts or times. Invariant: for values a, b of one type, `a < b` in the order of
`tidelake.data.kernel.order` iff `encode(a) < encode(b)`, and no encoding is a proper prefix of another of the
same type, so that encodings of several columns can be joined.

A value is a marker (1 present, 2 null, hence null last) and a body:

- signed integers, dates, times: 8 bytes, big-endian, sign flipped; unsigned: 8 bytes, big-endian;
  floats: the bits of the float64, turned so that they ascend. So widening a column keeps its bytes.
- decimals: a class byte, then 16 bytes of the unscaled number, or 32 where 16 do not hold it.
- strings, binary: the bytes with 00 as 00 FF, then 00 01.
- lists: the items, each with its marker, then 00. Structs: the fields.

Source of the idea: the tuple layer of FoundationDB and the sort keys of MyRocks.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidelake.data.kernel.arrays import binaries, from_numpy, raw, to_numpy
from tidelake.data.kernel.types import arrow_type
from tidelake.errors import InternalError
from tidelake.model.schema import DataType, Schema

# Scalars, since kernels make one of bytes by way of pandas.
_PRESENT, _NULL, _NOTHING, _TEXT_END, _LIST_END = binaries([b"\x01", b"\x02", b"", b"\x00\x01", b"\x00"])
_ZERO = from_numpy(np.zeros(1, np.int32))[0]
_SIGN = np.uint64(1 << 63)
_NAN = np.uint64(0x7FF8 << 48)
Bytes = npt.NDArray[np.uint8]
_TEXTS = {pa.string().id, pa.binary().id, pa.binary(1).id}
_INTS = {kind.id for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())}


def encode(array: pa.Array | pa.ChunkedArray, type_: DataType) -> pa.Array:
    """Encode every value, nulls too, as a binary array without nulls."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
        if isinstance(array, pa.ChunkedArray):
            array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    wanted = arrow_type(type_)
    return _encode(array if array.type == wanted else array.cast(wanted))


def encode_key(rows: pa.RecordBatch | pa.Table, schema: Schema) -> pa.Array:
    """Encode the key of every row: the encodings of its key columns, joined."""
    return _join([encode(rows.column(c.name), c.type) for c in schema.key])


def truncate_lower(encoded: bytes, n: int) -> bytes:
    """At most `n` bytes that are not greater than `encoded`."""
    return encoded[:n]


def truncate_upper(encoded: bytes, n: int) -> bytes | None:
    """At most `n` bytes not less than any encoding that begins with `encoded`; None if there are none."""
    if len(encoded) <= n:
        return encoded
    prefix = encoded[:n].rstrip(b"\xff")
    return prefix[:-1] + bytes([prefix[-1] + 1]) if prefix else None


def _encode(array: pa.Array) -> pa.Array:
    present = _present(array)
    if not array.null_count:
        return present
    return pc.if_else(array.is_valid(), present, _NULL)


def _present(array: pa.Array) -> pa.Array:
    """Encode as if nothing were null; the encoding of a null is arbitrary."""
    is_, kind = pa.types, array.type
    # Asking for each property takes longer than to encode a few values.
    if kind.id in _TEXTS:
        return _strings(array)
    if kind.id in _INTS:
        return _fixed(_signed(array))
    if is_.is_struct(kind):
        fields = [_encode(child) for child in array.flatten()]
        return _join([_repeat(_PRESENT, len(array)), *fields])
    if is_.is_list(kind) or is_.is_fixed_size_list(kind):
        return _lists(array)
    if is_.is_decimal(kind):
        return _decimals(array)
    found = words(array)
    if found is not None:
        return _fixed(found)
    raise InternalError(f"type {kind} has no encoding")


def words(array: pa.Array) -> npt.NDArray[np.uint64] | None:
    """8-byte encodings as numbers in the same order, arbitrary where null; None if the type's are longer."""
    is_, kind = pa.types, array.type
    if kind.id in _INTS:
        return _signed(array)
    if is_.is_floating(kind):
        return _float_bits(array)
    if is_.is_boolean(kind):
        return raw(array.cast(pa.uint8()), np.dtype(np.uint8)).astype(np.uint64)
    if is_.is_unsigned_integer(kind):
        return raw(array, np.dtype(f"u{kind.byte_width}")).astype(np.uint64)
    return _signed(array) if is_.is_temporal(kind) else None


def _signed(array: pa.Array) -> npt.NDArray[np.uint64]:
    signed = raw(array, np.dtype(f"i{array.type.byte_width}")).astype(np.int64)
    return signed.view(np.uint64) ^ _SIGN


def _float_bits(array: pa.Array) -> npt.NDArray[np.uint64]:
    values = raw(array, np.dtype(f"f{array.type.byte_width}")).astype(np.float64)
    bits = (values + 0.0).view(np.uint64).copy()
    bits[np.isnan(values)] = _NAN
    negative = (bits & _SIGN) != 0
    return np.where(negative, ~bits, bits | _SIGN)


def _fixed(words: npt.NDArray[np.uint64]) -> pa.Array:
    rows = np.empty((len(words), 9), np.uint8)
    rows[:, 0] = 1
    rows[:, 1:] = np.ascontiguousarray(words.astype(">u8")).view(np.uint8).reshape(-1, 8)
    return _binary(rows)


def _binary(rows: Bytes) -> pa.Array:
    n, width = rows.shape
    offsets = np.arange(n + 1, dtype=np.int32) * np.int32(width)
    return pa.Array.from_buffers(pa.binary(), n, [None, pa.py_buffer(offsets), pa.py_buffer(rows)])


def _decimals(array: pa.Array) -> pa.Array:
    kind = array.type
    if kind.bit_width < 128:
        array = array.cast(pa.decimal128(kind.precision, kind.scale))
    wide = array.type.bit_width == 256
    count = 4 if wide else 2
    limbs = raw(array, np.dtype(f"V{8 * count}")).view(np.int64).reshape(len(array), count)
    short = _big_endian(0x80 * np.ones(len(array), np.uint8), limbs[:, :2])
    if not wide:
        return short
    top = limbs[:, 1] >> np.int64(63)
    fits = (limbs[:, 2] == top) & (limbs[:, 3] == top)
    if fits.all():
        return short
    long = _big_endian(np.where(limbs[:, 3] < 0, 0x40, 0xC0).astype(np.uint8), limbs)
    return pc.if_else(from_numpy(fits), short, long)


def _big_endian(classes: Bytes, limbs: npt.NDArray[np.int64]) -> pa.Array:
    n, count = limbs.shape
    words = limbs[:, ::-1].copy().view(np.uint64)
    words[:, 0] ^= _SIGN
    rows = np.empty((n, 2 + 8 * count), np.uint8)
    rows[:, 0] = 1
    rows[:, 1] = classes
    rows[:, 2:] = np.ascontiguousarray(words.astype(">u8")).view(np.uint8).reshape(n, 8 * count)
    return _binary(rows)


def _strings(array: pa.Array) -> pa.Array:
    plain = array.cast(pa.binary())
    if plain.null_count:
        plain = plain.fill_null(_NOTHING)
    escaped = pc.replace_substring(plain, b"\x00", b"\x00\xff")
    return _join([_repeat(_PRESENT, len(array)), escaped, _repeat(_TEXT_END, len(array))])


def _lists(array: pa.Array) -> pa.Array:
    # flatten() leaves out the items of null lists and those outside a slice.
    lengths = to_numpy(pc.list_value_length(array).fill_null(_ZERO)).astype(np.int64)
    offsets = np.zeros(len(array) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    items = pa.ListArray.from_arrays(from_numpy(offsets), _encode(array.flatten()))
    joined = pc.binary_join(items, _NOTHING)
    return _join([_repeat(_PRESENT, len(array)), joined, _repeat(_LIST_END, len(array))])


def _repeat(value: pa.Scalar, n: int) -> pa.Array:
    return pa.repeat(value, n)


def _join(arrays: list[pa.Array]) -> pa.Array:
    return arrays[0] if len(arrays) == 1 else pc.binary_join_element_wise(*arrays, _NOTHING)
