"""What this process keeps of parts, of all lakes: unpacked rows, ranges of bytes that lie far away, filters.

Owns the one budget that these caches share: all their files together are at most as large as
`lookup_cache_bytes`. Must not know what they keep of a part, nor when.

INVARIANT: a part never changes, and neither does what is kept of it. Each cache is optional: a read without
it gives the same rows.
"""

from dataclasses import dataclass
from typing import Protocol

from tidelake.config import MIB, Config
from tidelake.process import PerProcess
from tidelake.shard.runs.cache import Identity, LookupCache
from tidelake.shard.runs.filters import PartFilters
from tidelake.shard.runs.rangecache import RangeCache

# Of `lookup_cache_bytes`: the share of the file of ranges, and that of memory for ranges. The rest of the
# disk is for unpacked parts; all of it, as long as no ranges are on disk.
_RANGES_SHARE = 4
_MEMORY_SHARE = 32
# Filters of 40 million keys.
_FILTERS_BYTES = 64 * MIB


class PartCache(Protocol):
    """What all of them answer.

    Attributes:
        hits: how often a read found here what it needed.
    """

    hits: int
    misses: int

    def forget(self, id_: Identity) -> None:
        """Drop everything of a part, as its bytes may have been damaged on their way."""


@dataclass(frozen=True)
class Budget:
    """How much each cache may take."""

    unpacked_bytes: int
    ranges_bytes: int
    ranges_memory_bytes: int


class PartCaches:
    """The caches of one process. Thread-safe; a forked child has its own.

    Attributes:
        ranges: footers, small parts and row groups of parts that lie far away.
    """

    def __init__(self) -> None:
        self.unpacked, self.ranges, self.filters = LookupCache(), RangeCache(), PartFilters(_FILTERS_BYTES)

    def budget(self, config: Config, *, is_far: bool) -> Budget:
        """What a lake with these settings, in a store that is far or not, may have kept here."""
        total = config.lookup_cache_bytes
        ranges = total // _RANGES_SHARE if is_far or self.ranges.disk_bytes else 0
        return Budget(total - ranges, ranges, total // _MEMORY_SHARE)

    def keep_range(self, id_: Identity, start: int, data: bytes, config: Config) -> None:
        """Keep bytes of a part that is far. What they take of the disk, unpacked parts give back."""
        budget = self.budget(config, is_far=True)
        had_file = self.ranges.disk_bytes
        self.ranges.put(id_, start, data, budget.ranges_memory_bytes, budget.ranges_bytes)
        if self.ranges.disk_bytes and not had_file:
            self.unpacked.shrink(budget.unpacked_bytes)

    def forget(self, id_: Identity) -> None:
        """Drop everything of a part, as it may be damaged."""
        for cache in self.by_name().values():
            cache.forget(id_)

    def by_name(self) -> dict[str, PartCache]:
        """The caches by the names of their counters."""
        return {"lookup.cache": self.unpacked, "lookup.filter": self.filters, "range.cache": self.ranges}


_CACHES = PerProcess(PartCaches)


def part_caches() -> PartCaches:
    """The caches of this process."""
    # A fork drops its parent's caches, whose files would stay on disk after the parent evicts them.
    return _CACHES.get()
