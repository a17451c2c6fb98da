"""One collection's share of a transaction: its rows are uploaded and staged, where they await the decision.

Who decides, and where, is `tidelake.lake.groups`; what the commands promise is `tidelake.state.transactions`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from tidelake.errors import UploadExpired, UpperMismatch
from tidelake.model.batch import Run
from tidelake.model.frontier import Frontier
from tidelake.shard.runs.upload import check_times, normalized, write_table
from tidelake.shard.shard import Shard
from tidelake.shard.spec import ShardSpec
from tidelake.shard.upkeep.drainer import Drainer
from tidelake.shard.upkeep.maintain import admit
from tidelake.shard.writing.append import commit_floor, under_newest_schema
from tidelake.shard.writing.stage import offer_staged
from tidelake.state import transactions
from tidelake.state.commands import Outcome
from tidelake.state.staged import Awaited


@dataclass(frozen=True)
class Stay:
    """The time that a collection is in a group: the id of that, and since which state of it."""

    group: str
    joined: int


Ask: TypeAlias = Callable[..., Outcome[bool]]


def has_times(shard: Shard, given: pa.Table) -> bool:
    """Whether rows say when they are."""
    return bool(set(shard.spec.domain.columns) & set(given.column_names))


def prepare(
    shard: Shard, stay: Stay, awaited: Awaited, given: pa.Table, time: int | None = None
) -> tuple[int, int] | None:
    """Upload rows and stage them for a transaction. One log write, and one `put` a part that is not tiny.

    Args:
        shard: of the collection, in the group.
        stay: in its group.
        awaited: the transaction.
        given: the rows. Without times they are written at `time`, or at the first one that is open.
        time: of all rows.

    Returns:
        The first and the last time of the rows; None: there are none.

    Raises:
        UpperMismatch: `time` is closed.
        LeftGroup: the collection is in the group no more, or came back to it since.
        UpdateNotBeyondLower: a time of the rows is closed.
        InvalidUpdates: the table does not fit the collection.
    """
    ask = partial(transactions.prepare, group=stay.group, joined=stay.joined, awaited=awaited)
    return under_newest_schema(shard, lambda spec: _prepared(shard, spec, ask, given, time))


def _prepared(
    shard: Shard, spec: ShardSpec, ask: Ask, given: pa.Table, time: int | None
) -> tuple[int, int] | None:
    state = shard.readable()
    timed = has_times(shard, given)
    at = None if timed else commit_floor(shard, state) if time is None else time
    table = normalized(spec, given, at)
    if not table.num_rows:
        return None
    if at is not None and not state.upper.less_equal(at):
        raise UpperMismatch(Frontier.of(at), state.upper)
    check_times(table, spec.domain, state.upper, None)
    admit(shard)
    Drainer(shard).make_room()

    def attempt(runs: tuple[Run, ...]) -> bool:
        limit = spec.config.inline_total_bytes
        # What gets its time at the commit may be written at one that is closed meanwhile.
        return shard.run(
            partial(ask, runs=runs, checked=state.upper, movable=not timed, inline_bytes_max=limit)
        )

    try:
        offer_staged(shard, write_table(spec, shard.stores.blobs, shard.env, table), attempt)
    except UploadExpired:
        # The refusal was made on the newest state, which the next upload names.
        spec = replace(spec, seqno=shard.known().seqno)
        offer_staged(shard, write_table(spec, shard.stores.blobs, shard.env, table), attempt)
    ends = pc.min_max(table.column(spec.domain.columns[0])).as_py()
    return ends["min"], ends["max"]
