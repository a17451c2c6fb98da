"""A collection in plain values, as the page and other programs read them.

Every text of a user is safe to show (`tidelake.tabletext.printable`). A time is two texts: as it is stored, a
whole number that JavaScript would round, and as people write it. Must not know requests.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from tidelake.data.answer.timecells import texts
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.handle import shard_of
from tidelake.model.frontier import Frontier
from tidelake.model.schema import DIFF
from tidelake.model.time import Time, TimeDomain
from tidelake.shard.reading.commits import CommitEntry
from tidelake.shard.upkeep.maintain import Maintainer
from tidelake.shard.upkeep.measure import measured
from tidelake.state.core.owned import is_owner, is_part, owner_of, parts_owner
from tidelake.state.core.state import ShardState
from tidelake.state.spine.spine import Member
from tidelake.state.upkeep.claims import living
from tidelake.tabletext import printable, removals_first

Json: TypeAlias = dict[str, Any]

CELL_CHARS_MAX = 2_000
# Of all cells of an answer. In the bytes of JSON it is at most a few times as much.
TABLE_CHARS_MAX = 4_000_000
# What JSON adds to a cell.
_CELL_CHARS = 4
_TEXTS_ROWS = 64
# The end of a fraction of a second, which says nothing.
_ZEROS = re.compile(r"(:\d\d(?:\.\d*[1-9])?)\.?0+(Z?)$")
# More members of the spine are drawn together.
DRAWN_MAX = 300
LISTED_MAX = 200


def shown(name: str, known: Mapping[str, str]) -> str:
    """A collection's name to show; what a view keeps is called by the view's name, found by its id."""
    view = known.get(parts_owner(name))
    return printable(name if view is None else view + name[name.index(":") :])


def summary(collection: Collection) -> Json:
    """One line on a collection, as readers see it: with what its group has decided. Two log scans."""
    state = shard_of(collection).version().state
    gauges = measured(shard_of(collection), state)
    return {
        "name": collection.name,
        "unit": str(state.domain),
        "kind": "" if state.owned is None else "kept for a view" if is_part(state) else "view",
        "seqno": state.seqno,
        "since": frontier(state.since, state.domain),
        "upper": frontier(state.upper, state.domain),
        # Nothing can be read before a time is closed.
        "empty": state.upper == state.minimum,
        "gauges": {name.removeprefix("collection."): value for name, value in gauges.items()},
    }


def collection(of: Collection, known: Mapping[str, str]) -> Json:
    """Everything on a collection but its rows and commits. A few log scans."""
    state = shard_of(of).version().state
    return {
        **summary(of),
        "shown": shown(of.name, known),
        "id": of.id,
        "columns": [
            {"name": printable(c.name), "type": str(c.type), "role": role, "nullable": c.nullable}
            for role, columns in (("key", state.schema.key), ("value", state.schema.value))
            for c in columns
        ],
        "spine": spine(state),
        "due": [
            {"rows": one.rows, "bytes": one.size_bytes, "runs": one.sources, "base": one.base is not None}
            for one in Maintainer(shard_of(of)).due(state)[:LISTED_MAX]
        ],
        "running": [
            {
                "runner": claim.runner[:8],
                "chunks": len(claim.cuts) + 1,
                "done": sum(1 for key in state.chunks if key.startswith(f"{claim.name}/")),
                "base": claim.base is not None,
            }
            for claim in living(state, of.distributed.env.clock.now_ms())[:LISTED_MAX]
        ],
        "holds": holds(state, known),
        "origin": None
        if state.origin is None
        else _relative(state.origin.shard_id, state.origin.freed, known),
        "forks": [_relative(id_, one.freed, known) for id_, one in state.forks.items()][:LISTED_MAX],
        "erasures": [
            {
                "reason": printable(one.reason),
                "keys": one.count,
                "updates": one.rows,
                "asked_ms": one.asked_ms,
                "erased_ms": one.erased_ms or None,
                "gone_ms": one.gone_ms or None,
            }
            for one in sorted(state.erasures.values(), key=lambda one: -one.asked_ms)[:LISTED_MAX]
        ],
        "writers": [
            {"name": printable(name), "epoch": w.epoch, "sequence": w.sequence, "owner": printable(w.owner)}
            for name, w in sorted(of.writers().items())[:LISTED_MAX]
        ],
        "garbage": {"waiting": len(state.garbage), "being_deleted": len(state.doomed)},
        "retention": state.retention.window,
        "group": bool(state.group),
        "first": _first(state),
    }


def _first(state: ShardState) -> Json | None:
    """The earliest time that can be read and has an update; None: there is none, or times are tuples."""
    seen = [part.seen_times[0] for part in state.parts()]
    firsts = [first for first in seen if isinstance(first, int)]
    if not firsts or not state.since.elements or len(firsts) < len(seen):
        return None
    since = state.since.elements[0]
    return time(max(min(firsts), since if isinstance(since, int) else 0), state.domain)


def _relative(id_: str, freed: bool, known: Mapping[str, str]) -> Json:
    """A fork, or the origin of one: its name, if it has one, and whether they share no part any more."""
    name = known.get(id_)
    return {"name": name, "shown": printable(name or id_), "freed": freed}


def holds(state: ShardState, known: Mapping[str, str]) -> list[Json]:
    """Who keeps history, the oldest hold first; a view is called by its name."""
    views = {owner_of(id_): name for id_, name in known.items()} if any(map(is_owner, state.critical)) else {}
    found: list[Json] = [
        {
            "kind": kind,
            "purpose": printable(f"view {views[purpose]}" if purpose in views else purpose),
            "view": views.get(purpose),
            "since": frontier(since, state.domain),
            "opened_ms": opened,
            "expires_ms": expires,
        }
        for kind, purpose, since, opened, expires in (
            *(("leased", h.purpose, h.since, h.opened_ms, h.expires_ms) for h in state.holds.values()),
            *(("critical", name, h.since, h.opened_ms, None) for name, h in state.critical.items()),
        )
    ]
    return sorted(found, key=lambda hold: int(hold["opened_ms"]))[:LISTED_MAX]


def spine(state: ShardState) -> Json:
    """The batches in the order of time, with slices, levels and bases. Many slices are drawn together."""
    members = list(state.spine)
    width = -(-len(members) // DRAWN_MAX) if len(members) > DRAWN_MAX else 1
    drawn: list[Json] = []
    for member in members:
        holder = None if member.id.lo < state.spine.sliced else state.spine.holder(member.id)
        level = None if holder is None else holder.level
        last = drawn[-1] if drawn else None
        if last is not None and last["count"] < width and last["level"] == level:
            _join(last, member, state.domain)
        else:
            drawn.append(_member(member, level, state.domain, is_slice=member.id.lo < state.spine.sliced))
    return {
        "members": drawn,
        "together": width,
        "bases": [
            {"at": time(base.at, state.domain), "rows": sum(run.rows for run in base.runs)}
            for base in state.bases
        ][-DRAWN_MAX:],
        "staged": {"batches": len(state.staged), "updates": state.staged.totals.rows},
    }


def _member(member: Member, level: int | None, domain: TimeDomain, *, is_slice: bool) -> Json:
    batch = member.batch
    return {
        "kind": "slice" if is_slice else "level",
        "level": level,
        "lower": frontier(batch.bounds.lower, domain),
        "upper": frontier(batch.bounds.upper, domain),
        "rows": batch.rows,
        "bytes": batch.size_bytes,
        "runs": len(batch.runs),
        "count": 1,
    }


def _join(drawn: Json, member: Member, domain: TimeDomain) -> None:
    drawn["upper"] = frontier(member.batch.bounds.upper, domain)
    drawn["rows"] += member.batch.rows
    drawn["bytes"] += member.batch.size_bytes
    drawn["runs"] += len(member.batch.runs)
    drawn["count"] += 1


def commits(entries: Sequence[CommitEntry], domain: TimeDomain) -> list[Json]:
    """The log, newest commit first."""
    return [
        {
            "seqno": one.seqno,
            "committed_ms": one.committed_ms,
            "what": one.what,
            "writers": [printable(name) for name in one.writers],
            "rows": one.rows,
            "bytes": one.size_bytes,
            "upper": None if one.upper is None else frontier(one.upper, domain),
            "author": printable(one.author),
            "message": printable(one.message),
        }
        for one in entries
    ]


def time(value: Time, domain: TimeDomain) -> Json:
    """A time: as it is stored, and as people write it."""
    parts = value if isinstance(value, tuple) else (value,)
    return {"value": ",".join(map(str, parts)), "text": domain.text(value)}


def frontier(value: Frontier, domain: TimeDomain) -> Json:
    """A frontier; its value is null if it is closed or has several elements."""
    one = value.elements[0] if len(value.elements) == 1 else None
    return {"value": None if one is None else time(one, domain)["value"], "text": domain.text(value)}


def table(rows: pa.Table, domain: TimeDomain, key: Sequence[str] = ()) -> Json:
    """Rows as texts, column by column names; long texts are cut, and say how long they are.

    The rows end where they have `TABLE_CHARS_MAX` characters; there is at least one. With key columns, what
    went of a key comes before what came.
    """
    names = rows.schema.names
    cell_chars = max(1, min(CELL_CHARS_MAX, TABLE_CHARS_MAX // len(names)))
    shown: list[list[str | None]] = []
    room = TABLE_CHARS_MAX
    for batch in rows.to_batches(max_chunksize=_TEXTS_ROWS):
        columns = [
            [one and _ZEROS.sub(r"\1\2", one) for one in column.to_pylist()]
            if pa.types.is_timestamp(field.type)
            else column.to_pylist()
            for field, column in zip(batch.schema, texts(batch).columns, strict=True)
        ]
        for values in zip(*columns, strict=True):
            cells = [
                _cell(name, value, domain, cell_chars) for name, value in zip(names, values, strict=True)
            ]
            room -= sum(_CELL_CHARS + len(cell or "") for cell in cells)
            if room < 0 and shown:
                break
            shown.append(cells)
        if room < 0:
            break
    if key:
        at, places = names.index(DIFF), [names.index(name) for name in key]
        shown = [*removals_first(shown, lambda row: [row[i] for i in places], lambda row: int(row[at] or 0))]
    is_ = pa.types
    numeric = [is_.is_integer(t) or is_.is_floating(t) or is_.is_decimal(t) for t in rows.schema.types]
    return {"columns": [printable(name) for name in names], "numeric": numeric, "rows": shown}


def _cell(name: str, value: object, domain: TimeDomain, chars_max: int) -> str | None:
    if value is None:
        return None
    if name == "_time" and isinstance(value, int):
        return domain.text(value)
    text = value.hex() if isinstance(value, bytes) else str(value)
    if len(text) <= chars_max:
        return printable(text)
    return f"{printable(text[:chars_max])}… ({len(text):,} characters)"


def lake(place: str, version: str, counts: Mapping[str, int], *, read_only: bool) -> Json:
    """What the overview begins with."""
    return {"place": printable(place), "version": version, "read_only": read_only, **counts}
