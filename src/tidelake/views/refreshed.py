"""What a refresh did, for those who asked for it and for `Lake.explain`.

A refresh says it with the commit of its view, so that all processes know it while the log of the view has
that commit. It changes no state, and nothing depends on it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tidelake.lake.arguments.tokens import MESSAGE_BYTES_MAX
from tidelake.model.frontier import Frontier
from tidelake.tabletext import FieldsAsHtml

FORMAT = 1
_BEGIN = "refresh "


@dataclass(frozen=True)
class Refreshed(FieldsAsHtml):
    """What a refresh of one view did.

    Attributes:
        view: its name.
        lower: times from here on were computed.
        upper: the upper of the view now.
        already: there was nothing to do, or another refresh did it.
        rows: updates that were written.
        read: rows that were read, by the name of an input; where executors look up, those that are stored.
        stages: for each stage that had something to do its number, the rows read of it, its updates, and in
            which way the last of its rows were read or its groups computed.
        took_s: how long it took.
        waits_for: the inputs that are closed less far than others; the view cannot pass them.
        place: who had the rows, if the engine has a choice: the `driver` of Spark, or its `executors`.
    """

    view: str
    lower: Frontier
    upper: Frontier
    already: bool = False
    rows: int = 0
    read: dict[str, int] = field(default_factory=dict)
    stages: tuple[tuple[int, int, int, str], ...] = ()
    took_s: float = 0.0
    waits_for: tuple[str, ...] = ()
    place: str = ""


def as_message(done: Mapping[str, Refreshed]) -> str:
    """What refreshes of views did, by their ids, as a message of a commit; of many stages the sums only."""
    told = {
        id_: {
            "took_s": round(one.took_s, 6),
            "rows": one.rows,
            "read": one.read,
            "stages": one.stages,
            "waits_for": one.waits_for,
            "place": one.place,
            "lower": one.lower.elements,
            "upper": one.upper.elements,
        }
        for id_, one in done.items()
    }
    text = _BEGIN + json.dumps({"format": FORMAT, "views": told}, separators=(",", ":"))
    if len(text) <= MESSAGE_BYTES_MAX:
        return text
    short = {id_: replace(one, stages=()) for id_, one in done.items()}
    return as_message(short) if short != done else ""


def from_message(message: str, id_: str, view: str) -> Refreshed | None:
    """What a message says of the view of an id; None: nothing that this version knows."""
    found = json.loads(message.removeprefix(_BEGIN)) if message.startswith(_BEGIN + "{") else {}
    one = found["views"].get(id_) if found.get("format") == FORMAT else None
    if one is None:
        return None
    lower, upper = (Frontier(tuple(one.pop(name))) for name in ("lower", "upper"))
    stages = tuple((*stage,) for stage in one.pop("stages"))
    return Refreshed(view, lower, upper, stages=stages, **one | {"waits_for": tuple(one["waits_for"])})
