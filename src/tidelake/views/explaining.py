"""A plan for people: the stages of a view, what each reads at a refresh, and which one reads all."""

from collections.abc import Sequence
from dataclasses import dataclass

from tidelake.lake.api.collection import Collection
from tidelake.model.frontier import Frontier
from tidelake.state.core.owned import parts_owner
from tidelake.tabletext import FieldsAsHtml, as_text
from tidelake.views.definition import Definition
from tidelake.views.inputs import Input
from tidelake.views.plan import (
    Constant,
    Count,
    FromCollection,
    Join,
    Map,
    Redo,
    Stage,
    Union,
    ViewPlan,
    inputs,
    recomputes_whole,
)
from tidelake.views.refreshed import Refreshed, from_message

_COMMITS = 16
"""So many commits are looked at: a group writes and closes by two, and columns may have changed."""


@dataclass(frozen=True)
class Explained(FieldsAsHtml):
    """What a view computes.

    Attributes:
        view: its name.
        sql: its query.
        engine: who computes it.
        birth: the first time of its contents.
        upper: of the view.
        stages: a line for each stage: number, kind, inputs, what it does.
        whole: numbers of the stages that compute all of their input again with each change: they have no
            columns by which they group, so each change is in their only group.
        inputs: of the query: name, upper, and how many times of it the view has not seen yet.
        kept: what the view keeps beside itself, and its indexes: what it is, stored updates and bytes.
        notes: what the plan decided where SQL leaves a choice.
        last: what the last refresh did, until its commit; None: the log of the view does not tell.
    """

    view: str
    sql: str
    engine: str
    birth: int
    upper: Frontier
    stages: tuple[tuple[int, str, str, str], ...]
    whole: tuple[int, ...]
    inputs: tuple[tuple[str, Frontier, int], ...]
    kept: tuple[tuple[str, int, int], ...]
    notes: tuple[str, ...]
    last: Refreshed | None = None

    def __str__(self) -> str:
        lines = [f"view {self.view}, from {self.birth}, upper {self.upper}, by {self.engine}"]
        lines += [as_text(["stage", "rule", "of", "what"], self.stages)]
        why = "computes all of its input again with each change, which is in its only group"
        lines += [f"stage {number} {why}" for number in self.whole]
        lines += [as_text(["input", "upper", "not seen yet"], self.inputs)]
        lines += [as_text(["kept", "updates", "bytes"], self.kept)] if self.kept else []
        if self.last is not None:
            by = f", by the {self.last.place}" if self.last.place else ""
            lines.append(f"last refresh: wrote {self.last.rows:,} updates in {self.last.took_s:.3f} s{by}")
            lines.append(as_text(["stage", "rows read", "updates", "how"], self.last.stages))
        return "\n".join([*lines, *self.notes])


def last_refresh(view: Collection) -> Refreshed | None:
    """What the last refresh of a view did, as the log of the view tells it. A log scan."""
    for entry in view.commits(_COMMITS):
        done = from_message(entry.message, view.id, view.name)
        if done is not None:
            # A later one of several views may have written to others only.
            return done if done.upper == view.upper else None
    return None


def explained(
    view: Collection,
    definition: Definition,
    plan: ViewPlan,
    inputs_: Sequence[Input],
    kept: Sequence[Collection],
) -> Explained:
    """The stages of a view, what it waits for and what it keeps, for people."""
    upper = view.upper
    stages = tuple(
        (number, type(stage).__name__.lower(), ", ".join(map(str, inputs(stage))), _what(stage))
        for number, stage in enumerate(plan.stages)
    )
    return Explained(
        view.name,
        definition.sql,
        definition.engine,
        definition.birth,
        upper,
        stages,
        tuple(number for number, stage in enumerate(plan.stages) if recomputes_whole(stage)),
        tuple((one.collection.name, one.upper, definition.behind(upper, one.upper)) for one in inputs_),
        tuple(map(_kept, kept)),
        plan.notes,
        last_refresh(view),
    )


def _kept(one: Collection) -> tuple[str, int, int]:
    totals, part = one.state().spine.totals, parts_owner(one.name)
    return one.name.partition(": ")[2] if part else one.name, totals.rows, totals.size_bytes


def _what(stage: Stage) -> str:
    match stage:
        case FromCollection(collection, _, names):
            return f"{collection} ({', '.join(names)})"
        case Constant(sql):
            return sql
        case Map(_, select, where):
            return ", ".join(select) + (f" WHERE {where}" if where else "")
        case Union():
            return "all rows"
        case Join(_, equals, where):
            return " AND ".join([*(one.sql for one in equals), *([where] if where else [])]) or "all pairs"
        case Count(_, keys):
            return f"sums by ({', '.join(keys)})"
        case Redo(_, keys, _, calls):
            return f"{', '.join(call.function for call in calls) or 'rows'} by ({', '.join(keys)})"
