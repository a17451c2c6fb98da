"""A plan without what it does not need: stages that nothing reads, columns that nothing names, maps of maps.

Owns rewritings that change no answer; must not know SQL's syntax.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

from tidelake.views.plan import (
    Call,
    Constant,
    Count,
    FromCollection,
    Join,
    LinearSum,
    Map,
    Redo,
    Stage,
    Union,
    inputs,
    quoted,
)
from tidelake.views.query.stages import TIES, check_kept, ref
from tidelake.views.query.stages import Stages as _Stages
from tidelake.views.query.texts import references, replaced

_REPEATS = re.compile(r"\bunnest\s*\(", re.IGNORECASE)
_REFERENCE = re.compile(r'(i\d+|g)\."(?:[^"]|"")*"')


def pruned(stages: _Stages, last: int) -> list[Stage]:
    """The stages that the last one needs, each after its inputs.

    Maps are put into the stage that they read, if nothing else reads it. Columns that nothing names go. Where
    a window breaks ties, it is then known by which columns.

    Raises:
        UsageError: a stage has a column that no collection can have.
    """
    made = _numbered(_fused(stages.made, last))
    made = _numbered(_narrowed(made))
    # A column that only a condition read is gone, so more maps can be composed.
    made = _numbered(_fused(made, len(made) - 1))
    for stage in made:
        if not isinstance(stage, FromCollection):
            check_kept(stage.columns, "a part of the query")
    return made


def _numbered(made: Sequence[Stage]) -> list[Stage]:
    """The stages that the last one reads, equal ones once, with new numbers."""
    needed = {len(made) - 1}
    for number in range(len(made) - 1, -1, -1):
        if number in needed:
            needed.update(inputs(made[number]))
    moved: dict[int, int] = {}
    found: dict[Stage, int] = {}
    for number in sorted(needed):
        stage = _over(made[number], moved)
        moved[number] = found.setdefault(stage, len(found))
    # The answer is the last one, also if it equals another one.
    return list(found)[: moved[len(made) - 1] + 1]


def _over(stage: Stage, moved: dict[int, int]) -> Stage:
    """The stage with other numbers of its inputs."""
    match stage:
        case FromCollection() | Constant():
            return stage
        case Map() | Count() | Redo():
            return replace(stage, input=moved[stage.input])
        case Union() | Join():
            return replace(stage, inputs=tuple(moved[one] for one in stage.inputs))


def _fused(made: Sequence[Stage], last: int) -> list[Stage]:
    """The stages up to the last one, with maps in the stages that only they read."""
    found = list(made[: last + 1])
    readers: dict[int, int] = {}
    needed = {last}
    for number in range(last, -1, -1):
        if number in needed:
            for one in inputs(found[number]):
                needed.add(one)
                readers[one] = readers.get(one, 0) + 1
    for number, stage in enumerate(found):
        if number in needed and isinstance(stage, Map) and readers[stage.input] == 1:
            found[number] = _composed(stage, found[stage.input]) or stage
    return found


def _composed(outer: Map, inner: Stage) -> Stage | None:
    """One stage for a map of another stage; None: it is better to have two."""
    if isinstance(inner, FromCollection | Constant | Union) or (
        outer.sign != 1 and not isinstance(inner, Map)
    ):
        return None
    texts = [*outer.select, *([outer.where] if outer.where else [])]
    if any(_REPEATS.search(text) for text in (*texts, *inner.select)):
        return None
    given = {column.name: text for column, text in zip(inner.columns, inner.select, strict=True)}
    named = [name for text in texts for _, name in references(text)]
    # What is computed is computed once, and before a condition that may protect it.
    computed = {name for name, text in given.items() if not _REFERENCE.fullmatch(text)}
    if any(named.count(name) > 1 for name in computed):
        return None

    def inlined(text: str) -> str:
        return replaced(text, lambda _, name: given[name])

    select = tuple(inlined(text) for text in outer.select)
    where = None if outer.where is None else inlined(outer.where)
    match inner:
        case Count():
            if where is not None:
                # The condition is over the row, and holds only where there is one.
                times = f"CASE WHEN ({inner.times}) > 0 THEN CASE WHEN {where} THEN {inner.times} END END"
                return replace(inner, times=times, select=select, columns=outer.columns)
            return replace(inner, select=select, columns=outer.columns)
        case Redo() | Join():
            both = _both(inner.where, where)
            return replace(inner, where=both, select=select, columns=outer.columns)
        case Map():
            both = _both(inner.where, where)
            return Map(inner.input, select, both, outer.columns, inner.sign * outer.sign)


def _both(first: str | None, second: str | None) -> str | None:
    if first is None or second is None:
        return first or second
    return f"CASE WHEN {first} THEN {second} END"


def _narrowed(made: Sequence[Stage]) -> list[Stage]:
    """The stages without columns that nothing names."""
    wanted: list[set[str]] = [set() for _ in made]
    wanted[-1] = {column.name for column in made[-1].columns}
    for number in range(len(made) - 1, -1, -1):
        stage = made[number]
        wanted[number] |= _repeating(stage)
        if not wanted[number]:
            wanted[number] = {stage.columns[0].name}
        for one, names in _needs(stage, wanted[number], made):
            wanted[one] |= names
    found: list[Stage] = []
    moved: dict[int, int] = {}
    for number, stage in enumerate(made):
        kept = _kept(stage, wanted[number])
        if isinstance(kept, Union):
            at = [i for i, column in enumerate(stage.columns) if column.name in wanted[number]]
            kept = replace(kept, inputs=tuple(_projected(found, moved[n], made[n], at) for n in kept.inputs))
        else:
            kept = _over(kept, moved)
        if isinstance(kept, Redo):
            kept = _untied(kept, found[kept.input])
        moved[number] = len(found)
        found.append(kept)
    return found


def _repeating(stage: Stage) -> set[str]:
    """The columns that repeat a row for each item of a list: without them there are fewer rows."""
    if isinstance(stage, FromCollection | Constant | Union):
        return set()
    pairs = zip(stage.columns, stage.select, strict=True)
    return {column.name for column, text in pairs if _REPEATS.search(text)}


def _needs(stage: Stage, wanted: set[str], made: Sequence[Stage]) -> list[tuple[int, set[str]]]:
    """The columns of its inputs that a stage needs for some of its own."""
    texts = [] if isinstance(stage, FromCollection | Constant | Union) else _texts(stage, wanted)
    named = [one for text in texts for one in references(text)]
    match stage:
        case FromCollection() | Constant():
            return []
        case Map():
            return [(stage.input, {name for _, name in named})]
        case Union():
            at = [i for i, column in enumerate(stage.columns) if column.name in wanted]
            return [(one, {made[one].columns[i].name for i in at}) for one in stage.inputs]
        case Join():
            found: list[set[str]] = [set() for _ in stage.inputs]
            for number, name in named:
                found[number].add(name)
            for equal in stage.equals:
                found[equal.left].add(equal.left_column)
                found[equal.right].add(equal.right_column)
            return list(zip(stage.inputs, found, strict=True))
        case Count():
            sums = _sums(stage, wanted)
            used = {name for one in sums for _, name in references(one.value)}
            return [(stage.input, {*stage.keys, *used})]
        case Redo():
            calls = _calls(stage, wanted)
            used = {
                name for call in calls for text in (call.function, call.over) for _, name in references(text)
            }
            if not stage.aggregate:
                own = {call.name for call in stage.calls}
                used |= {name for _, name in named if name not in own}
            return [(stage.input, {*stage.keys, *used})]


def _texts(stage: Map | Join | Count | Redo, wanted: set[str]) -> list[str]:
    pairs = zip(stage.columns, stage.select, strict=True)
    texts = [text for column, text in pairs if column.name in wanted]
    if isinstance(stage, Count):
        return [*texts, stage.times]
    return [*texts, *([stage.where] if stage.where else [])]


def _sums(stage: Count, wanted: set[str]) -> tuple[LinearSum, ...]:
    used = {name for text in _texts(stage, wanted) for _, name in references(text)}
    return tuple(one for one in stage.sums if one.name in used) or stage.sums[:1]


def _calls(stage: Redo, wanted: set[str]) -> tuple[Call, ...]:
    used = {name for text in _texts(stage, wanted) for _, name in references(text)}
    kept = tuple(one for one in stage.calls if one.name in used)
    return kept or (stage.calls[:1] if stage.aggregate and not stage.keys else ())


def _kept(stage: Stage, wanted: set[str]) -> Stage:
    at = [i for i, column in enumerate(stage.columns) if column.name in wanted]
    columns = tuple(stage.columns[i] for i in at)
    match stage:
        case Constant():
            return stage
        case FromCollection():
            return replace(stage, columns=columns, names=tuple(stage.names[i] for i in at))
        case Union():
            return replace(stage, columns=columns)
        case Map() | Join():
            return replace(stage, select=tuple(stage.select[i] for i in at), columns=columns)
        case Count():
            select = tuple(stage.select[i] for i in at)
            return replace(stage, sums=_sums(stage, wanted), select=select, columns=columns)
        case Redo():
            select = tuple(stage.select[i] for i in at)
            return replace(stage, calls=_calls(stage, wanted), select=select, columns=columns)


def _projected(found: list[Stage], number: int, before: Stage, at: Sequence[int]) -> int:
    """A stage with these columns of what it was before, in order: itself, or a map of it."""
    columns = tuple(before.columns[i] for i in at)
    if found[number].columns == columns:
        return number
    found.append(Map(number, tuple(ref(column.name) for column in columns), None, columns))
    return len(found) - 1


def _untied(stage: Redo, read: Stage) -> Redo:
    """The stage with all columns that it reads where ties are broken."""
    ties = ", ".join(f"i0.{quoted(column.name)}" for column in read.columns)
    calls = tuple(replace(call, over=call.over.replace(TIES, ties)) for call in stage.calls)
    return replace(stage, calls=calls)
