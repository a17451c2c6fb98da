"""Offsets of a streaming read, as stored in Spark's checkpoint: JSON with a format number.

There are two kinds. `Begin` is the start of a query that has read nothing yet. It has the option as given,
not the frontier it leads to, because Spark asks for it several times and stores only the ends of batches.
`Position` is the end of a batch: an exact frontier, the id of the hold that keeps history for the query and,
for a batch that starts at a `Begin`, the frontier of that start. So every batch that was stored can be
repeated.

Owns the JSON; must not know collections. The same offset is always the same text.
"""

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from tidelake.errors import FormatTooNew, UsageError
from tidelake.model.frontier import Frontier
from tidelake.model.time import TIME_MAX

FORMAT = 1
SNAPSHOT: Literal["snapshot"] = "snapshot"
LATEST: Literal["latest"] = "latest"
# A frontier: all times at or after it, and none before.
Start: TypeAlias = Literal["snapshot", "latest"] | Frontier
Json: TypeAlias = dict[str, Any]
_NAME = "an offset of the query's checkpoint"


@dataclass(frozen=True)
class Begin:
    """Nothing was read yet.

    Attributes:
        collection: the id of its shard.
        start: where the query is to start.
    """

    collection: str
    start: Start


@dataclass(frozen=True)
class Position:
    """All times before a frontier were read.

    Attributes:
        collection: the id of its shard.
        hold: id of the hold that keeps history for the query.
        frontier: the exact end.
        first: only for the first batch: `"snapshot"`, if it is the snapshot just before `frontier`, or the
            frontier at which its updates begin. None for all later batches.
    """

    collection: str
    hold: str
    frontier: Frontier
    first: Literal["snapshot"] | Frontier | None = None


Offset: TypeAlias = Begin | Position


def to_json(offset: Offset) -> Json:
    """The JSON that Spark stores."""
    head: Json = {"tidelake": FORMAT, "collection": offset.collection}
    if isinstance(offset, Begin):
        return {**head, "startingAt": _start(offset.start)}
    at = {**head, "hold": offset.hold, "frontier": list(offset.frontier)}
    return at if offset.first is None else {**at, "first": _start(offset.first)}


def from_json(data: object) -> Offset:
    """Parse the output of `to_json`."""
    if not isinstance(data, dict):
        raise _foreign(data)
    found = data.get("tidelake")
    if isinstance(found, bool) or not isinstance(found, int) or found < 1:
        raise _foreign(data)
    if found > FORMAT:
        raise FormatTooNew(_NAME, found, FORMAT)
    collection = _text(data, "collection")
    if "startingAt" in data:
        return Begin(collection, _started(data, "startingAt"))
    first = _started(data, "first") if "first" in data else None
    if first == LATEST:
        raise _foreign(data)
    return Position(collection, _text(data, "hold"), _frontier(data, "frontier"), first)


def _start(start: Start) -> object:
    return list(start) if isinstance(start, Frontier) else start


def _started(data: Json, name: str) -> Start:
    value = data[name]
    if value == SNAPSHOT:
        return SNAPSHOT
    return LATEST if value == LATEST else _frontier(data, name)


def _text(data: Json, name: str) -> str:
    value = data.get(name)
    if not isinstance(value, str) or not value:
        raise _foreign(data)
    return value


def _frontier(data: Json, name: str) -> Frontier:
    value = data.get(name)
    if not isinstance(value, list) or len(value) > 1 or not all(_is_time(t) for t in value):
        raise _foreign(data)
    return Frontier(tuple(value))


def _is_time(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= TIME_MAX


def _foreign(data: object) -> UsageError:
    return UsageError(
        f"{data!r} is no offset of a Tidelake stream: the checkpoint is of another source, or was edited; "
        "give the query a checkpoint of its own"
    )
