"""The output of `show` and `ls`: the state of a collection, as lists of rows.

Must not know how rows are printed; `tidelake.cli.output` does that.
"""

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import click

from tidelake.cli import jsonlines, output
from tidelake.cli.output import TimeCell, timed
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.handle import shard_of
from tidelake.model import time as times
from tidelake.model.query import AsOf
from tidelake.shard.upkeep.reports import MergeShape
from tidelake.state.core.forks import borrowed_parts
from tidelake.state.core.state import ShardState, WriterRecord
from tidelake.state.spine.bases import needed
from tidelake.state.spine.space import live_rows_min
from tidelake.state.upkeep.claims import living
from tidelake.timetext import span

_LINES_MAX = 40
# `show` does not read a larger collection to count its rows with negative multiplicity.
_COUNTED_ROWS_MAX = 1_000_000

Line = dict[str, Any]
"""Values by column."""

Names = Callable[[], dict[str, str]]
"""Returns the names of collections by id."""


def summary(collection: Collection) -> Line:
    """One row on a collection, as readers see it: with what its group has decided and it has not applied."""
    state = shard_of(collection).version().state
    line = {
        "collection": collection.name,
        "time": str(state.domain),
        "since": state.since,
        "upper": state.upper,
        **counts(MergeShape.of([item.batch for item in state.spine])),
    }
    return timed(line, state.domain)


def counts(shape: MergeShape) -> Line:
    """The sizes of a collection."""
    return {
        "batches": shape.batches,
        "runs": shape.runs,
        "parts": shape.parts,
        "updates": shape.rows,
        "bytes": shape.size_bytes,
    }


def amplification(state: ShardState) -> dict[str, float | None]:
    """Bytes written per byte appended, and an upper bound of updates stored per live update.

    The bound is computed from the counts in the state; None if they give no bound.
    """
    written, live = state.written, live_rows_min(list(state.spine), state.since)
    appended = written.appended_bytes
    stored = state.spine.totals.rows + sum(run.rows for base in state.bases for run in base.runs)
    return {
        "write amplification": round((appended + written.merged_bytes) / appended, 2) if appended else None,
        "space amplification at most": round(stored / live, 2) if live else None,
    }


def show_collection(collection: Collection, as_json: bool, names: Names = dict) -> None:
    """Print the state of a collection."""
    state = shard_of(collection).version().state
    group, awaited = _group(collection, names)
    lists = [
        # Name in JSON, title of the table, rows.
        ("columns", "columns", _columns(state)),
        ("spine", "batches", _batches(state)),
        ("bases", "bases", _bases(state)),
        ("staged", "staged batches", _staged(state)),
        ("writers", "writers", _writers(collection.writers())),
        ("holds", "holds", _holds(state)),
        ("claims", "merges under way", claims(state, collection.distributed.env.clock.now_ms())),
        ("shared", "shared parts", _shared(state, names)),
        ("group", "group", group),
        ("awaiting", "awaiting transactions", awaited),
    ]
    lists = [(name, title, [timed(one, state.domain) for one in lines]) for name, title, lines in lists]
    waits = {"drained": TimeCell(state.drained, state.domain), "staged updates": state.staged.totals.rows}
    history = _history(state)
    head = {
        **summary(collection),
        "id": collection.id,
        "seqno": state.seqno,
        # Left out of the table if nothing is staged, which keeps it narrow.
        **(waits if as_json or len(state.staged) else {}),
        **(history if as_json else {}),
        **amplification(state),
    }
    negative = _negative(collection, state)
    if as_json:
        garbage = len(state.garbage) + len(state.doomed)
        kept = {"retention": state.retention.window, "garbage": garbage, "negative_rows": negative}
        parts = {name: [output.with_lists(line) for line in lines] for name, _, lines in lists}
        click.echo(jsonlines.dump({**output.with_lists(head), **kept, **parts}))
        return
    output.table([head], False)
    if state.retention.window is not None:
        window = span(state.retention.window, state.domain.unit)
        click.echo(f"retention: since follows upper at a distance of {window}")
    if state.spine.slices:
        click.echo("history: " + ", ".join(f"{name} {number:,}" for name, number in history.items()))
    if negative:
        click.echo(f"rows with negative multiplicity: {negative:,}")
    for _, title, lines in lists:
        _print_last(title, lines)
    if state.garbage or state.doomed:
        waiting = {"objects that nothing names": len(state.garbage), "being deleted": len(state.doomed)}
        _print_last("garbage", [waiting])


def _history(state: ShardState) -> dict[str, int]:
    """How history is stored, and how many updates a snapshot of the newest closed time reads at most."""
    newest = None if state.upper.closed else state.upper.elements[0]
    reads = needed(state, AsOf(newest - 1)).rows if isinstance(newest, int) and newest else 0
    rows = sum(run.rows for base in state.bases for run in base.runs)
    return {
        "slices": len(state.spine.slices),
        "bases": len(state.bases),
        "rows of bases": rows,
        "newest snapshot reads": reads,
    }


def _negative(collection: Collection, state: ShardState) -> int | None:
    """The number of rows with negative multiplicity; None if they are not counted."""
    if state.spine.totals.rows + state.staged.totals.rows > _COUNTED_ROWS_MAX or not state.domain.total_order:
        return None
    return collection.negative_rows()


