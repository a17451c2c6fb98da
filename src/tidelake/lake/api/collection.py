"""A named collection, as users meet it: times as ints or tuples, tables in any Arrow form.

Its methods are in parts, by what a caller wants. Frontiers may be
given as a time (the frontier of that one time), a list of times, or a `Frontier`.
"""

from typing import TYPE_CHECKING

from tidelake.errors import TidelakeError
from tidelake.lake.api.erasing import Erasing
from tidelake.lake.api.following import Following
from tidelake.lake.api.framing import Framing
from tidelake.lake.api.maintaining import Maintaining
from tidelake.lake.api.plotting import Plotting
from tidelake.lake.api.writing import Writing
from tidelake.tabletext import as_html

if TYPE_CHECKING:
    from tidelake.lake.api.distributed import Distributed

_SHOWN = 40


class Collection(Writing, Framing, Following, Maintaining, Erasing, Plotting):
    """A multiset of rows that changes over time."""

    def __repr__(self) -> str:
        return f"Collection({self.name!r}, {self._shard.known().schema}, time={self.domain})"

    def _repr_html_(self) -> str:
        """What a notebook shows: columns, frontiers and sizes. One log scan."""
        try:
            state = self._shard.version().state
        except TidelakeError as error:
            return as_html([], [], repr(self), f"its state cannot be read: {error}")
        key, value = state.schema.key, state.schema.value
        rows = [(c.name, c.type, "key") for c in key] + [(c.name, c.type, "value") for c in value]
        text, totals = state.domain.text, state.spine.totals
        note = (
            f"times: {state.domain}, since {text(state.since)}, upper {text(state.upper)}; "
            f"{totals.rows:,} updates in {totals.runs:,} runs, {totals.size_bytes:,} bytes"
        )
        if len(rows) > _SHOWN:
            note = f"{_SHOWN} of {len(rows):,} columns; {note}"
        return as_html(["column", "type", "role"], rows[:_SHOWN], f"collection {self.name}", note)

    @property
    def distributed(self) -> "Distributed":
        """Work that several processes do together: uploads and their commits, plans, and holds of plans."""
        from tidelake.lake.api.distributed import Distributed

        return Distributed(self)
