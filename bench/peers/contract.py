"""What each peer is asked to do: one module a peer, which has a class `Peer` with the methods of this one.

These modules run in the environment of the peer (`setup/peers.sh`): they import pyarrow, the standard library
and the peer. A table has the columns `id` (the key), `n`, `s` and `x`; see `bench.peers.workload`.
"""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("s", pa.string()), ("x", pa.float64())])


class Cannot(Exception):
    """The peer has no way to do this; says why."""


class Peer:
    """A peer, on a folder of its own. Versions are whatever the peer calls them, as JSON."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def again(self) -> "Peer":
        """A handle that knows nothing of what this one has read."""
        return type(self)(self.folder)

    def create(self, table: str, schema: pa.Schema) -> None:
        """Make an empty table."""
        raise NotImplementedError

    def append(self, table: str, rows: pa.Table) -> None:
        """Add rows whose keys are new."""
        raise NotImplementedError

    def upsert(self, table: str, rows: pa.Table) -> None:
        """Replace the rows of these keys, and add those that are new."""
        raise NotImplementedError

    def rest(self, table: str) -> None:
        """Do the maintenance that the peer recommends; old versions stay readable."""
        raise Cannot("it has no maintenance to run")

    def version(self, table: str) -> Any:
        """The newest version."""
        raise Cannot("it keeps no versions")

    def read(self, table: str) -> pa.Table:
        """All rows."""
        raise NotImplementedError

    def read_at(self, table: str, version: Any) -> pa.Table:
        """All rows as of a version."""
        raise Cannot("it keeps no versions")

    def changes(self, table: str, after: Any, through: Any) -> pa.Table:
        """What changed between two versions, netted: rows with a column `diff`, +1 or -1."""
        return netted(self.read_at(table, after), self.read_at(table, through))

    def lookup(self, table: str, ids: pa.Table) -> pa.Table:
        """The rows of some keys."""
        raise NotImplementedError


def netted(before: pa.Table, after: pa.Table) -> pa.Table:
    """The rows that only one of two contents has: what a user computes where the peer cannot say."""
    return summed(pa.concat_tables([_signed(before, -1), _signed(after, 1)]))


def summed(signed: pa.Table) -> pa.Table:
    """Rows with the sum of their `diff`, without those whose sum is zero."""
    total = signed.group_by(SCHEMA.names).aggregate([("diff", "sum")]).rename_columns([*SCHEMA.names, "diff"])
    return total.filter(pc.not_equal(total["diff"], 0))


def _signed(rows: pa.Table, diff: int) -> pa.Table:
    return rows.select(SCHEMA.names).append_column("diff", pa.array([diff] * rows.num_rows, pa.int64()))
