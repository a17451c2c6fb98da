"""Settings of an arrangement, with units and limits."""

from dataclasses import dataclass, field

from tidelake.arrangement.merge.levels import LEVELS, Fans, resting_batches_max
from tidelake.arrangement.merge.pressure import Shares
from tidelake.config import MIB
from tidelake.errors import UsageError

_SMALL, _MIDDLE = 2, 4
_LARGE = LEVELS - _SMALL - _MIDDLE


def _by_level(small: int, middle: int, large: int) -> tuple[int, ...]:
    return (small,) * _SMALL + (middle,) * _MIDDLE + (large,) * _LARGE


@dataclass(frozen=True)
class ArrangementConfig:
    """The settings of an arrangement; they are fixed when it is created.

    Attributes:
        memory_budget_bytes: memory that the arrangement may use: rows, filters, indexes, the cache, and the
            buffers of merges.
        process_budget_bytes: memory that the whole process may use (its resident set); None: no limit. The
            budget of which the greater share is used determines the pressure.
        shares: at which shares of the budget the levels of pressure begin.
        large_share: a batch of at least this share of the memory budget is kept on disk at any pressure.
        cache_bytes: size of the cache for blocks on disk, counted in the budget; at most a quarter of the
            budget is used.
        disk_reserve_bytes: disk space that merges leave free.
        level_rows: the greatest number of rows of a batch of level 0. It should exceed the size of an append.
        fans: how many batches a merge takes, by level.
        retraction_weight: how many additional rows a row with a negative diff counts for, in the size of a
            merge result; 0: none.
        batches_max: an append waits while there are this many batches, including those that are being merged.
        merge_workers: number of merge threads; an append that waits merges too. More threads finish merges
            sooner, and leave appends a smaller share of the interpreter.
        merge_chunk_rows: rows, over all inputs, that a merge sorts at once; the least that a step does.
        merge_chunk_bytes: the same in bytes; at most 1/32 of the memory budget is used.
        idle_s: how long a merge thread without work sleeps, unless it is woken.
    """

    memory_budget_bytes: int = 1024 * MIB
    process_budget_bytes: int | None = None
    shares: Shares = field(default_factory=Shares)
    large_share: float = 0.25
    cache_bytes: int = 64 * MIB
    disk_reserve_bytes: int = 64 * MIB
    level_rows: int = 16_384
    fans: Fans = field(default_factory=lambda: Fans(_by_level(8, 3, 2), _by_level(64, 64, 64)))
    retraction_weight: int = 1
    batches_max: int = 256
    merge_workers: int = 1
    merge_chunk_rows: int = 524_288
    merge_chunk_bytes: int = 32 * MIB
    idle_s: float = 0.5

    def __post_init__(self) -> None:
        for name, least in (
            ("memory_budget_bytes", MIB),
            ("cache_bytes", 0),
            ("disk_reserve_bytes", 0),
            ("level_rows", 1),
            ("retraction_weight", 0),
            ("batches_max", 2),
            ("merge_workers", 1),
            ("merge_chunk_rows", 16),
            ("merge_chunk_bytes", 1024),
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise UsageError(f"setting {name}={value!r} must be a whole number of at least {least}")
        process = self.process_budget_bytes
        if process is not None and process < MIB:
            raise UsageError(
                f"setting process_budget_bytes={process!r} must be None or a whole number of at least {MIB}"
            )
        if not 0 < self.large_share <= 1:
            raise UsageError(f"setting large_share={self.large_share!r} must be above 0 and at most 1")
        if not 0 < self.idle_s < float("inf"):
            raise UsageError(f"setting idle_s={self.idle_s!r} must be a number of seconds above 0")
        self._check_fans()

    @property
    def cache_bytes_held(self) -> int:
        """The size of the cache: limited to a part of the budget, since pressure does not empty it."""
        return min(self.cache_bytes, self.memory_budget_bytes // 4)

    @property
    def merge_chunk_bytes_held(self) -> int:
        """The size of a chunk: limited to a part of the budget."""
        return min(self.merge_chunk_bytes, self.memory_budget_bytes // 32)

    def _check_fans(self) -> None:
        least, most = self.fans.least, self.fans.most
        if len(least) != LEVELS or len(most) != LEVELS:
            raise UsageError(f"setting fans must have {LEVELS} numbers in least and in most")
        if not all(2 <= low <= high for low, high in zip(least, most, strict=True)):
            raise UsageError(
                f"setting fans={self.fans}: each number in least must be at least 2, and at most that in most"
            )
        if (resting := resting_batches_max(self.fans)) >= self.batches_max:
            raise UsageError(
                f"setting batches_max={self.batches_max} must exceed {resting}, the number of batches that "
                "the fans leave unmerged: raise it, or lower the fans"
            )
