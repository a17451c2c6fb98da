"""What a mirror needs of the table that it writes, whatever its format."""

from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import pyarrow as pa

from tidelake.errors import UsageError

TableFormat: TypeAlias = Literal["delta", "iceberg"]
Holds: TypeAlias = Literal["contents", "changes"]


@dataclass(frozen=True)
class Mark:
    """What a table says of itself: what it has of which collection.

    Attributes:
        holds: whether it has the contents or all changes.
        through: the time up to which it has them.
        schema_id: of the collection's schema whose columns it has: columns may change places of names.
    """

    collection: str
    holds: Holds
    through: int
    schema_id: int


class MirrorTarget(Protocol):
    """A table that is written. Each call is one commit of the table, and stores the mark in that commit."""

    @property
    def place(self) -> str:
        """How the user calls it."""

    def exists(self) -> bool:
        """Whether there is a table."""

    def mark(self, collection: str, holds: Holds) -> Mark | None:
        """The mark of this collection; None: the table has none."""

    def schema(self) -> pa.Schema:
        """The columns of the table, as `plain_schema` has them."""

    def overwrite(self, rows: pa.RecordBatchReader, mark: Mark) -> None:
        """Make the table, or replace its columns and all its rows."""

    def append(self, rows: pa.RecordBatchReader, mark: Mark) -> None:
        """Add rows."""

    def replace_keys(self, keys: pa.Table, rows: pa.Table, mark: Mark) -> None:
        """Remove the rows of some keys, and add rows of these keys."""


def changed_meanwhile(place: str, error: Exception) -> UsageError:
    """The error of a commit that the table refused since another one was first."""
    return UsageError(
        f"table {place} was changed by another writer meanwhile, and nothing was written: run the mirror "
        f"again, from one process at a time ({error})"
    )
