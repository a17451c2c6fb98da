"""Stages tables: uploads parts first, then commits one write that keeps the parts beside the spine.

Stages never conflict with each other: a stage is refused only if one of its times is closed.
"""

from collections.abc import Sequence

import pyarrow as pa

from tidelake.data.ingest.astable import as_table
from tidelake.errors import UpperMismatch
from tidelake.model.frontier import Frontier
from tidelake.shard.engine.shard import Shard
from tidelake.shard.runs.upload import check_times, normalized
from tidelake.shard.upkeep.drainer import Drainer
from tidelake.shard.upkeep.tending import tend_if_due
from tidelake.shard.writing import committing
from tidelake.shard.writing.append import rechecks, with_fingerprint
from tidelake.shard.writing.batches import uploaded
from tidelake.shard.writing.uploads import Uploads, remade
from tidelake.state.write.idempotency import IdempotencyKey
from tidelake.state.write.write import Appended, OpenTimes, Write


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
    return remade(shard, lambda: _stage(shard, given, idempotency))


def _stage(shard: Shard, given: pa.Table, idempotency: IdempotencyKey | None) -> bool:
    spec = shard.version_of(shard.known()).spec
    table = normalized(spec, given)
    idempotency = with_fingerprint(idempotency, table)
    if committing.known_answer(shard, idempotency) is not None:
        return False
    # With a claim and outside a group, that has just read the newest state.
    checked = (shard.known() if idempotency and not shard.known().group else shard.version()).upper
    if checked.closed:
        raise UpperMismatch("any frontier", checked)
    check_times(table, spec.domain, checked, None)
    Drainer(shard).make_room()
    with Uploads.of(shard, spec, table) as uploads:
        write = Write((), OpenTimes(checked), idempotency, as_now=True)
        done = committing.carry_out(shard, write, rechecks(shard, table), uploads)
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

    write = Write((), OpenTimes(checked, seal_to), idempotency, offered=parts)
    with Uploads(shard, runs, owned=False) as found:
        done = committing.carry_out(shard, write, uploads=found)
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
