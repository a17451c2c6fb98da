"""Base64 texts as bytes, and such bytes as whole numbers, a column at a time.

Owns two loops that numpy runs; neither Arrow nor the standard library has them for columns.
"""

from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_DIGITS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_PAD, _BAD = 64, 255
_WIDTH = 16


@cache
def _values() -> npt.NDArray[np.uint8]:
    table = np.full(256, _BAD, np.uint8)
    table[np.frombuffer(_DIGITS, np.uint8)] = np.arange(64, dtype=np.uint8)
    table[ord("=")] = _PAD
    return table


def decoded(texts: pa.Array) -> pa.Array | None:
    """The bytes (binary) that base64 texts (string) stand for; None if one of them is no padded base64."""
    filled = pc.fill_null(texts, "")
    lengths = pc.binary_length(filled).to_numpy(zero_copy_only=False).astype(np.int64)
    if (lengths % 4).any():
        return None
    ends = np.cumsum(lengths)
    digits = _values()[np.frombuffer(pc.binary_join(_one_list(filled), "")[0].as_buffer(), np.uint8)]
    pads = np.zeros(len(filled), np.int64)
    some = lengths > 0
    last = ends[some] - 1
    pads[some] = (digits[last] == _PAD).astype(np.int64) + (
        (digits[last] == _PAD) & (digits[last - 1] == _PAD)
    )
    keep = np.ones(len(digits) // 4 * 3, np.bool_)
    where = ends // 4 * 3
    keep[where[pads >= 1] - 1] = False
    keep[where[pads == 2] - 2] = False
    digits[ends[pads >= 1] - 1] = 0
    digits[ends[pads == 2] - 2] = 0
    if (digits >= _PAD).any():
        return None
    quads = digits.reshape(-1, 4)
    out = np.empty((len(quads), 3), np.uint8)
    out[:, 0] = quads[:, 0] << 2 | quads[:, 1] >> 4
    out[:, 1] = quads[:, 1] << 4 | quads[:, 2] >> 2
    out[:, 2] = quads[:, 2] << 6 | quads[:, 3]
    data = out.reshape(-1)[keep]
    offsets = np.concatenate([[0], np.cumsum(lengths // 4 * 3 - pads)]).astype(np.int32)
    result = pa.BinaryArray.from_buffers(
        pa.binary(), len(filled), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
    return pc.if_else(texts.is_null(), pa.scalar(None, pa.binary()), result) if texts.null_count else result


def _one_list(values: pa.Array) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)


def whole_numbers(data: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """Decimals of `kind` (decimal128) whose unscaled values are bytes (binary), most significant first.

    None if one of them has no byte, more than 16, or more digits than `kind` holds.
    """
    filled = pc.fill_null(data, b"\0")
    lengths = pc.binary_length(filled).to_numpy(zero_copy_only=False).astype(np.int64)
    if not len(filled) or lengths.min() < 1 or lengths.max() > _WIDTH:
        return None if len(filled) else pa.array([], kind)
    ends = np.cumsum(lengths)
    flat = np.frombuffer(pc.binary_join(_one_list(filled), b"")[0].as_buffer(), np.uint8)
    rows = np.repeat(np.arange(len(filled)), lengths)
    # Position 0 is the least significant byte, as Arrow keeps it.
    places = np.repeat(ends, lengths) - 1 - np.arange(len(flat))
    sign = np.where(flat[ends - lengths] & 0x80, 255, 0).astype(np.uint8)
    wide = np.repeat(sign[:, None], _WIDTH, axis=1)
    wide[rows, places] = flat
    buffers = [None, pa.py_buffer(wide.tobytes())]
    numbers = pa.Array.from_buffers(pa.decimal128(38, kind.scale), len(filled), buffers)
    try:
        result = numbers.cast(kind)
    except pa.ArrowInvalid:
        return None
    return pc.if_else(data.is_null(), pa.scalar(None, kind), result) if data.null_count else result
