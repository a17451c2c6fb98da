"""What Debezium writes for a large value that did not change, which the log of the database leaves out.

Owns these placeholders: one text; for arrays, one item with it, or its bytes as numbers.

LIMITATION: arrays of other types, such as of `smallint`, `numeric`, `double precision`, `boolean` or
`timestamptz`, have no placeholder: Debezium writes null, which is what it writes of a null. docs/cdc.md says
which tables need `REPLICA IDENTITY FULL` for that reason.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelake.cdc.core.columns import among, mask
from tidelake.cdc.core.events import Mask

PLACEHOLDER = "__debezium_unavailable_value"
# As text, in base64 as columns of bytes are, and as a map (`hstore`) of one entry.
_BASE64 = "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="
_TEXTS = (PLACEHOLDER, _BASE64, f'{{"{PLACEHOLDER}":"{PLACEHOLDER}"}}')
# The one item of an array: of texts, of bytes, or of UUIDs, which is the UUID that Java makes of the text.
_ITEMS = (PLACEHOLDER, _BASE64, "b68a35a7-17ad-35b3-af2a-ae46edb4545a")
_NUMBERS = list(PLACEHOLDER.encode())


def is_unavailable(value: Any) -> bool:
    """Whether a parsed JSON value is a placeholder."""
    if isinstance(value, list):
        return value == _NUMBERS or (len(value) == 1 and value[0] in _ITEMS)
    return isinstance(value, str) and value in _TEXTS


def unavailable(values: pa.Array) -> Mask | None:
    """Which values are placeholders; None if none is."""
    is_ = pa.types
    kind = values.type
    found: Mask
    if is_.is_list(kind) or is_.is_large_list(kind):
        found = _lists(values)
    elif is_.is_string(kind) or is_.is_large_string(kind):
        found = among(values, _TEXTS)
    elif is_.is_binary(kind) or is_.is_large_binary(kind):
        found = among(values, [text.encode() for text in _TEXTS])
    else:
        return None
    return found if found.any() else None


def _lists(values: pa.Array) -> Mask:
    """Which lists are placeholders: first those of its length, then those of its items."""
    is_ = pa.types
    items = values.type.value_type
    numbers = is_.is_integer(items) and items.bit_width > 8
    words: list[Any] = []
    if is_.is_string(items) or is_.is_large_string(items):
        words = list(_ITEMS)
    elif is_.is_binary(items) or is_.is_large_binary(items):
        words = [text.encode() for text in _ITEMS]
    elif not numbers:
        return np.zeros(len(values), np.bool_)
    length = len(_NUMBERS) if numbers else 1
    found = mask(pc.equal(pc.list_value_length(values), length))
    if found.any():
        flat = values.filter(pa.array(found)).flatten()
        wanted = pa.array(_NUMBERS * int(found.sum()), items) if numbers else None
        equal = among(flat, words) if wanted is None else mask(pc.equal(flat, wanted))
        found[found] = equal.reshape(-1, length).all(axis=1)
    return found
