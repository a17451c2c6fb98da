"""Texts that follow from numbers, made by columns: equal numbers are equal rows."""

import numpy as np
import pyarrow as pa

_DIGITS = np.frombuffer(b"0123456789abcdef", np.uint8)
_MIX = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x27D4EB2F165667C5], np.uint64)


def texts(numbers: np.ndarray, width: int) -> pa.StringArray:
    """A text of `width` hexadecimal digits, at most 64, for each number."""
    words = numbers.astype(np.uint64)[:, None] * _MIX[: -(-width // 16)]
    data = words.view(np.uint8)
    digits = _DIGITS[np.stack([data >> 4, data & 15], axis=2).reshape(len(numbers), -1)[:, :width]]
    offsets = (np.arange(len(numbers) + 1, dtype=np.int64) * width).astype(np.int32)
    return pa.StringArray.from_buffers(
        len(numbers), pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(digits))
    )
