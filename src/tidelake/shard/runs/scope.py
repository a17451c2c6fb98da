"""What of its runs a read looks at: a range or a set of keys, and the rows that satisfy a predicate.

Owns what is left out before it is fetched, by key bounds and statistics, and what after it is decoded. Must
not know how runs are read and merged. Invariant: what is left out is in no answer to the read.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from tidelake.data.filter import Filter
from tidelake.data.keyset import KeySet
from tidelake.data.prune import Pruning
from tidelake.model.batch import HollowBatch, Part, Run
from tidelake.model.frontier import Frontier
from tidelake.model.predicate import Predicate, earlier, key_bounds, later
from tidelake.shard.spec import ShardSpec


@dataclass(frozen=True)
class Source:
    """A run, and the bounds outside of which its rows are to be dropped.

    Attributes:
        run: the parts.
        lower: of the batch that the run belongs to.
        upper: of that batch.
    """

    run: Run
    lower: Frontier
    upper: Frontier

    @classmethod
    def of(cls, run: Run, batch: HollowBatch) -> "Source":
        """A run of a batch."""
        return cls(run, batch.bounds.lower, batch.bounds.upper)


@dataclass(frozen=True)
class KeyRange:
    """Keys from `start` up to but without `stop`, encoded; None is without bound."""

    start: bytes | None = None
    stop: bytes | None = None

    def may_hold(self, part: Part) -> bool:
        """Whether the part's key bounds reach into the range."""
        # A truncated upper bound is at or after every key of the part, a lower one at or before.
        before = self.start is not None and part.key_upper is not None and part.key_upper < self.start
        after = self.stop is not None and part.key_lower >= self.stop
        return not (before or after)

    def holds(self, key: bytes) -> bool:
        """Whether a key lies in the range."""
        return (self.start is None or key >= self.start) and (self.stop is None or key < self.stop)


class Scope:
    """Keys and a predicate, for parts of any schema of a shard.

    Attributes:
        keys: the range of those that are in `among` and may satisfy the predicate.
        among: the keys that are asked for; None: all.
        where: the predicate; None: every row satisfies it.
        only_keys: whether all rows of the keys in `among` are of it, and no others.
    """

    def __init__(
        self,
        spec: ShardSpec,
        keys: KeyRange | None = None,
        where: Predicate | None = None,
        among: KeySet | None = None,
    ) -> None:
        self.where, self.among = where, among
        self.only_keys = among is not None and where is None and keys in (None, KeyRange())
        self.keys = keys or KeyRange()
        if among is not None:
            # What follows the last key next, since no key is a prefix of another.
            past = among.last + b"\x00"
            self.keys = KeyRange(later(self.keys.start, among.first), earlier(self.keys.stop, past))
        self._spec = spec
        self._prunings: dict[int, Pruning] = {}
        if where is not None:
            start, stop = key_bounds(where, [column.id for column in spec.schema.key])
            self.keys = KeyRange(later(self.keys.start, start), earlier(self.keys.stop, stop))
            self._filter = Filter(where, spec.schema)

    def may_hold(self, part: Part) -> bool:
        """Whether the part may hold rows of it, by what the state says of the part."""
        pruning = self._pruning(part)
        return (
            self.keys.may_hold(part)
            and (self.among is None or self.among.meets(part.key_lower, part.key_upper))
            and (pruning is None or pruning.part(part))
        )

    def row_groups(self, part: Part) -> Callable[[pq.FileMetaData], list[bool]] | None:
        """What says of each row group of a part whether it may hold such rows; None: all may."""
        pruning = self._pruning(part)
        return None if pruning is None else pruning.row_groups

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that satisfy the predicate, of rows under the schema to read under, in their order."""
        return batch if self.where is None else self._filter(batch)

    def _pruning(self, part: Part) -> Pruning | None:
        if self.where is None:
            return None
        spec, id_ = self._spec, part.schema_id
        if id_ not in self._prunings:
            written = spec.written_under(id_)
            self._prunings[id_] = Pruning.of(self.where, written, spec.schema, spec.live)
        return self._prunings[id_]


def matching(needed: Iterable[Source], scope: Scope) -> list[Source]:
    """Of some runs the parts that may hold rows of the scope."""
    return [
        Source(Run(parts, source.run.truncated), source.lower, source.upper)
        for source in needed
        if (parts := tuple(part for part in source.run.parts if scope.may_hold(part)))
    ]
