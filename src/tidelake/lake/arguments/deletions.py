"""What a delete takes: keys, or a condition."""

import pyarrow as pa

from tidelake.data.ingest.astable import as_table
from tidelake.errors import UsageError


def deletion(keys: object, where: object) -> pa.Table | str:
    """The keys, or the condition, of the rows to delete.

    Raises:
        UsageError: neither is given, or both.
        InvalidUpdates: the keys are no table.
    """
    if (keys is None) == (where is None):
        raise UsageError(
            "delete takes a table of keys, or where=...: give one of the two; where='TRUE' deletes all rows"
        )
    if where is None:
        return as_table(keys, "keys")
    if not isinstance(where, str):
        raise UsageError(f"where={where!r} is no text: write a condition, such as where=\"state = 'old'\"")
    return where
