"""The columns that the keys of messages have, of many messages at once.

Owns how the names of these columns are found, and when they are those of a collection's key. What a key's
values are is read by `tidelake.cdc.debezium.rowcolumns`.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelake.cdc.core.events import Ints
from tidelake.cdc.core.lineerrors import as_bytes
from tidelake.cdc.debezium.schemaprefix import by_schema
from tidelake.data.json.block import trimmed
from tidelake.data.json.values import loads

Names: TypeAlias = tuple[str, ...]
# A member's value, after its name: what is left of an object without these are its names.
_VALUES = r'("\s*:\s*)("(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*|true|false|null)'
# Columns that Debezium's ByLogicalTableRouter adds.
_ADDED = "__dbz__"
# What Debezium calls the key of a document of MongoDB, and what the document does.
_MONGODB, _DOCUMENT = ("id",), ("_id",)
_REMEDY = (
    "rows that differ in other columns would replace each other. Take the table into a new collection, with "
    "a copy of it; or let the messages keep the key that the collection has (message.key.columns of the "
    "connector), if the source still tells rows apart by it"
)


def key_names(keys: pa.Array) -> tuple[Ints, list[Names | None]]:
    """The names of the columns of each key.

    Returns:
        For each key a number, and by number the names: None without a key, empty if the key has no columns
        (it is no JSON object). Two numbers may have equal names.
    """
    texts = as_bytes(keys)
    bare = trimmed(texts)
    there = pc.invert(pc.or_kleene(bare.is_null(), pc.is_in(bare, value_set=pa.array([b"", b"null"]))))
    codes = there.to_numpy(zero_copy_only=False).astype(np.int64)
    names: list[Names | None] = [None, ()]
    for _, at, rest in by_schema(bare):
        shapes = pc.replace_substring_regex(rest.view(pa.string()), _VALUES, r"\1").dictionary_encode()
        numbers = shapes.indices.to_numpy(zero_copy_only=False)
        _, first = np.unique(numbers, return_index=True)
        codes[at] = len(names) + numbers
        names += [_names(rest[int(one)].as_py()) for one in first]
    return codes, names


def fits(names: Names, key: Sequence[str]) -> bool:
    """Whether these columns of a message's key are the key columns of a collection."""
    return set(names) == set(key) or of_document(names, key)


def of_document(names: Iterable[str], key: Sequence[str]) -> bool:
    """Whether it is the key of a document of MongoDB, which has the text of its `_id`."""
    return tuple(names) == _MONGODB and tuple(key) == _DOCUMENT


def changed(names: Names | None, key: Sequence[str]) -> str:
    """Why events whose keys have these columns cannot go on in a collection with this key."""
    if names is None:
        why = "the message has no key, as if the source had no primary key any more"
    else:
        why = f"the key of the message has the columns {_listed(names)}"
    return f"{why}, and the key of the collection is {_listed(key)}: {_REMEDY}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))


def _names(text: bytes) -> Names | None:
    try:
        key: Any = loads(text.decode())
    except (ValueError, RecursionError):
        return ()
    if isinstance(key, dict) and "payload" in key and key.keys() <= {"schema", "payload"}:
        key = key["payload"]
        if key is None:
            return None
    return tuple(one for one in key if not one.startswith(_ADDED)) if isinstance(key, dict) else ()


def as_text(names: Names | None) -> str:
    """Names as a text; empty: there is no key."""
    return "" if names is None else json.dumps(names)


def from_text(text: str) -> Names | None:
    """The names of a text of `as_text`."""
    return tuple(json.loads(text)) if text else None
