"""Checks that the parts of a shard, and the rows that streams hold back, are there as they were stored.

Owns the way from a state to its objects; `tidelake.data.part.check` has the checks within one part. Reads one
row group after the other, so memory does not grow with the parts. Writes nothing.
"""

from collections.abc import Callable, Iterable

from tidelake.data.keys.keytext import key_text
from tidelake.data.part.check import Edges, PartCheck
from tidelake.data.part.container import hasher, whole_checksum
from tidelake.data.part.inline import decode_inline
from tidelake.data.part.scan import read_part
from tidelake.errors import BlobNotFound, CorruptionError
from tidelake.model import names
from tidelake.model import time as times
from tidelake.model.batch import HollowBatch, Part, Run
from tidelake.model.frontier import Frontier
from tidelake.model.schema import Schema
from tidelake.model.time import Time
from tidelake.shard.care.finding import Tell
from tidelake.state.core.state import ShardState
from tidelake.state.write.heldback import digest_of, held_objects
from tidelake.store.protocols import BlobInfo, BlobStore

Watch = Callable[[int, int], None]
"""Called with the bytes of the parts that were checked so far, and the bytes of all parts."""

_PIECE_BYTES = 1024 * 1024
_BATCH_ROWS = 65_536
_BATCH_BYTES = 8 * 1024 * 1024


class PartsCheck:
    """Checks the parts that a state names."""

    def __init__(
        self,
        state: ShardState,
        blobs: BlobStore,
        sizes: dict[str, int],
        tell: Tell,
        *,
        deep: bool,
        watch: Watch | None = None,
    ) -> None:
        """Prepare a check; reads nothing yet."""
        self._watch = watch
        self._total = sum(part.size_bytes for part in named_parts(state))
        self._state, self._blobs, self._sizes, self._tell, self._deep = state, blobs, sizes, tell, deep
        self._by_checksum = {whole_checksum(part): part.name for part in named_parts(state)} if deep else {}
        self.parts = self.rows = self.size_bytes = 0

    def batch(self, batch: HollowBatch) -> None:
        """Check a batch of the spine."""
        for run in batch.runs:
            if not run.truncated:
                self._check_bounds(run, batch)
            self.run(run)

    def run(self, run: Run) -> None:
        """Check the parts of a run one by one, and that each begins after the end of the one before."""
        before: tuple[Part, Edges | None] | None = None
        for part in run.parts:
            edges = self._part(part)
            if self._watch is not None:
                self._watch(self.size_bytes, self._total)
            if before is not None and _overlap(*before, part, edges):
                self._told("run-unsorted", part, f"it begins before part {before[0].name} ends")
            before = part, edges

    def _part(self, part: Part) -> Edges | None:
        self.parts += 1
        self.size_bytes += part.size_bytes
        found = self._state.schemas.get(part.schema_id)
        if found is None:
            self._told("part-schema", part, f"there is no schema {part.schema_id}")
            return None
        schema = found.schema
        check = PartCheck(part, schema, self._state.domain)
        try:
            if part.inline is not None:
                check.add(decode_inline([part], schema, self._state.domain))
            elif not self._stored(part, schema, check):
                return None
        except CorruptionError as error:
            self._told("part-unreadable", part, error.reason)
            return None
        except BlobNotFound:
            self._told("part-missing", part, "there is no such object")
            return None
        for complaint in check.complaints():
            self._told(f"part-{complaint.kind}", part, complaint.message)
        self.rows += part.rows
        return check.edges

    def _stored(self, part: Part, schema: Schema, check: PartCheck) -> bool:
        """Check the object of a part. Returns whether its rows were checked."""
        if not self._deep:
            # If it is not in the listing, it was stored since, or is gone.
            size = self._sizes.get(part.name) or len(self._blobs.get(part.name))
            if size != part.size_bytes:
                self._told("part-size", part, f"it has {size} bytes instead of {part.size_bytes}")
            return False
        with self._blobs.open(part.name) as file:
            digest, size = hasher(), 0
            while piece := file.read(_PIECE_BYTES):
                digest.update(piece)
                size += len(piece)
            if digest.hexdigest() != whole_checksum(part):
                self._told(*self._damage(part, digest.hexdigest(), size))
                return False
            rows = read_part(
                file, part, schema, self._state.domain, batch_rows=_BATCH_ROWS, batch_bytes=_BATCH_BYTES
            )
            for batch in rows:
                check.add(batch)
        return True

    def _damage(self, part: Part, checksum: str, size: int) -> tuple[str, Part, str]:
        other = self._by_checksum.get(checksum)
        if other is not None:
            return "part-swapped", part, f"its bytes are those of part {other}"
        if size != part.size_bytes:
            return "part-size", part, f"it has {size} bytes instead of {part.size_bytes}"
        return "part-damaged", part, "its checksum does not match"

    def _check_bounds(self, run: Run, batch: HollowBatch) -> None:
        """Check that the times of a run lie in the bounds of its batch, or were advanced from there."""
        bounds = batch.bounds
        for part in run.parts:
            first, last = part.seen_times
            total = self._state.domain.total_order
            late = bounds.upper.less_equal(last) and total
            # If times are tuples, the extremes are taken per component and need not be times of rows.
            early = not bounds.lower.less_equal(first if total else last)
            # If some runs of a batch were merged, their times may be advanced past the upper of the batch.
            if early or (late and not _advanced(last, self._state.since)):
                self._told("batch-times", part, f"its times {first} to {last} lie outside of {bounds}")

    def _told(self, kind: str, part: Part, message: str) -> None:
        self._tell(kind, part.name, f"{message}; {self._meaning(part)}")

    def _meaning(self, part: Part) -> str:
        """A text that says what the part holds, and which reads need it."""
        first, last = part.seen_times
        version = self._state.schemas.get(part.schema_id)
        schema = version.schema if version is not None else self._state.schema
        keys = f"{key_text(part.key_lower, schema)} to {key_text(part.key_upper, schema)}"
        held = f"it holds {part.rows} updates of keys {keys} and times {first} to {last}"
        return f"{held}: contents as of {first} and later, and changes since before {last}, need it"


