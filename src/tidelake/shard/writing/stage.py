"""Stages tables: uploads parts first, then commits one write that keeps the parts beside the spine.

Stages never conflict with each other: a stage is refused only if one of its times is closed.
"""

from collections.abc import Sequence
from functools import partial

import pyarrow as pa

from tidelake.data.ingest.astable import as_table
from tidelake.errors import UpperMismatch
from tidelake.model.batch import Run
from tidelake.model.frontier import Frontier
from tidelake.shard.engine.requests import Done
from tidelake.shard.engine.shard import Shard
from tidelake.shard.engine.spec import ShardSpec
from tidelake.shard.runs.upload import check_times, normalized
from tidelake.shard.upkeep.drainer import Drainer
from tidelake.shard.upkeep.tending import tend_if_due
from tidelake.shard.writing import committing
from tidelake.shard.writing.append import rechecks, with_fingerprint, write_of
from tidelake.shard.writing.batches import uploaded
from tidelake.shard.writing.uploads import Uploads, is_in_already, remade
from tidelake.state.write.idempotency import IdempotencyKey
from tidelake.state.write.write import Appended, OpenTimes, Write, already_in


def stage(shard: Shard, updates: object, idempotency: IdempotencyKey | None = None) -> bool:
    """Keep updates at open times: they are durable at once, and visible when their times are closed.

    One log write, and one `put` for each part that is not inline.

    Returns:
        False if nothing was written: there are no rows, or the claim's number is in.

    Raises:
        UpdateBeforeLower: a time is closed; nothing was written.
        UpperMismatch: all times are closed for good.
        InvalidUpdates: the table does not fit the collection.
    """
    given = as_table(updates)
    return remade(shard, lambda spec: _stage(shard, spec, given, idempotency))


def _stage(shard: Shard, spec: ShardSpec, given: pa.Table, idempotency: IdempotencyKey | None) -> bool:
    table = normalized(spec, given)
    idempotency = with_fingerprint(idempotency, table)
    known = (
        committing.preview(shard, partial(already_in, idempotency=idempotency), idempotency)
        if idempotency
        else None
    )
    if known is not None:
        return False
    # With a claim and outside a group, the preview has just read the newest state.
    checked = (shard.known() if idempotency and not shard.known().group else shard.version()).upper
    if checked.closed:
        raise UpperMismatch("any frontier", checked)
    check_times(table, spec.domain, checked, None)
    Drainer(shard).make_room()

    def attempt(runs: tuple[Run, ...]) -> Done[Appended]:
        write = write_of(shard, runs, OpenTimes(checked), idempotency, as_now=True)
        return committing.carry_out(shard, write, rechecks(shard, table))

    with Uploads.of(shard, spec, table) as uploads:
        done = uploads.offer(attempt, is_in_already)
        return bool(uploads.runs) and not done.result.already


def stage_uploaded(
    shard: Shard,
    uploads: Sequence[bytes],
    idempotency: IdempotencyKey | None = None,
    seal_to: Frontier | None = None,
) -> bool:
    """Stage uploads of workers, in one command; see `stage`. One log scan and one log write.

    With `seal_to`, the same command also closes all times before it, as `seal`; the staged rows before it are
    included.

    Uploads that are refused or not needed stay in the store until garbage collection finds them, since they
    may have been offered before. Times that are tuples must be checked by the uploader, against a lower that
    is still open.

    Raises:
        UpdateBeforeLower: a time is closed; nothing was written.
        UpperMismatch: times are tuples, and some were closed since the uploader was made; or all are closed.
    """
    runs, checked = uploaded(shard, uploads)
    shard.alive()
    Drainer(shard).make_room()
    parts = tuple(part for run in runs for part in run.parts)

    def attempt(offered: tuple[Run, ...]) -> Done[Appended]:
        write = write_of(shard, offered, OpenTimes(checked, seal_to), idempotency, offered=parts)
        return committing.carry_out(shard, write)

    with Uploads(shard, runs, owned=False) as found:
        done = found.offer(attempt, is_in_already)
    tend_if_due(shard, done)
    return bool(runs) and not done.result.already


def seal(shard: Shard, upper: Frontier, idempotency: IdempotencyKey | None = None) -> Appended:
    """Close all times before a frontier. Closed times stay closed. One log write.

    Updates that are staged at these times become visible at once. If they share parts with updates at later
    times, maintenance separates them; this call does a little of that work.
    """
    when = OpenTimes(Frontier.of(shard.spec.domain.minimum), upper)
    done = committing.carry_out(shard, Write((), when, idempotency))
    tend_if_due(shard, done)
    return done.result
