"""Carries out one merge, from the request to the result that replaces its inputs.

A large merge is claimed first and done key range by key range. Each finished key range is recorded in the
state, so a process that dies loses at most one. A small merge is one key range and needs no claim. Parts that
were written in vain are deleted if it is certain that no state names them, and left otherwise.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce

import pyarrow as pa

from tidelake.data.types import update_schema
from tidelake.errors import InvalidUpdates
from tidelake.model.batch import HollowBatch, Part, Run
from tidelake.model.frontier import Frontier
from tidelake.model.query import Fold
from tidelake.shard.runs.plan import between, cut_keys, decode_run, run_merge_task
from tidelake.shard.runs.read import Source, rows
from tidelake.shard.runs.upload import discard, write_rows
from tidelake.shard.shard import Shard
from tidelake.state import maintenance
from tidelake.state.codec import encode_record
from tidelake.state.merging import MergeRequest, MergeResult, chosen
from tidelake.state.spine import Member
from tidelake.state.state import MergeClaim


@dataclass(frozen=True)
class MergeShape:
    """The size of one or several batches."""

    batches: int = 0
    runs: int = 0
    parts: int = 0
    rows: int = 0
    size_bytes: int = 0

    @classmethod
    def of(cls, batches: Sequence[HollowBatch]) -> "MergeShape":
        """The total size of some batches."""
        runs = [run for batch in batches for run in batch.runs]
        return cls(
            len(batches),
            len(runs),
            sum(len(run.parts) for run in runs),
            sum(run.rows for run in runs),
            sum(run.size_bytes for run in runs),
        )


@dataclass(frozen=True)
class MergeReport:
    """What a merge did.

    Attributes:
        applied: whether the result replaced its inputs.
        before: size of the inputs.
        after: size of the result; equal to `before` if nothing was merged.
        chunks: number of key ranges that this process merged.
        resumed: number of key ranges that had been recorded before.
        reason: why the result was not applied; empty if it was.
        unfinished: whether some key ranges are recorded, and the others are left for later.
    """

    applied: bool
    before: MergeShape
    after: MergeShape
    chunks: int = 0
    resumed: int = 0
    reason: str = ""
    unfinished: bool = False


@dataclass(frozen=True)
class Workers:
    """The workers that carry out the tasks of a merge.

    Attributes:
        run: carries out encoded tasks and returns their outputs in the same order.
        width: number of tasks that `run` is given at once; their results are recorded when all are done.
    """

    run: Callable[[Sequence[bytes]], Sequence[bytes]]
    width: int = 1

    @classmethod
    def here(cls, shard: Shard) -> "Workers":
        """This process, one task after the other."""
        return cls(lambda tasks: [run_merge_task(task, shard.stores.blobs, shard.env) for task in tasks])


class Compactor:
    """Carries out merge requests of one shard, under the name of its handle."""

    def __init__(self, shard: Shard, workers: Workers | None = None) -> None:
        self.shard = shard
        self.runner = shard.runner
        self._workers = workers or Workers.here(shard)
        self._config = shard.spec.config
        # At most this many rows are merged in this process, without tasks and threads.
        self._tiny_rows = 0 if workers else min(_TINY_ROWS, self._config.merge_claim_rows)

    def merge(
        self, request: MergeRequest, *, rewrite: bool = False, chunk_rows: int | None = None
    ) -> MergeReport:
        """Carry out a request, from reading its inputs to the commit of the result.

        Args:
            request: a request from a recent state; if its inputs have changed since, nothing is done.
            rewrite: read and write even a single run, to advance its times; make stored parts.
            chunk_rows: merge one key range of about this many rows, and leave the others for later.

        Raises:
            InvalidUpdates: a sum does not fit an int64, even without advancing times. Nothing has changed.
        """
        state = self.shard.known()
        if state.spine.holder(request.id) is None or not state.spine.tiled(request.id):
            return _skipped("its inputs are no longer there")
        members = list(state.spine.range(request.id))
        runs = chosen(members, request.positions)
        if len(runs) == 1 and not rewrite and not runs[0].truncated:
            # One run and empty neighbours: nothing to read or write.
            return self._apply(request, members, _folded(members), runs[0].parts, None)
        try:
            return self._merge(request, members, runs, state.since, inline=not rewrite, chunk_rows=chunk_rows)
        except InvalidUpdates:
            # Sums that do not fit with times advanced to `since` may fit at the present times.
            if len(runs) == 1 or _folded(members) == state.since:
                raise
            return self._merge(request, members, runs, _folded(members), inline=False)

    def _merge(
        self,
        request: MergeRequest,
        members: list[Member],
        runs: list[Run],
        since: Frontier,
        *,
        inline: bool,
        chunk_rows: int | None = None,
    ) -> MergeReport:
        needed = [source for source in _sources(members) if source.run in runs]
        if inline and request.rows <= self._tiny_rows and request.size_bytes <= _TINY_BYTES:
            return self._apply(request, members, since, self._tiny(needed, since), None, chunks=1)
        cuts = self._cuts(request, needed, chunk_rows)
        if request.rows <= self._config.merge_claim_rows and not cuts:
            tasks = between(self.shard.spec, needed, Fold(since), ())
            (output,) = self._workers.run([encode_record("task", task) for task in tasks])
            return self._apply(request, members, since, _parts(output), None, chunks=1)
        claimed = self._claim(request, cuts, since)
        if claimed.claim is None:
            return _skipped("another process is merging it, or its inputs are no longer there")
        try:
            return self._merge_claimed(
                request, members, needed, claimed.claim, dict(claimed.chunks), whole=chunk_rows is None
            )
        except InvalidUpdates:
            # Release the claim: the merge would fail for every process that takes it over.
            self._release(claimed.claim)
            raise

    def _tiny(self, needed: list[Source], since: Frontier) -> tuple[Part, ...]:
        """Merge a few rows in memory. Inline rows stay inline if the result takes no more bytes than they."""
        # Use one spec for rows and parts: `shard.spec` changes if another thread sees a new schema.
        spec, blobs = self.shard.spec, self.shard.stores.blobs
        table = pa.Table.from_batches(
            rows(spec, blobs, needed, Fold(since)), update_schema(spec.schema, spec.domain)
        )
        room = sum(len(part.inline or b"") for source in needed for part in source.run.parts)
        run = write_rows(spec, blobs, self.shard.env, table, inline_bytes_max=room)
        return run.parts if run else ()

    def _cuts(self, request: MergeRequest, needed: list[Source], chunk_rows: int | None) -> tuple[bytes, ...]:
        held = self.shard.known().claims.get(f"{request.id.lo}-{request.id.hi}")
        if held is not None and (held.positions, held.inputs) == (request.positions, request.inputs):
            return held.cuts
        chunks = max(-(-request.size_bytes // self._config.part_target_bytes), self._workers.width)
        if chunk_rows is not None:
            chunks = max(chunks, -(-request.rows // chunk_rows))
        return cut_keys(self.shard.spec, self.shard.stores.blobs, needed, chunks)

    def _claim(self, request: MergeRequest, cuts: tuple[bytes, ...], since: Frontier) -> maintenance.Claimed:
        command = partial(
            maintenance.claim_merge,
            request=request,
            runner=self.runner,
            lease_ms=self._lease_ms,
            cuts=cuts,
            since=since,
        )
        return self.shard.run(command)

    @property
    def _lease_ms(self) -> int:
        return int(self._config.merge_claim_s * 1000)

    def _merge_claimed(
        self,
        request: MergeRequest,
        members: list[Member],
        needed: list[Source],
        claim: MergeClaim,
        done: dict[int, tuple[Part, ...]],
        *,
        whole: bool,
    ) -> MergeReport:
        tasks = between(self.shard.spec, needed, Fold(claim.since), claim.cuts)
        resumed = len(done)
        todo = [i for i in range(len(tasks)) if i not in done]
        if not whole:
            todo = todo[: self._workers.width]
        for start in range(0, len(todo), self._workers.width):
            wave = todo[start : start + self._workers.width]
            outputs = self._workers.run([encode_record("task", tasks[i]) for i in wave])
            made = [_parts(output) for output in outputs]
            for n, (i, parts) in enumerate(zip(wave, made, strict=True)):
                if not self._record(claim, i, parts):
                    # Refused on the newest state: neither this chunk nor the rest of the wave is recorded.
                    self._discard([part for parts in made[n:] for part in parts])
                    return _skipped("another process took the merge over")
                done[i] = parts
        if len(done) < len(tasks):
            return replace(UNFINISHED, chunks=len(todo), resumed=resumed)
        output = tuple(part for i in range(len(tasks)) for part in done[i])
        return self._apply(request, members, claim.since, output, claim, chunks=len(todo), resumed=resumed)

    def _record(self, claim: MergeClaim, index: int, parts: tuple[Part, ...]) -> bool:
        command = partial(
            maintenance.record_chunk, claim=claim, index=index, parts=parts, lease_ms=self._lease_ms
        )
        return self.shard.run(command)

    def _apply(
        self,
        request: MergeRequest,
        members: list[Member],
        since: Frontier,
        parts: tuple[Part, ...],
        claim: MergeClaim | None,
        *,
        chunks: int = 0,
        resumed: int = 0,
    ) -> MergeReport:
        output = Run(parts) if parts else None
        result = MergeResult(request.id, request.positions, request.inputs, since, output)
        fit = self.shard.run(partial(maintenance.apply_merge, result=result, claim=claim))
        runs = chosen(members, request.positions)
        before = MergeShape(
            len(members), len(runs), sum(len(run.parts) for run in runs), request.rows, request.size_bytes
        )
        if fit.applied:
            after = _shape(members[:1], [output] if output else [])
            return MergeReport(True, before, after, chunks, resumed)
        if claim is not None:
            self._release(claim)
        else:
            taken_in = {part.name for run in runs for part in run.parts}
            self._discard([part for part in parts if part.name not in taken_in])
        return MergeReport(False, before, before, chunks, resumed, fit.value)

    def end_expired(self) -> None:
        """End claims that have expired, as their processes are gone. No store call if there are no claims."""
        if self.shard.known().claims:
            self.shard.run(maintenance.end_expired)

    def _release(self, claim: MergeClaim) -> None:
        self.shard.run(partial(maintenance.release_claim, claim=claim))

    def _discard(self, parts: Sequence[Part]) -> None:
        """Delete parts that certainly no state names: a command was refused on the newest state."""
        if parts:
            discard(self.shard.stores.blobs, self.shard.env, [Run(tuple(parts))])


def _folded(members: Sequence[Member]) -> Frontier:
    """The latest `since` that the rows of some members were folded to; members without runs do not count."""
    sinces = [member.batch.bounds.since for member in members if member.batch.runs]
    return reduce(Frontier.join, sinces or [members[0].batch.bounds.since])


# At most this much is merged without tasks and threads.
_TINY_ROWS = 65_536
_TINY_BYTES = 4 * 1024 * 1024
UNFINISHED = MergeReport(
    False, MergeShape(), MergeShape(), reason="the other key ranges follow later", unfinished=True
)
NOT_MERGED = MergeReport(False, MergeShape(), MergeShape(), reason="a sum does not fit")


def _skipped(reason: str) -> MergeReport:
    return MergeReport(False, MergeShape(), MergeShape(), reason=reason)


def _shape(members: Sequence[Member], runs: Sequence[Run]) -> MergeShape:
    return replace(MergeShape.of([HollowBatch(members[0].batch.bounds, tuple(runs))]), batches=len(members))


def _sources(members: Sequence[Member]) -> list[Source]:
    return [Source.of(run, member.batch) for member in members for run in member.batch.runs]


def _parts(output: bytes) -> tuple[Part, ...]:
    return decode_run(output).parts if output else ()