def named_parts(state: ShardState) -> Iterable[Part]:
    """All parts that a state names."""
    yield from state.parts()
    for parts in state.chunks.values():
        yield from parts


def _advanced(last: Time, since: Frontier) -> bool:
    """Whether a fold to `since` may have advanced a time this far."""
    return any(times.less_equal(last, time) for time in since)


def _overlap(before: Part, ends: Edges | None, part: Part, edges: Edges | None) -> bool:
    """Whether a part begins before the end of its neighbour, by their rows if known, else by key bounds."""
    if ends is None or edges is None or before.schema_id != part.schema_id:
        return before.key_lower > part.key_lower
    return ends.last >= edges.first


_MEANS = (
    "a stream holds events of a transaction back in it, and stops where it needs them: take it from a copy "
    "of the lake, or take the feed into new collections"
)


def check_held(
    state: ShardState,
    listed: Iterable[BlobInfo],
    blobs: BlobStore,
    newest: Callable[[], ShardState],
    tell: Tell,
    *,
    deep: bool,
) -> None:
    """Report objects that are gone or damaged, and that the newest state still needs."""
    there = {info.name for info in listed}
    found: list[tuple[str, str, str]] = []
    for name in sorted(held_objects(state)):
        if deep:
            try:
                data = blobs.get(name)
            except BlobNotFound:
                found.append(("held-missing", name, f"it is gone; {_MEANS}"))
                continue
            if digest_of(data) != names.held_digest(name):
                found.append(("held-damaged", name, f"it has other bytes than were stored; {_MEANS}"))
        elif name not in there and not any(True for _ in blobs.list(name)):
            found.append(("held-missing", name, f"it is gone; {_MEANS}"))
    needed = held_objects(newest()) if found else frozenset()
    for kind, name, message in found:
        if name in needed:
            tell(kind, name, message)
