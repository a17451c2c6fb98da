"""What Debezium writes for a large value that did not change, which the log of the database leaves out.

Owns these placeholders: one text; for arrays, one item with it, or its bytes as numbers.
"""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Mask: TypeAlias = npt.NDArray[np.bool_]
_TEXT = "__debezium_unavailable_value"
# As text, in base64 as columns of bytes are, and as a map (`hstore`) of one entry.
_TEXTS = (_TEXT, "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==", f'{{"{_TEXT}":"{_TEXT}"}}')
_NUMBERS = list(_TEXT.encode())


def is_unavailable(value: Any) -> bool:
    """Whether a parsed JSON value is a placeholder."""
    if isinstance(value, list):
        return value in ([_TEXT], _NUMBERS)
    return isinstance(value, str) and value in _TEXTS


def unavailable(values: pa.Array) -> Mask | None:
    """Which values are placeholders; None if none is.

    Args:
        values: texts, bytes, whole numbers, or lists of these; other types have no placeholder.
    """
    is_ = pa.types
    kind = values.type
    found: Mask
    if is_.is_list(kind) or is_.is_large_list(kind):
        found = _lists(values)
    elif is_.is_string(kind) or is_.is_large_string(kind):
        found = _among(values, _TEXTS)
    elif is_.is_binary(kind) or is_.is_large_binary(kind):
        found = _among(values, [text.encode() for text in _TEXTS])
    else:
        return None
    return found if found.any() else None


def _lists(values: pa.Array) -> Mask:
    """Which lists are placeholders: first those of its length, then those of its items."""
    items = values.type.value_type
    expected: list[Any] = [_TEXT]
    if pa.types.is_integer(items) and items.bit_width > 8:
        expected = _NUMBERS
    elif not (pa.types.is_string(items) or pa.types.is_large_string(items)):
        return np.zeros(len(values), np.bool_)
    found: Mask = pc.fill_null(pc.equal(pc.list_value_length(values), len(expected)), False).to_numpy(
        zero_copy_only=False
    )
    if found.any():
        flat = values.filter(pa.array(found)).flatten()
        wanted = pa.array(expected * int(found.sum()), items)
        equal = pc.fill_null(pc.equal(flat, wanted), False).to_numpy(zero_copy_only=False)
        found[found] = equal.reshape(-1, len(expected)).all(axis=1)
    return found


def _among(values: pa.Array, words: Any) -> Mask:
    found: Mask = pc.is_in(values, value_set=pa.array(words, values.type)).to_numpy(zero_copy_only=False)
    return found
