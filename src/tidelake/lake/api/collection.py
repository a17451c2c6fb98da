"""A named collection, as users meet it: times as ints or tuples, tables in any Arrow form.

Its methods are in parts, by what a caller wants; ARCHITECTURE.md lists which part has which. Frontiers may be
given as a time (the frontier of that one time), a list of times, or a `Frontier`.
"""

from tidelake.lake.api.distributed import Distributed
from tidelake.lake.api.following import Following
from tidelake.lake.api.maintaining import Maintaining
from tidelake.lake.api.reading import Reading
from tidelake.lake.api.writing import Writing


class Collection(Writing, Reading, Following, Maintaining):
    """A multiset of rows that changes over time."""

    def __repr__(self) -> str:
        return f"Collection({self.name!r}, {self._shard.spec.schema}, time={self.domain})"

    @property
    def distributed(self) -> Distributed:
        """Work that several processes do together: uploads and their commits, plans, and holds of plans."""
        return Distributed(self)
