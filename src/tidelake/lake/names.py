"""Names that users give to collections, writers, readers and columns."""

import unicodedata
from collections.abc import Sequence

import pyarrow as pa

from tidelake.errors import UsageError

_BYTES_MAX = 255


def check_name(name: object, what: str) -> str:
    """The name itself: any text of at most 255 bytes without control characters.

    Raises:
        UsageError: it is something else; says `what` was to be named.
    """
    if not isinstance(name, str):
        raise UsageError(f"{what} {name!r} must be a text, not {type(name).__name__}")
    if not name or any(unicodedata.category(c) == "Cc" for c in name):
        raise UsageError(f"{what} {name!r} must be a non-empty text without control characters")
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise UsageError(f"{what} {name!r} is not valid text: {error.reason}") from error
    if size > _BYTES_MAX:
        raise UsageError(f"{what} {name[:20]!r}... has {size} bytes: use at most {_BYTES_MAX}")
    return name


def check_columns(schema: object, key: object, value: object) -> None:
    """Check the kinds of what describes the columns of a collection.

    Raises:
        UsageError: `schema` is no Arrow schema, or `key` or `value` no list of names.
    """
    if not isinstance(schema, pa.Schema):
        raise UsageError(
            f"schema is a {type(schema).__name__}: give a pyarrow schema, such as table.schema or "
            "pa.schema([('id', pa.int64()), ('name', pa.string())])"
        )
    for what, names in (("key", key), ("value", value)):
        if not isinstance(names, Sequence) and not (what == "value" and names is None):
            raise UsageError(f"{what}={names!r} is not a list of column names: write {what}=['name', ...]")
