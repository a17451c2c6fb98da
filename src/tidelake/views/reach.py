"""What a stage reads of its inputs just before a span: by which columns, and where those rows are found.

Owns what a view keeps beside itself: sums of groups, and rows by columns by which no input can be looked up.
Must not know who stores it.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from tidelake.views.leading import leading
from tidelake.views.plan import (
    Columns,
    Constant,
    Count,
    FromCollection,
    Join,
    Map,
    PlanColumn,
    Redo,
    Stage,
    Union,
    ViewPlan,
    count_at,
    quoted,
)

SUM = "HUGEINT"
_FOREMOST_MAX = 100
"""The values of so many rows of each group that changes are in memory."""
_REFERENCE = re.compile(r'(?:i0|g)\."((?:[^"]|"")*)"')


@dataclass(frozen=True)
class KeptStage:
    """Something of a stage that a view keeps, to be looked up by columns, ascending; without any, read whole.

    It is the `sums` of a count by its keys, or the rows of the stage, those of a key sorted as bytes by
    `order`, an expression over `i0`.
    """

    stage: int
    by: tuple[str, ...]
    sums: bool = False
    order: str | None = None

    def __str__(self) -> str:
        """For people, and as a part of a name."""
        order = "" if self.order is None else f" in order of {self.order}"
        return f"{'sums' if self.sums else 'rows'} of stage {self.stage} by ({', '.join(self.by)}){order}"


@dataclass(frozen=True)
class Need:
    """What a stage reads of an input just before a span.

    Of the input at a `place`, those rows whose columns `by` have the `values` of the input at the place
    `given`; without columns, all. `nulls` says for each whether NULL is looked for.
    """

    place: int
    by: tuple[str, ...]
    given: int
    values: tuple[str, ...]
    nulls: tuple[bool, ...]


@dataclass(frozen=True)
class Looked:
    """The rows are in a collection, which is looked up by these columns; none: it is read whole."""

    by: tuple[str, ...]


@dataclass(frozen=True)
class Computed:
    """The rows follow from those of the inputs: by number, which of their columns are those asked for."""

    inputs: tuple[tuple[int, tuple[str, ...]], ...]


@dataclass(frozen=True)
class Summed:
    """The rows follow from the sums of groups: which keys are the columns asked for."""

    by: tuple[str, ...]


Way: TypeAlias = Looked | Computed | Summed | KeptStage


def needs(stage: Stage, first: int) -> tuple[Need, ...]:
    """What a stage reads if the input at the place `first` changes, each behind the one that gives values."""
    match stage:
        case Count(keys=keys) | Redo(keys=keys):
            return (Need(0, keys, 0, keys, (True,) * len(keys)),)
        case Join(inputs=inputs):
            found, known = list[Need](), [first]
            while len(known) < len(inputs):
                left = [place for place in range(len(inputs)) if place not in known]
                best = max(
                    (_linked(stage, place, given) for place in left for given in known),
                    key=lambda one: len(one.by),
                )
                found.append(best)
                known.append(best.place)
            return tuple(found)
        case _:
            return ()


def _linked(stage: Join, place: int, given: int) -> Need:
    """What of one input meets rows of another one."""
    pairs: dict[str, tuple[str, bool]] = {}
    for one in stage.equals:
        if (one.left, one.right) == (given, place):
            pairs.setdefault(one.right_column, (one.left_column, one.nulls))
        elif (one.left, one.right) == (place, given):
            pairs.setdefault(one.left_column, (one.right_column, one.nulls))
    values, nulls = [value for value, _ in pairs.values()], [null for _, null in pairs.values()]
    return Need(place, tuple(pairs), given, tuple(values), tuple(nulls))


@dataclass(frozen=True)
class Reach:
    """Where rows of the stages of a plan are found.

    Attributes:
        plan: the stages.
        keys: the key of the collection, by the number of its stage, as columns of the stage. A stage without
            one of the key columns is not in it.
        indexes: likewise, the keys of its indexes.
        has_sort_keys: whether the engine tells an order as bytes, and the first values of a group.
    """

    plan: ViewPlan
    keys: Mapping[int, tuple[str, ...]]
    has_sort_keys: bool = True
    indexes: Mapping[int, tuple[tuple[str, ...], ...]] = field(default_factory=dict)

    def to_redo(self, stage: Redo) -> Way:
        """Where the rows of a group are found that is computed again. Kept ones may be in an order."""
        orders = leading(stage)
        if not self.has_sort_keys or not stage.keys or len(orders) != 1:
            return self.way(stage.input, stage.keys)
        # An index is in no order, so that it gives all rows of a group.
        way = replace(self, indexes={}).way(stage.input, stage.keys)
        return replace(way, order=orders[0].by) if isinstance(way, KeptStage) else way

    def tells_moved(self, stage: Redo) -> bool:
        """Whether it can be told of which groups the first rows say nothing new."""
        orders = leading(stage)
        return self.has_sort_keys and bool(orders) and orders[0].most <= _FOREMOST_MAX

    def way(self, number: int, by: tuple[str, ...]) -> Way:
        """Where the rows of a stage with some values in columns are found. There may be more than these."""
        kept = KeptStage(number, tuple(sorted(by)))
        match self.plan.stages[number]:
            case Constant():
                return Computed(())
            case FromCollection():
                if not by:
                    return Looked(())
                keys = (self.keys.get(number, ()), *self.indexes.get(number, ()))
                return next((Looked(key) for key in keys if key and {*key} <= {*by}), kept)
            case Map() as stage:
                return self._through(((stage.input, _inner(stage, by)),)) or kept
            case Union() as stage:
                names = [column.name for column in stage.columns]
                at = [names.index(one) for one in by]
                return (
                    self._through(
                        tuple(
                            (one, tuple(self.plan.stages[one].columns[i].name for i in at))
                            for one in dict.fromkeys(stage.inputs)
                        )
                    )
                    or kept
                )
            case Count() as stage:
                inner = _inner(stage, by)
                if not by or not stage.keys:
                    return Summed(())
                return Summed(inner) if inner is not None and {*stage.keys} <= {*inner} else kept
            case Join() | Redo():
                return kept

    def kept(self) -> tuple[KeptStage, ...]:
        """All that a view keeps for its plan."""
        return tuple(dict.fromkeys(self._kept()))

    def _kept(self) -> Iterator[KeptStage]:
        for number, stage in enumerate(self.plan.stages):
            match stage:
                case Count():
                    yield sums_of(self.plan, number)
                case Join(inputs=inputs):
                    for first in range(len(inputs)):
                        for need in needs(stage, first):
                            yield from self._of(inputs[need.place], need.by)
                case Redo():
                    way = self.to_redo(stage)
                    if isinstance(way, KeptStage):
                        yield way
                case FromCollection() | Constant() | Map() | Union():
                    pass

    def _of(self, number: int, by: tuple[str, ...]) -> Iterator[KeptStage]:
        way = self.way(number, by)
        if isinstance(way, KeptStage):
            yield way

    def _through(self, inputs: tuple[tuple[int, tuple[str, ...] | None], ...]) -> Computed | None:
        """By way of the inputs, if nothing has to be kept for it."""
        known = tuple((one, by) for one, by in inputs if by is not None)
        if len(known) < len(inputs) or any(isinstance(self.way(one, by), KeptStage) for one, by in known):
            return None
        return Computed(known)


def columns_of(plan: ViewPlan, kept: KeptStage) -> Columns:
    """The columns of what is kept."""
    return sum_columns(plan, kept.stage) if kept.sums else plan.stages[kept.stage].columns


def sum_columns(plan: ViewPlan, number: int) -> Columns:
    """The columns of the sums of a count: its keys, and its sums by name."""
    stage = count_at(plan, number)
    types = {column.name: column for column in plan.stages[stage.input].columns}
    return (*(types[key] for key in stage.keys), *(PlanColumn(one.name, SUM) for one in stage.sums))


def sums_of(plan: ViewPlan, number: int) -> KeptStage:
    """The sums of a count."""
    return KeptStage(number, tuple(sorted(count_at(plan, number).keys)), sums=True)


def _inner(stage: Map | Count, by: tuple[str, ...]) -> tuple[str, ...] | None:
    """The columns of the input, or the keys, that columns of a stage are; None: some are computed."""
    text = {column.name: one for column, one in zip(stage.columns, stage.select, strict=True)}
    found = [_REFERENCE.fullmatch(text[one]) for one in by]
    names = tuple(one[1].replace('""', '"') for one in found if one is not None)
    return names if len(names) == len(by) else None


def distinct(need: Need, table: str) -> str:
    """The query for the values to look for, as the columns to look in."""
    pairs = list(zip(need.by, need.values, need.nulls, strict=True))
    where = [f"{quoted(value)} IS NOT NULL" for _, value, null in pairs if not null]
    shown = ", ".join(f"{quoted(value)} AS {quoted(name)}" for name, value, _ in pairs)
    return f"SELECT DISTINCT {shown} FROM {table}" + (f" WHERE {' AND '.join(where)}" if where else "")
