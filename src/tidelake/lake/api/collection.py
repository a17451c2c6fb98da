"""A named collection, as users meet it: times as ints or tuples, tables in any Arrow form.

Frontiers may be given as a time (the frontier of that one time), a list of times, or a `Frontier`.
"""

from collections.abc import Sequence

import pyarrow as pa

from tidelake.data.types import row_schema, schema_from_arrow
from tidelake.errors import UsageError
from tidelake.lake.api.arranging import Arranging
from tidelake.lake.api.distributed import Distributed
from tidelake.lake.api.following import Follows
from tidelake.lake.api.keeping import Keeping
from tidelake.lake.api.reads import Reads
from tidelake.lake.api.writes import Writes
from tidelake.state.schemas import schema_id_at


class Collection(Writes, Reads, Follows, Arranging, Keeping):
    """A multiset of rows that changes over time."""

    def __repr__(self) -> str:
        return f"Collection({self.name!r}, {self._shard.spec.schema}, time={self.domain})"

    @property
    def distributed(self) -> Distributed:
        """Work that several processes do together: uploads and their commits, plans, and holds of plans."""
        return Distributed(self)

    def evolve(
        self, schema: pa.Schema, *, key: Sequence[str] | None = None, value: Sequence[str] | None = None
    ) -> int:
        """Change the columns. Stored rows are not touched; they are read as rows of the newest schema.

        Columns are compared by name with those of the newest schema. Nullable value columns may be added
        anywhere, value columns may be dropped; any column may become nullable; integers, floats and decimals
        (of the same scale) may become wider. A dropped name that is added again is a new column: its old
        values do not return.

        Args:
            schema: the new schema, with all key and value columns.
            key: the key columns; default: those of the collection. They cannot be added, dropped or
                reordered.
            value: the value columns; default: all others.

        Returns:
            The id of the schema. One log write; none if nothing changes.

        Raises:
            IncompatibleSchema: the change is not allowed; names the column, the reason, and what to do
                instead. Also if it would drop a column that another process has added since this handle last
                read the state.
        """
        return self._shard.evolve(schema_from_arrow(schema, self.key if key is None else key, value))

    def schema_at(self, seqno: int) -> pa.Schema:
        """Key columns, then value columns, as of the state with this seqno. One log scan.

        Raises:
            UsageError: there is no such state.
        """
        if isinstance(seqno, bool) or not isinstance(seqno, int):
            raise UsageError(f"seqno={seqno!r} must be a whole number, such as collection.state().seqno")
        state = self.state()
        return row_schema(state.schemas[schema_id_at(state, seqno)].schema)
