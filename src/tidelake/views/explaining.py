"""A plan for people: the stages of a view, what each reads at a refresh, and which one reads all."""

from dataclasses import dataclass

from tidelake.model.frontier import Frontier
from tidelake.tabletext import FieldsAsHtml, as_text
from tidelake.views.definition import Definition
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
        whole: numbers of the stages that compute all of their input again with each change.
        notes: what the plan decided where SQL leaves a choice.
    """

    view: str
    sql: str
    engine: str
    birth: int
    upper: Frontier
    stages: tuple[tuple[int, str, str, str], ...]
    whole: tuple[int, ...]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"view {self.view}, from {self.birth}, upper {self.upper}, by {self.engine}"]
        lines += [as_text(["stage", "rule", "of", "what"], self.stages)]
        lines += [f"stage {number} computes all of its input again with each change" for number in self.whole]
        return "\n".join([*lines, *self.notes])


def explained(view: str, definition: Definition, plan: ViewPlan, upper: Frontier) -> Explained:
    """The stages of a view, for people."""
    stages = tuple(
        (number, type(stage).__name__.lower(), ", ".join(map(str, inputs(stage))), _what(stage))
        for number, stage in enumerate(plan.stages)
    )
    whole = tuple(number for number, stage in enumerate(plan.stages) if recomputes_whole(stage))
    return Explained(
        view, definition.sql, definition.engine, definition.birth, upper, stages, whole, plan.notes
    )


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
