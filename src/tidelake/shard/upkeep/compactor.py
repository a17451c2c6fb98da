"""Carries out one request: a merge, a base, or a cut by time, from reading its inputs to the commit.

Large work is claimed first and done chunk by chunk: a chunk is a range of keys, or of times in a cut. Each
finished chunk is recorded in the state, so a process that dies loses at most one. Small work needs no claim.
Parts that were written in vain are deleted if it is certain that no state names them, and left otherwise.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import pairwise

import pyarrow as pa

from tidelake.data.kernel.types import update_schema
from tidelake.env import LOG
from tidelake.errors import BlobNotFound, CorruptionError, InvalidUpdates
from tidelake.model.batch import HollowBatch, Part, Run
from tidelake.model.frontier import Frontier
from tidelake.model.query import AsOf, Fold, Updates
from tidelake.shard.engine.shard import Shard
from tidelake.shard.engine.spec import ShardSpec
from tidelake.shard.runs.plan import Task, between, cut_keys, decode_run, run_merge_task
from tidelake.shard.runs.read import KeyRange, Source, rows
from tidelake.shard.runs.upload import discard, write_rows
from tidelake.shard.upkeep.reports import MergeReport, MergeShape
from tidelake.state.core.codec import encode_record
from tidelake.state.core.commands import Command
from tidelake.state.core.state import MergeClaim, ShardState
from tidelake.state.spine.merging import Fit, MergeRequest, MergeResult, chosen
from tidelake.state.spine.spine import Member
from tidelake.state.upkeep import basing, claims, maintenance

# A merge that raises one of these fails at every try: a sum does not fit, or a part is lost or damaged.
SET_ASIDE = (InvalidUpdates, BlobNotFound, CorruptionError)


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


@dataclass(frozen=True)
class _Output:
    """What was written for a request.

    Attributes:
        pieces: the parts of each chunk, in the order of the chunks.
        claim: under which they were recorded; None if no state names them.
        resumed: number of chunks that had been recorded before.
    """

    pieces: Sequence[tuple[Part, ...]] = ()
    claim: MergeClaim | None = None
    chunks: int = 0
    resumed: int = 0

    @property
    def parts(self) -> tuple[Part, ...]:
        """All parts, in order."""
        return tuple(part for piece in self.pieces for part in piece)


@dataclass(frozen=True)
class _Work:
    """What a request needs, and what to do with its output.

    Attributes:
        request: a merge, a base or a cut by time.
        since: times of a merge are advanced to it; a base has the contents at its time.
    """

    spec: ShardSpec
    request: MergeRequest
    needed: list[Source]
    since: Frontier
    apply: Callable[[_Output], MergeReport]

    def tasks(self, cuts: tuple[bytes, ...], since: Frontier | None = None) -> list[Task]:
        """The tasks of all chunks."""
        if self.request.times:
            edges = [
                Frontier.of(self.spec.domain.minimum),
                *(Frontier.of(int(cut)) for cut in cuts),
                Frontier(),
            ]
            return [
                Task.of(self.spec, self.needed, KeyRange(), Updates(lower, upper))
                for lower, upper in pairwise(edges)
            ]
        query = Fold(since or self.since) if self.request.base is None else AsOf(self.request.base)
        return between(self.spec, self.needed, query, cuts)


@dataclass(frozen=True)
class _Result:
    """A merge that is to be committed.

    Attributes:
        command: puts the result in the place of its inputs.
        told: finishes the merge, given the answer to the command.
    """

    command: Command[Fit]
    told: Callable[[Fit], MergeReport]


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
        """Carry out a request, from reading its inputs to the commit of the result."""
        clock = self.shard.env.clock
        started_s = clock.monotonic_s()
        report = self._carried_out(request, rewrite=rewrite, chunk_rows=chunk_rows)
        self._count(report, clock.monotonic_s() - started_s)
        return report

    def _count(self, report: "MergeReport", seconds: float) -> None:
        recorder = self.shard.env.recorder
        if report.applied:
            recorder.count("merge")
            recorder.count("merge.rows.read", report.before.rows)
            recorder.count("merge.rows.written", report.after.rows)
            recorder.count("merge.bytes.read", report.before.size_bytes)
            recorder.count("merge.bytes.written", report.after.size_bytes)
            recorder.observe("merge.seconds", seconds)
            before, after = report.before.rows, report.after.rows
            LOG.info("%s: merged %d updates into %d in %.3f s", self.shard.title, before, after, seconds)
        elif not report.unpaid and not report.unfinished:
            recorder.count("merge.refused")

    def _carried_out(self, request: MergeRequest, *, rewrite: bool, chunk_rows: int | None) -> "MergeReport":
        state = self.shard.known()
        if request.base is not None or request.times:
            return self._made(state, request, chunk_rows)
        if state.spine.holder(request.id) is None or state.spine.tiling(request.id) is None:
            return _skipped("its inputs are no longer there")
        members = state.spine.range(request.id)
        runs = chosen(members, request.positions)
        if len(runs) == 1 and not rewrite and not runs[0].truncated:
            # One run and empty neighbours: nothing to read or write.
            return self._apply(request, members, _folded(members), _Output([runs[0].parts]))
        spec = self.shard.version_of(state).spec
        try:
            return self._merge(
                spec, request, members, runs, state.since, inline=not rewrite, chunk_rows=chunk_rows
            )
        except InvalidUpdates:
            # Sums that do not fit with times advanced to `since` may fit at the present times.
            if len(runs) == 1 or _folded(members) == state.since:
                raise
            return self._merge(spec, request, members, runs, _folded(members), inline=False)

    def merge_tiny(self, requests: Sequence[MergeRequest]) -> list[MergeReport]:
        """Carry out requests of few rows, and commit all their results at once, waiting for no other commit.

        Larger requests, and those that cannot be carried out, are passed over: `merge` says what is wrong.
        """
        clock, state, results = self.shard.env.clock, self.shard.known(), list[_Result]()
        spec = self.shard.version_of(state).spec
        started_s = clock.monotonic_s()
        for request in requests:
            if not self._is_tiny(request) or state.spine.tiling(request.id) is None:
                continue
            members = state.spine.range(request.id)
            runs = chosen(members, request.positions)
            needed = _needed(members, runs)
            try:
                output = _Output([self._tiny(spec, needed, Fold(state.since))], chunks=1)
            except SET_ASIDE:
                continue
            results.append(self._result(request, members, state.since, output))
        fits = self.shard.run_together([one.command for one in results]) if results else ()
        reports = [one.told(fit) for one, fit in zip(results, fits, strict=True)]
        for report in reports:
            self._count(report, (clock.monotonic_s() - started_s) / len(reports))
        return reports

    def _is_tiny(self, request: MergeRequest) -> bool:
        return request.rows <= self._tiny_rows and request.size_bytes <= _TINY_BYTES

    def _merge(
        self,
        spec: ShardSpec,
        request: MergeRequest,
        members: list[Member],
        runs: list[Run],
        since: Frontier,
        *,
        inline: bool,
        chunk_rows: int | None = None,
    ) -> MergeReport:
        needed = _needed(members, runs)
        if inline and self._is_tiny(request):
            return self._apply(
                request, members, since, _Output([self._tiny(spec, needed, Fold(since))], chunks=1)
            )

        def apply(output: _Output) -> MergeReport:
            folded = since if output.claim is None else output.claim.since
            return self._apply(request, members, folded, output)

        return self._carry_out(_Work(spec, request, needed, since, apply), chunk_rows)

    def _made(self, state: ShardState, request: MergeRequest, chunk_rows: int | None) -> MergeReport:
        """Make a base, or cut a slice."""
        if not maintenance.is_there(state, request):
            return _skipped("its inputs are no longer there")
        if request.times:
            batches = [member.batch for member in state.spine.range(request.id)]
        else:
            batches = basing.inputs(state, request)
        since = state.since if request.base is None else Frontier.of(request.base)

        def apply(output: _Output) -> MergeReport:
            runs = tuple(Run(parts) if parts else None for parts in output.pieces)
            command: Command[Fit]
            if request.times:
                result = MergeResult(request.id, (), request.inputs, since, None, request.times, runs)
                command = partial(maintenance.apply_merge, result=result, claim=output.claim)
            else:
                made = basing.Made(request, (Run(output.parts),) if output.parts else (), state.seqno)
                command = partial(basing.add_base, made=made, claim=output.claim)
            return self._finished(self.shard.run(command), MergeShape.of(batches), output.parts, output)

        needed = [source for batch in batches for source in _of(batch)]
        work = _Work(self.shard.version_of(state).spec, request, needed, since, apply)
        return self._carry_out(work, chunk_rows)

    def _carry_out(self, work: "_Work", chunk_rows: int | None) -> MergeReport:
        request = work.request
        cuts = self._cuts(work, chunk_rows)
        if request.rows <= self._config.merge_claim_rows and (not cuts or request.times):
            tasks = work.tasks(cuts)
            outputs = self._workers.run([encode_record("task", task) for task in tasks])
            return work.apply(_Output([_parts(output) for output in outputs], chunks=len(tasks)))
        claimed = self._claim(request, cuts, work.since)
        if claimed.claim is None:
            return _skipped("another process is merging it, or its inputs are no longer there")
        try:
            return self._claimed(work, claimed.claim, dict(claimed.chunks), whole=chunk_rows is None)
        except InvalidUpdates:
            # Release the claim: the merge would fail for every process that takes it over.
            self._release(claimed.claim)
            raise

    def _tiny(self, spec: ShardSpec, needed: list[Source], query: Fold) -> tuple[Part, ...]:
        """Merge a few rows in memory. Inline rows stay inline if the result takes no more bytes than they."""
        blobs = self.shard.stores.blobs
        table = pa.Table.from_batches(
            rows(spec, blobs, needed, query), update_schema(spec.schema, spec.domain)
        )
        room = sum(len(part.inline or b"") for source in needed for part in source.run.parts)
        run = write_rows(spec, blobs, self.shard.env, table, inline_bytes_max=room)
        return run.parts if run else ()

    def _cuts(self, work: "_Work", chunk_rows: int | None) -> tuple[bytes, ...]:
        request = work.request
        if request.times:
            return maintenance.cuts_at(request.times)
        held = self.shard.known().claims.get(f"{request.id.lo}-{request.id.hi}")
        if held is not None and maintenance.same_work(held, request):
            return held.cuts
        chunks = max(-(-request.size_bytes // self._config.part_target_bytes), self._workers.width)
        if chunk_rows is not None:
            chunks = max(chunks, -(-request.rows // chunk_rows))
        return cut_keys(work.spec, self.shard.stores.blobs, work.needed, chunks)

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

    def _claimed(
        self, work: "_Work", claim: MergeClaim, done: dict[int, tuple[Part, ...]], *, whole: bool
    ) -> MergeReport:
        tasks = work.tasks(claim.cuts, claim.since)
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
        return work.apply(_Output([done[i] for i in range(len(tasks))], claim, len(todo), resumed))

    def _record(self, claim: MergeClaim, index: int, parts: tuple[Part, ...]) -> bool:
        command = partial(claims.record_chunk, claim=claim, index=index, parts=parts, lease_ms=self._lease_ms)
        return self.shard.run(command)

    def _apply(
        self, request: MergeRequest, members: list[Member], since: Frontier, output: _Output
    ) -> MergeReport:
        result = self._result(request, members, since, output)
        return result.told(self.shard.run(result.command))

    def _result(
        self, request: MergeRequest, members: list[Member], since: Frontier, output: _Output
    ) -> "_Result":
        merged = Run(output.parts) if output.parts else None
        result = MergeResult(request.id, request.positions, request.inputs, since, merged)
        runs = chosen(members, request.positions)
        taken_in = {part.name for run in runs for part in run.parts}
        before = MergeShape(
            len(members), len(runs), sum(len(run.parts) for run in runs), request.rows, request.size_bytes
        )
        command = partial(maintenance.apply_merge, result=result, claim=output.claim)
        fresh = [part for part in output.parts if part.name not in taken_in]
        after = _shape(members[:1], [merged] if merged else [])

        def told(fit: Fit) -> MergeReport:
            report = self._finished(fit, before, fresh, output)
            return replace(report, after=after) if report.applied else report

        return _Result(command, told)

    def _finished(self, fit: Fit, before: MergeShape, fresh: Sequence[Part], output: _Output) -> MergeReport:
        """Report on a result that was offered, and delete what was written in vain."""
        chunks, resumed = output.chunks, output.resumed
        if fit.applied:
            runs = sum(1 for piece in output.pieces if piece)
            size = sum(part.rows for part in fresh), sum(part.size_bytes for part in fresh)
            return MergeReport(True, before, MergeShape(runs, runs, len(fresh), *size), chunks, resumed)
        if output.claim is None:
            self._discard(fresh)
        elif fit is not Fit.UNPAID:
            self._release(output.claim)
        return MergeReport(False, before, before, chunks, resumed, fit.value, unpaid=fit is Fit.UNPAID)

    def end_expired(self) -> None:
        """End claims that have expired, as their processes are gone. No store call if there are no claims."""
        if self.shard.known().claims:
            self.shard.run(claims.end_expired)

    def _release(self, claim: MergeClaim) -> None:
        self.shard.run(partial(claims.release_claim, claim=claim))

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


def _needed(members: Sequence[Member], runs: Sequence[Run]) -> list[Source]:
    """The sources of these runs of the members."""
    names = {run.parts[0].name for run in runs}
    return [one for member in members for one in _of(member.batch) if one.run.parts[0].name in names]


def _of(batch: HollowBatch) -> list[Source]:
    return [Source.of(run, batch) for run in batch.runs]


def _parts(output: bytes) -> tuple[Part, ...]:
    return decode_run(output).parts if output else ()