def _print_last(title: str, lines: list[Line]) -> None:
    """Print the last rows of a list as a table; nothing if it is empty."""
    if lines:
        click.echo()
        shown = title if len(lines) <= _LINES_MAX else f"last {_LINES_MAX} {title}"
        output.table(lines[-_LINES_MAX:], False, shown)


def _columns(state: ShardState) -> list[Line]:
    return [
        {"column": c.name, "type": str(c.type), "role": role, "nullable": c.nullable}
        for role, columns in (("key", state.schema.key), ("value", state.schema.value))
        for c in columns
    ]


def _batches(state: ShardState) -> list[Line]:
    return [
        {
            "ids": f"[{item.id.lo}, {item.id.hi})",
            "lower": item.batch.bounds.lower,
            "upper": item.batch.bounds.upper,
            "since": item.batch.bounds.since,
            "runs": len(item.batch.runs),
            "parts": sum(1 for _ in item.batch.parts()),
            "updates": item.batch.rows,
            "bytes": item.batch.size_bytes,
            "inline": item.batch.inline_bytes,
            "level": getattr(state.spine.holder(item.id), "level", None),
        }
        for item in state.spine
    ]


def _bases(state: ShardState) -> list[Line]:
    """One row for each base."""
    return [
        {
            "boundary": base.hi,
            "at": TimeCell(base.at, state.domain),
            "parts": sum(len(run.parts) for run in base.runs),
            "rows": sum(run.rows for run in base.runs),
            "bytes": sum(run.size_bytes for run in base.runs),
        }
        for base in state.bases
    ]


def _staged(state: ShardState) -> list[Line]:
    return [
        {
            "staged": one.name,
            "first time": TimeCell(
                reduce(times.meet, (part.seen_times[0] for part in one.batch.parts())), state.domain
            ),
            "last time": TimeCell(
                reduce(times.join, (part.seen_times[1] for part in one.batch.parts())), state.domain
            ),
            "runs": len(one.batch.runs),
            "updates": one.batch.rows,
            "bytes": one.batch.size_bytes,
            "inline": one.batch.inline_bytes,
        }
        for one in state.staged
    ]


def _writers(known: Mapping[str, WriterRecord]) -> list[Line]:
    return [
        {"writer": name, "epoch": w.epoch, "sequence": w.sequence, "owner": w.owner, "upper": w.upper}
        for name, w in sorted(known.items())
    ]


def _holds(state: ShardState) -> list[Line]:
    """One row for each hold, leased ones first."""
    leased = [
        {"hold": key, "kind": "leased", "purpose": h.purpose, "since": h.since, "opened_ms": h.opened_ms}
        for key, h in sorted(state.holds.items())
    ]
    critical = [
        {"hold": name, "kind": "critical", "purpose": "", "since": h.since, "opened_ms": h.opened_ms}
        for name, h in sorted(state.critical.items())
    ]
    return leased + critical


def claims(state: ShardState, now_ms: int) -> list[Line]:
    """One row for each merge in progress."""
    return [
        {
            "claim": f"[{claim.id.lo}, {claim.id.hi})",
            "runner": claim.runner,
            "chunks": len(claim.cuts) + 1,
            "done": sum(1 for key in state.chunks if key.startswith(f"{claim.name}/")),
            "expires_ms": claim.expires_ms,
        }
        for claim in living(state, now_ms)
    ]


def _shared(state: ShardState, names: Names) -> list[Line]:
    """One row for each shard that a collection came from or that came from it: its origin, and its forks.

    For the origin, `parts` is the number of its parts that the collection still uses; for a fork, the number
    of objects that are kept only for forks.
    """
    if state.origin is None and not state.forks:
        return []
    named = names()
    lines = []
    if state.origin is not None:
        parts = list(borrowed_parts(state))
        lines.append(("forked from", state.origin.shard_id, state.origin.seqno, len(parts)))
    for id_, fork in sorted(state.forks.items()):
        kept = 0 if fork.freed else sum(1 for lost in state.garbage.values() if lost.read_by(fork.seqno))
        lines.append(("fork", id_, fork.seqno, kept))
    return [
        {"is": what, "collection": named.get(id_), "id": id_, "version": seqno, "parts": parts}
        for what, id_, seqno, parts in lines
    ]


def _group(collection: Collection, names: Names) -> tuple[list[Line], list[Line]]:
    """One row for each collection of its group, and one for each transaction not yet applied to it."""
    found = collection.group()
    if found is None:
        return [], []
    named = names()
    members = [
        {
            "collection": named.get(id_),
            "id": id_,
            "upper": member.upper.join(found.upper),
            "leaving": member.leaving,
        }
        for id_, member in sorted(found.memberships.items())
    ]
    awaited = [
        {
            "transaction": awaited.transaction,
            "staged": one.name,
            "updates": one.batch.rows,
            "decided": awaited.transaction in found.decisions,
            "noted_ms": awaited.noted_ms,
        }
        for one, awaited in collection.state().staged.awaiting()
    ]
    return members, awaited
