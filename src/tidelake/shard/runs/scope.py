"""The scope of a read: a range or a set of keys, and a predicate on rows.

Owns what a read skips: parts and row groups before they are fetched, by key bounds and statistics, and rows
after they are decoded. Must not know how runs are read and merged. Invariant: what is skipped is in no answer
to the read.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.parquet as pq

from tidelake.data.kernel.arrays import binaries
from tidelake.data.keys.keyset import KeySet
from tidelake.data.query.filter import RowFilter
from tidelake.data.query.prune import Pruning
from tidelake.model.batch import HollowBatch, Part, Run
from tidelake.model.frontier import Frontier
from tidelake.model.predicate import Predicate, earlier, key_bounds, keys_asked, later
from tidelake.shard.engine.spec import ShardSpec
from tidelake.shard.runs.partcaches import part_caches

# So many keys of a predicate are looked up; the rows of more of them are found by a scan of their range.
_KEYS_MAX = 1000


@dataclass(frozen=True)
class Source:
    """A run, and the bounds of its batch. If the run is truncated, rows outside the bounds are dropped.

    Attributes:
        lower: lower of the batch that the run belongs to.
        less: the rows up to this time are taken away from the answer, and no later ones matter; None: all
            rows count.
    """

    run: Run
    lower: Frontier
    upper: Frontier
    less: int | None = None

    @classmethod
    def of(cls, run: Run, batch: HollowBatch) -> "Source":
        """A run of a batch."""
        return cls(run, batch.bounds.lower, batch.bounds.upper)


@dataclass(frozen=True)
class KeyRange:
    """Encoded keys from `start` up to but without `stop`; None: no bound."""

    start: bytes | None = None
    stop: bytes | None = None

    def may_hold(self, part: Part) -> bool:
        """Whether the part's key bounds overlap the range."""
        # Bounds may be truncated: the upper one is still at or after every key of the part, the lower one
        # at or before.
        before = self.start is not None and part.key_upper is not None and part.key_upper < self.start
        after = self.stop is not None and part.key_lower >= self.stop
        return not (before or after)

    def holds(self, key: bytes) -> bool:
        """Whether a key lies in the range."""
        return (self.start is None or key >= self.start) and (self.stop is None or key < self.stop)


class Scope:
    """A set of keys and a predicate, for parts of any schema of a shard.

    Attributes:
        keys: the range of the keys that are in `among` and may satisfy the predicate.
        among: the keys that are asked for, or the only ones that may satisfy the predicate; None: all keys.
        where: the predicate; None: every row satisfies it.
        only_keys: whether exactly the rows of the keys in `among` are in scope.
    """

    def __init__(
        self,
        spec: ShardSpec,
        keys: KeyRange | None = None,
        where: Predicate | None = None,
        among: KeySet | None = None,
    ) -> None:
        self.where = where
        self.only_keys = among is not None and where is None and keys in (None, KeyRange())
        ids = [column.id for column in spec.schema.key]
        if among is None and where is not None and (fixed := keys_asked(where, ids, _KEYS_MAX)):
            among = KeySet(binaries(fixed))
        self.among = among
        self.keys = keys or KeyRange()
        if among is not None:
            # The least bytes after the last key, since no key is a prefix of another.
            past = among.last + b"\x00"
            self.keys = KeyRange(later(self.keys.start, among.first), earlier(self.keys.stop, past))
        self._spec = spec
        self._prunings: dict[int, Pruning] = {}
        if where is not None:
            start, stop = key_bounds(where, ids)
            self.keys = KeyRange(later(self.keys.start, start), earlier(self.keys.stop, stop))
            self._filter = RowFilter(where, spec.schema)

    def may_hold(self, part: Part) -> bool:
        """Whether the part may hold rows in scope, judged by the key bounds and statistics in the state.

        Its filter counts as well if this process has read it; an inline part has none.
        """
        if self.among is not None and not self.among.meets(part.key_lower, part.key_upper):
            return False
        # Exactly the range of the keys is in scope then, and the part meets it.
        if self.only_keys and part.inline is not None:
            return True
        pruning = None if self.where is None else self._pruning(part)
        if not self.keys.may_hold(part) or not (pruning is None or pruning.part(part)):
            return False
        if self.among is None or part.inline is not None:
            return True
        return part_caches().filters.among(self._spec, part, self.among) is not None

    def row_groups(self, part: Part) -> Callable[[pq.FileMetaData], list[bool]] | None:
        """A function that says which row groups of a part may hold rows in scope; None: all may."""
        pruning = self._pruning(part)
        return None if pruning is None else pruning.row_groups

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of a batch, which has the schema to read under, that satisfy the predicate, in order."""
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
    """The given runs, reduced to the parts that may hold rows in scope."""
    found: list[Source] = []
    for source in needed:
        parts = list(filter(scope.may_hold, source.run.parts))
        if len(parts) == len(source.run.parts):
            found.append(source)
        elif parts:
            found.append(replace(source, run=Run(tuple(parts), source.run.truncated)))
    return found
