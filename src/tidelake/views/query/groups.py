"""The groups of one grouping set: which aggregates are sums, which need the rows, and how both come together.

Owns the stages of aggregates; must not know SQL's syntax.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tidelake.errors import UsageError
from tidelake.views.functions import LINEAR, Linear
from tidelake.views.plan import Call, Equal, LinearSum
from tidelake.views.query.stages import BUCKETS, FAN_OUT, IS_THERE, ROWS, Stages, of_group, ref
from tidelake.views.query.tables import refuse
from tidelake.views.query.texts import replaced


@dataclass(frozen=True)
class Aggregate:
    """A call of an aggregate over columns of one stage.

    Attributes:
        name: in lower case.
        argument: the column of its first argument; None: `*`, or there is none.
        distinct: whether equal arguments count once.
        where: the column of its FILTER; None: there is none.
        text: the whole call, without FILTER, over `i0`.
        single: whether it is the result for all rows once, and that of the results for parts of them.
    """

    name: str
    argument: str | None
    distinct: bool
    where: str | None
    text: str
    single: bool = False


def with_domain(
    stages: Stages, stage: int, outer: list[str], calls: Sequence[Aggregate], domain: int
) -> tuple[int, list[str], Sequence[Aggregate]]:
    """The rows and, marked with FALSE, each row of the domain, so that there is a group for it."""
    columns = stages.columns(stage)
    rows = stages.map(stage, [*(ref(one.name) for one in columns), "TRUE"])
    at = {name: ref(one.name) for name, one in zip(outer, stages.columns(domain), strict=True)}
    texts = [at.get(one.name, f"CAST(NULL AS {one.type})") for one in columns]
    marked = stages.union([rows, stages.map(domain, [*texts, "FALSE"])])
    new = {old.name: one.name for old, one in zip(columns, stages.columns(marked), strict=False)}
    moved = []
    for call in calls:
        text = replaced(call.text, lambda _, name: ref(new[name]))
        argument, where = (None if one is None else new[one] for one in (call.argument, call.where))
        moved.append(Aggregate(call.name, argument, call.distinct, where, text, call.single))
    return marked, [new[name] for name in outer], moved


@dataclass
class GroupingSet:
    """The groups of one grouping set, by columns of a stage.

    The column `mark` says which rows take part; None: all do.
    """

    stages: Stages
    stage: int
    keys: list[str]
    mark: str | None

    def made(self, calls: Sequence[Aggregate]) -> int:
        """A stage with the keys and a column for each call."""
        sums = [call for call in calls if self._is_sum(call) and not call.distinct]
        distinct = [call for call in calls if self._is_sum(call) and call.distinct]
        rest = [call for call in calls if not self._is_sum(call)]
        if (rest and self.keys) or len(rest) == len(calls) > 0:
            return self._redone(calls)
        pieces: list[tuple[int, Sequence[Aggregate]]] = []
        if sums or not calls:
            pieces.append((self._summed(sums), sums))
        arguments = dict.fromkeys((call.argument, call.where) for call in distinct)
        for asked in arguments:
            own = [call for call in distinct if (call.argument, call.where) == asked]
            pieces.append((self._distinct(own, *asked), own))
        if rest:
            pieces.append((self._redone(rest), rest))
        if len(pieces) == 1:
            return pieces[0][0]
        return self._joined(pieces, calls)

    def _joined(self, pieces: Sequence[tuple[int, Sequence[Aggregate]]], calls: Sequence[Aggregate]) -> int:
        """All pieces have the same groups."""
        numbers = [number for number, _ in pieces]
        names = [[one.name for one in self.stages.columns(number)] for number in numbers]
        width = len(self.keys)
        equals = [
            Equal(0, names[0][k], i, names[i][k], True) for i in range(1, len(pieces)) for k in range(width)
        ]
        texts = [ref(names[0][k]) for k in range(width)]
        for call in calls:
            for i, (_, own) in enumerate(pieces):
                if any(call is one for one in own):
                    at = next(k for k, one in enumerate(own) if one is call)
                    texts.append(ref(names[i][width + at], i))
                    break
        return self.stages.join(numbers, equals, None, texts)

    def _present(self, call: Aggregate) -> str:
        """Whether a row takes part in a call, as a text that is never NULL."""
        conditions = [] if self.mark is None else [ref(self.mark)]
        if call.where is not None:
            conditions.append(f"coalesce({ref(call.where)}, FALSE)")
        return " AND ".join(conditions) or "TRUE"

    def _type(self, name: str | None) -> str:
        return "" if name is None else self.stages.type_of(self.stage, name)

    def _linear(self, call: Aggregate, present: str = "TRUE") -> Linear | None:
        """A call as accumulators; None: it is no sum, or not of this type."""
        argument = None if call.argument is None else ref(call.argument)
        return self.stages.analyzer.linear(call.name, argument, self._type(call.argument), present)

    def _is_sum(self, call: Aggregate) -> bool:
        return call.name in LINEAR and not call.text and self._linear(call) is not None

    def _sums(self, calls: Sequence[Aggregate]) -> tuple[dict[str, str], list[str]]:
        """Accumulators by value, each once, and the result of each call over `g`."""
        named: dict[str, str] = {}
        results = []
        for call in calls:
            found = self._linear(call, self._present(call))
            if found is None:
                of = self._type(call.argument)
                raise UsageError(f"{call.name}() of {of} cannot be in a view: cast the argument to a number")
            names = [named.setdefault(value, f"a{len(named)}") for value in found.values]
            results.append(found.of([of_group(name) for name in names]))
        return named, results

    def _times(self) -> tuple[tuple[LinearSum, ...], str]:
        if self.mark is not None:
            born = f"CAST(CASE WHEN {ref(self.mark)} THEN 0 ELSE 1 END AS HUGEINT)"
            return (LinearSum("n", born),), IS_THERE
        return ((ROWS,), IS_THERE) if self.keys else ((), "1")

    def _summed(self, calls: Sequence[Aggregate]) -> int:
        named, results = self._sums(calls)
        first, times = self._times()
        sums = (*first, *(LinearSum(name, value) for value, name in named.items()))
        return self.stages.count(
            self.stage, self.keys, sums or (ROWS,), times, [*map(of_group, self.keys), *results] or ["TRUE"]
        )

    def _distinct(self, calls: Sequence[Aggregate], argument: str | None, where: str | None) -> int:
        """Aggregates of distinct values: of the groups by key and value."""
        if argument is None:
            raise _several()
        names = [*self.keys, argument, *(name for name in (where, self.mark) if name is not None)]
        values = self.stages.distinct(self.stages.map(self.stage, [ref(name) for name in names]))
        at = {name: f"c{i}" for i, name in enumerate(names)}
        inner = GroupingSet(
            self.stages, values, [at[key] for key in self.keys], None if self.mark is None else at[self.mark]
        )
        filtered = None if where is None else at[where]
        return inner._summed([Aggregate(c.name, at[argument], False, filtered, "") for c in calls])

    def _redone(self, calls: Sequence[Aggregate]) -> int:
        """All calls from the rows of each group."""
        stages = self.stages
        sums = [call for call in calls if self._is_sum(call) and not call.distinct]
        named, results = self._sums(sums)
        made = [Call(name, f"coalesce(sum({value}), CAST(0 AS HUGEINT))") for value, name in named.items()]
        found = iter(results)
        texts = []
        for i, call in enumerate(calls):
            if any(call is one for one in sums):
                texts.append(next(found))
                continue
            text, present = call.text, self._present(call)
            if text:
                text = text if present == "TRUE" else f"{text} FILTER (WHERE {present})"
            else:
                if call.argument is None:
                    raise _several()
                type_ = self._type(call.argument)
                text = stages.analyzer.of_rows(
                    call.name, ref(call.argument), type_, distinct=call.distinct, present=present
                )
            made.append(Call(f"r{i}", text))
            texts.append(of_group(f"r{i}"))
        where = None
        if not self.keys and not sums and all(call.single for call in calls):
            return self._least(calls, made)
        if self.mark is not None:
            made.append(Call("d", f"count(*) FILTER (WHERE NOT {ref(self.mark)})"))
            where = f"{of_group('d')} > 0"
        once = not sums and all(call.distinct or call.single for call in calls)
        return self.stages.redo(
            self.stage,
            self.keys,
            made,
            [*map(of_group, self.keys), *texts],
            aggregate=True,
            where=where,
            repeats=not once,
        )

    def _least(self, calls: Sequence[Aggregate], made: Sequence[Call]) -> int:
        """The least or greatest of all rows, by way of those of buckets."""
        stages = self.stages
        names = [one.name for one in stages.columns(self.stage)]
        stage = stages.map(
            self.stage, [*map(ref, names), stages.analyzer.bucket([ref(name) for name in names], BUCKETS)]
        )
        keys, rows_max = [stages.columns(stage)[-1].name], None
        renamed = dict(zip(names, [one.name for one in stages.columns(stage)], strict=False))
        level = [Call(one.name, replaced(one.function, lambda _, name: ref(renamed[name]))) for one in made]
        while True:
            results = [*map(of_group, keys), *(of_group(one.name) for one in level)]
            stage = stages.redo(stage, keys, level, results, aggregate=True, repeats=False, rows_max=rows_max)
            if not keys:
                return stage
            found = [one.name for one in stages.columns(stage)]
            level = [
                Call(f"r{i}", f"{call.name}({ref(name)})")
                for i, (call, name) in enumerate(zip(calls, found[1:], strict=True))
            ]
            if rows_max is None:
                stage = stages.map(stage, [f"{ref(found[0])} // {FAN_OUT}", *map(ref, found[1:])])
                rows_max, keys = FAN_OUT, ["c0"]
            else:
                keys = []


def _several() -> UsageError:
    return refuse("DISTINCT of several columns in an aggregate", "write count(DISTINCT row(a, b))")
