"""What each stage emits when its inputs change, as SQL: at each time what it is less what it was.

Owns the four rules (map, join, count, redo) and the tables that they read and make. Must not know where rows
come from, nor who runs the texts.

The tables of a stage: `d3` has its updates of the span, with their times and multiplicities; `a3` its
contents just before the span, at the time `BEFORE`, which is before all times of the span. A count has also
`ds3`, the updates of its sums by key, and `b3`, at least those sums just before the span that change. Of an
input, a stage reads at least the rows just before the span that meet a change (`before`), alone or with the
updates of the span (`whole`). Updates are netted: no row is there twice, or with multiplicity 0; so are the
contents that a redo reads. Of other contents, and of updates that only counts read, only the sums matter.
Keys of groups are equal if they are NOT DISTINCT; joins compare as they say.

The contents of a stage just before the span follow by the same rules: they are what the stage emits, at
`BEFORE`, if the contents of its inputs come at that time (`contents`). So there is one text for each rule.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

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
    Union,
    ViewPlan,
    count_at,
    inputs,
    quoted,
)
from tidelake.views.tablenames import before, moved, taken, whole

BEFORE = -1
"""The time of the contents just before a span."""
_FOREMOST_MAX = 999_999
REPEATS_MAX = 1_000_000
"""How often a row may be there where each time counts for itself, as for a median."""
TOO_OFTEN = f"a row is there more than {REPEATS_MAX:,} times where an aggregate or window counts each time"


@dataclass(frozen=True)
class Emission:
    """What the updates that a stage emits depend on.

    Attributes:
        base: whether there are contents just before the span; else the view begins with it.
        birth: the first time of the view, if it is in the span: what depends on no input begins there.
        changes: the letter of the tables that have the updates of the inputs.
        changed: stages that have updates; None: any may have some.
        time: of all updates, and of the birth where groups have no keys; None: there may be several.
    """

    base: bool
    birth: int | None = None
    changes: str = "d"
    changed: frozenset[int] | None = None
    time: int | None = None


_CONTENTS = Emission(base=False, birth=BEFORE, changes="a", time=BEFORE)


class Rules:
    """The texts of a plan.

    Attributes:
        plan: the stages.
        time: the column of the times of updates, without quotes; no column of a stage has this name.
        count: that of multiplicities.
    """

    def __init__(self, plan: ViewPlan) -> None:
        self.plan = plan
        taken = {column.name.lower() for stage in plan.stages for column in stage.columns}
        taken |= {one.name.lower() for s in plan.stages if isinstance(s, Count) for one in s.sums}
        taken |= {one.name.lower() for s in plan.stages if isinstance(s, Redo) for one in s.calls}
        names = [_free(name, taken) for name in ("_t", "_m", "_p", "_n", "_l", "_r0", "_r1")]
        self.time, self.count = names[:2]
        self._t, self._m, self._p, self._q, self._lost, *self._ranks = map(quoted, names)
        most = max((len(stage.sums) for stage in plan.stages if isinstance(stage, Count)), default=0)
        read = {one for stage in plan.stages if not isinstance(stage, Count) for one in inputs(stage)}
        # Of a stage that only counts read, rows that cancel each other change no sum.
        self._summed = {*range(len(plan.stages) - 1)} - read
        self._steps = [quoted(_free(f"_s{number}", taken)) for number in range(most)]

    def updates(self, number: int, span: Emission) -> str:
        """The query for `d{number}`, over the tables of the inputs of the stage.

        The query reads the tables `d` of all inputs, that of a count its own `ds`. With `span.base` it
        also reads what a stage reads of its inputs just before the span.
        """
        return self._shown(number, span, net=number not in self._summed)

    def contents(self, number: int, tables: str = "a") -> str:
        """The query for `a{number}`, over tables `a` of its inputs; that of a count over its `as`.

        `tables` are other names for `a`: then all of it may be about some rows.
        """
        return self._shown(number, replace(_CONTENTS, changes=tables), net=False)

    def sums(self, number: int, span: Emission) -> str:
        """The query for `ds{number}` of a count, over `d` of its input; with `span.base` also its `b`."""
        return self._sums(number, span)

    def sums_before(self, number: int) -> str:
        """The query for `as{number}` of a count, over `a` of its input."""
        return self._sums(number, _CONTENTS)

    def netted(self, number: int, table: str) -> str:
        """A query for the contents of a stage in a table, each row once."""
        names = [quoted(column.name) for column in self.plan.stages[number].columns]
        return (
            f"SELECT {_list(names, [self._t])}, sum({self._m}) AS {self._m} FROM {table} "
            f"GROUP BY ALL HAVING sum({self._m}) <> 0"
        )

    def less(self, columns: Columns, table: str, old: str, time: int) -> str:
        """A query for how a table of contents differs, at a time, from one of old contents."""
        names, m = _list(quoted(one.name) for one in columns), self._m
        both = f"SELECT {names}, {m} FROM {table} UNION ALL SELECT {names}, -{m} FROM {old}"
        return (
            f"SELECT {names}, {time}::BIGINT AS {self._t}, sum({m}) AS {m} FROM ({both}) "
            f"GROUP BY {names} HAVING sum({m}) <> 0"
        )

    def losing(self, stage: Redo, changes: str) -> str:
        """A query for the groups with such changes, most first, and how many rows each loses."""
        keys, lost = [quoted(name) for name in stage.keys], self._lost
        shown = _list(keys, [f"count(*) FILTER (WHERE {self._m} < 0) AS {lost}"])
        return f"SELECT {shown} FROM {changes}{stage.input}{_by(keys)} ORDER BY count(*) DESC, {lost}"

    def moved(self, number: int, stage: Redo) -> str:
        """A query for the changes of groups whose first rows may be others then.

        Of the other groups, the first rows are there at all times, and what comes or goes is behind them.
        """
        keys, d = [quoted(name) for name in stage.keys], f"d{stage.input}"
        orders = [*zip(leading(stage), self._ranks, strict=False)]
        ends = _list(keys, [f"{one.foremost(str(one.places))} AS {end}" for one, end in orders])
        # With fewer rows there is no value in this place.
        behind = [one.is_behind(f"e.{end}[{one.places}]") for one, end in orders]
        return (
            f"WITH ends AS MATERIALIZED (SELECT {ends} FROM {taken(number)} AS i0 WHERE i0.{self._m} > 0"
            f"{_by(keys)}), moved AS MATERIALIZED (SELECT i0.* FROM {d} AS i0 LEFT JOIN ends AS e "
            f"ON {_same('i0', 'e', keys)} WHERE NOT ({' AND '.join(behind)})) "
            f"SELECT x.* FROM {d} AS x SEMI JOIN moved AS y ON {_same('x', 'y', keys)}"
        )

    def first_of_moved(self, number: int, stage: Redo) -> str:
        """A query for the rows of these groups just before the span: of each, as many as may be first.

        These are as many as matter and the span may remove, and those that are equal. If there are not so
        many, all of them: rows that are owed stand behind, and may be repaid.
        """
        keys, m, lost = [quoted(name) for name in stage.keys], self._m, self._lost
        orders = [*zip(leading(stage), self._ranks, strict=False)]
        many = [f"greatest(1, least(i0.{lost} + {one.places}, {_FOREMOST_MAX}))" for one, _ in orders]
        ends = [
            f"({one.foremost(rows)})[{rows}] AS {end}" for (one, end), rows in zip(orders, many, strict=True)
        ]
        of_group = [*(f"i0.{key}" for key in keys), f"i0.{lost}"]
        behind = [one.is_behind(f"e.{end}") for one, end in orders]
        losing, same = self.losing(stage, moved(number)), _same("i0", "l", keys)
        return (
            "WITH theirs AS MATERIALIZED "
            f"(SELECT i0.*, l.{lost} FROM {taken(number)} AS i0 JOIN ({losing}) AS l ON {same}), "
            f"ends AS MATERIALIZED (SELECT {_list(of_group, ends)} FROM theirs AS i0 "
            f"WHERE i0.{m} > 0 GROUP BY {_list(of_group)}) "
            f"SELECT i0.* EXCLUDE ({lost}) FROM theirs AS i0 LEFT JOIN ends AS e ON {_same('i0', 'e', keys)} "
            f"WHERE i0.{lost} > {_FOREMOST_MAX // 2} OR NOT ({' AND '.join(behind)})"
        )

    def of_changed(self, number: int, stage: Redo) -> str:
        """A query for the rows just before the span of the groups that change."""
        same = _same("x", "y", [quoted(name) for name in stage.keys])
        return f"SELECT x.* FROM {taken(number)} AS x SEMI JOIN d{stage.input} AS y ON {same}"

    def pairs(self, number: int, span: Emission) -> str:
        """A query for the number of rows that a redo looks at: of each group, once for each of its times."""
        stage = self.plan.stages[number]
        keys = [quoted(name) for name in stage.keys] if isinstance(stage, Redo) else []
        (of,) = inputs(stage)
        changed, by = f"{span.changes}{of}", f" GROUP BY {_list(keys)}" if keys else ""
        rows = (
            f"(SELECT * FROM {before(number, 0, 0)} UNION ALL SELECT * FROM {changed})"
            if span.base
            else changed
        )
        points = f"SELECT {_list(keys, [f'count(DISTINCT {self._t}) AS {self._p}'])} FROM {changed}{by}"
        many = f"SELECT {_list(keys, [f'count(*) AS {self._q}'])} FROM {rows}{by}"
        return (
            f"SELECT coalesce(sum(p.{self._p}::HUGEINT * r.{self._q}), 0) "
            f"FROM ({points}) AS p JOIN ({many}) AS r ON {_same('p', 'r', keys)}"
        )

    def _emitted(self, number: int, span: Emission) -> str:
        match self.plan.stages[number]:
            case FromCollection(_, _):
                raise AssertionError("a collection is read, not computed")
            case Constant() as stage:
                return self._constant(stage, span)
            case Map() as stage:
                return self._map(stage, span)
            case Union() as stage:
                return " UNION ALL ".join(f"SELECT * FROM {span.changes}{n}" for n in stage.inputs)
            case Join() as stage:
                return self._join(number, stage, span)
            case Count() as stage:
                return self._counted(f"{span.changes}s{number}", stage)
            case Redo() as stage:
                return self._redone(number, stage, span)

    def _shown(self, number: int, span: Emission, *, net: bool) -> str:
        """What a stage emits, or the sums of equal rows. -0.0 is 0.0, as if the row were stored."""
        stage, emitted = self.plan.stages[number], self._emitted(number, span)
        names = [quoted(column.name) for column in stage.columns]
        same = ", ".join(canonical(column) for column in stage.columns)
        all_of = ", ".join([*names, self._t, self._m])
        shown = f"SELECT {same}, {self._t}, {self._m} FROM ({emitted}) AS e({all_of})"
        return self.netted(number, f"({shown})") if net else shown

    def _constant(self, stage: Constant, span: Emission) -> str:
        at = "NULL" if span.birth is None else str(span.birth)
        where = " WHERE false" if span.birth is None else ""
        return f"SELECT *, {at}::BIGINT, 1::HUGEINT FROM ({stage.sql}){where}"

    def _map(self, stage: Map, span: Emission) -> str:
        select = ", ".join(stage.select)
        source = f"{span.changes}{stage.input}"
        if stage.where is not None:
            source = f"(SELECT * FROM {source} AS i0 WHERE {stage.where})"
        return f"SELECT {select}, i0.{self._t}, {stage.sign} * i0.{self._m} FROM {source} AS i0"

    def _join(self, number: int, stage: Join, span: Emission) -> str:
        """By the first input that changes: those before it as they were, those behind as they come."""
        select, many = ", ".join(stage.select), range(len(stage.inputs))
        time = f"greatest({', '.join(f'i{n}.{self._t}' for n in many)})"
        product = " * ".join(f"i{n}.{self._m}" for n in many)
        conditions = [one.sql for one in stage.equals] + ([f"({stage.where})"] if stage.where else [])
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        terms = []
        for first in firsts(stage, span.changed) if span.base else (0,):
            tables = [f"{span.changes}{one}" for one in stage.inputs]
            if span.base:
                tables[:first] = [before(number, first, place) for place in range(first)]
                tables[first + 1 :] = [whole(number, first, place) for place in many if place > first]
            source = ", ".join(f"{table} AS i{n}" for n, table in enumerate(tables))
            terms.append(f"SELECT {select}, {time}, {product} FROM {source}{where}")
        return " UNION ALL ".join(terms)

    def _sums(self, number: int, span: Emission) -> str:
        """By key the running sums after each time at which they change, less those just before it."""
        stage = count_at(self.plan, number)
        t, m = self._t, self._m
        keys, sums = [quoted(name) for name in stage.keys], [quoted(one.name) for one in stage.sums]
        added = [f"sum(i0.{m} * ({one.value})) AS {quoted(one.name)}" for one in stage.sums]
        of_keys = [f"i0.{key}" for key in keys]
        changed = (
            f"SELECT {_list(of_keys, [f'i0.{t}'], added)} FROM {span.changes}{stage.input} AS i0 "
            f"GROUP BY {_list(of_keys, [f'i0.{t}'])}"
        )
        if not keys and span.birth is not None:
            born = _list([f"{span.birth}::BIGINT AS {t}"], [f"0::HUGEINT AS {one}" for one in sums])
            again = _list([t], [f"sum({one}) AS {one}" for one in sums])
            changed = f"SELECT {again} FROM ({changed} UNION ALL SELECT {born}) GROUP BY {t}"
        source, base = f"({changed}) AS c", ""
        if span.base:
            source += f" LEFT JOIN b{number} AS b ON {_same('c', 'b', keys)}"
            base = " + coalesce(b.{0}, 0)"
        by = _list(f"c.{one}" for one in keys) or "NULL"
        window = f"(PARTITION BY {by} ORDER BY c.{t} ROWS UNBOUNDED PRECEDING)"
        summed = [f"c.{one}" if span.time is not None else f"sum(c.{one}) OVER {window}" for one in sums]
        total = [f"{text}{base.format(one)} AS {one}" for text, one in zip(summed, sums, strict=True)]
        steps = self._steps[: len(sums)]
        step = [f"c.{one} AS {step}" for one, step in zip(sums, steps, strict=True)]
        running = f"SELECT {_list([f'c.{k}' for k in keys], [f'c.{t}'], total, step)} FROM {source}"
        # A group at a time whose sums stay is the same before and after.
        moves = [f"r.{one} IS DISTINCT FROM 0" for one in steps]
        # Without keys there is a group from the birth of the view on, whatever its sums are.
        there = " OR ".join(f"{one} <> 0" for one in sums)
        if not keys:
            there = "true" if span.birth is None else f"{m} > 0 OR {t} <> {span.birth}"
            moves += [] if span.birth is None else [f"r.{t} = {span.birth}"]
        both = f"SELECT r.*, unnest([1, -1]) AS {m} FROM ({running}) AS r WHERE {' OR '.join(moves)}"
        was = [
            f"CASE WHEN g.{m} > 0 THEN g.{one} ELSE g.{one} - g.{step} END AS {one}"
            for one, step in zip(sums, steps, strict=True)
        ]
        of_group = [f"g.{one}" for one in keys]
        shown = f"SELECT {_list(of_group, was, [f'g.{t}', f'g.{m}::HUGEINT AS {m}'])} FROM ({both}) AS g"
        return f"SELECT * FROM ({shown}) AS s WHERE {there}"

    def _counted(self, table: str, stage: Count) -> str:
        """The rows that the sums of each group stand for."""
        times = self._p
        counted = f"SELECT g.*, ({stage.times})::HUGEINT AS {times} FROM {table} AS g"
        return (
            f"SELECT {', '.join(stage.select)}, g.{self._t}, g.{self._m} * g.{times} "
            f"FROM (SELECT * FROM ({counted}) WHERE {times} > 0) AS g"
        )

    def _redone(self, number: int, stage: Redo, span: Emission) -> str:
        """By key the result at each time at which a row of it changes, less that at the time before."""
        keys, point = [quoted(name) for name in stage.keys], self._p
        columns = [quoted(one.name) for one in self.plan.stages[stage.input].columns]
        if span.time is not None:
            return self._redone_once(number, stage, span, columns)
        changed = f"{span.changes}{stage.input}"
        points = f"SELECT DISTINCT {_list(keys, [f'{self._t} AS {point}'])} FROM {changed}"
        if not keys and span.birth is not None:
            points += f" UNION SELECT {span.birth}::BIGINT AS {point}"
        if span.base:
            old = _list(keys, [f"{BEFORE}::BIGINT AS {point}"])
            points = f"SELECT * FROM ({points}) UNION SELECT {old} FROM ({points})"
        rows = self._each(stage, self._at_points(number, stage, span), [point, *columns])
        groups = self._groups(stage, "pointed", [point])
        if stage.aggregate and not keys:
            none = _list([f"p.{point}"], [f"x.{quoted(one.name)}" for one in stage.calls])
            groups += (
                f" UNION ALL SELECT {none} FROM points AS p, "
                f"({self._groups(stage, '(SELECT * FROM pointed WHERE false)', [])}) AS x "
                f"WHERE p.{point} NOT IN (SELECT {point} FROM pointed)"
            )
        kept = f"(SELECT * FROM ({groups}) AS g WHERE {stage.where})" if stage.where else f"({groups})"
        following = (
            f"SELECT {_list(keys, [point])}, lead({point}) OVER (PARTITION BY {_list(keys) or 'NULL'} "
            f"ORDER BY {point}) AS {self._q} FROM points"
        )
        answer = (
            f"SELECT {', '.join(stage.select)}, g.{point}, n.{self._q} FROM {kept} AS g JOIN following AS n "
        )
        if keys:
            # The keys of a result are found by those of the group, which `select` need not show.
            answer += f"ON {_same('n', 'g', [*keys, point])}"
        else:
            answer += f"ON n.{point} = g.{point}"
        names = _list([quoted(one.name) for one in stage.columns])
        return (
            f"WITH points AS MATERIALIZED ({points}), pointed AS MATERIALIZED ({rows}), "
            f"following AS MATERIALIZED ({following}), answer AS MATERIALIZED (SELECT * FROM ({answer}) "
            f"AS y({names}, {point}, {self._q})) "
            f"SELECT {names}, {point} AS {self._t}, 1::HUGEINT FROM answer "
            f"WHERE {point} <> {BEFORE} "
            f"UNION ALL SELECT {names}, {self._q}, -1::HUGEINT FROM answer WHERE {self._q} IS NOT NULL"
        )

    def _redone_once(self, number: int, stage: Redo, span: Emission, columns: list[str]) -> str:
        """The result at the only time of updates, less that just before it."""
        old, new, m = before(number, 0, 0), f"{span.changes}{stage.input}", self._m
        both = f"(SELECT * FROM {old} UNION ALL SELECT * FROM {new})" if span.base else new
        there = f"SELECT {_list(columns)}, sum({m}) AS {m} FROM {both} GROUP BY ALL HAVING sum({m}) > 0"
        was = f"SELECT {_list(columns, [m])} FROM {old} WHERE {m} > 0"
        return " UNION ALL ".join(
            f"SELECT {_list(stage.select)}, {span.time}::BIGINT, {many}::HUGEINT FROM (SELECT * FROM "
            f"({self._groups(stage, f'({self._each(stage, rows, columns)})', [])}) AS g "
            f"WHERE {stage.where or 'true'}) AS g"
            for rows, many in ((there, 1), (was, -1))[: 1 + span.base]
        )

    def _groups(self, stage: Redo, rows: str, by: list[str]) -> str:
        """A query for the calls of groups of rows, by keys and other columns."""
        of_keys = [f"i0.{one}" for one in (*by, *(quoted(name) for name in stage.keys))]
        if stage.aggregate:
            call = [f"{one.function} AS {quoted(one.name)}" for one in stage.calls]
            return f"SELECT {_list(of_keys, call)} FROM {rows} AS i0{_by(of_keys)}"
        over = f"OVER ({f'PARTITION BY {_list(of_keys)} ' if of_keys else ''}"
        shown = [f"{one.function} {over}{one.over}) AS {quoted(one.name)}" for one in stage.calls]
        return f"SELECT {_list(['i0.*'], shown)} FROM {rows} AS i0"

    def _each(self, stage: Redo, rows: str, columns: list[str]) -> str:
        """A query for rows with their multiplicities; each as often as these say, if that matters."""
        if not stage.repeats:
            return rows
        # A row that is there 10^9 times would be 10^9 rows.
        too_often = f"WHEN r.{self._m} > {REPEATS_MAX} THEN error('{TOO_OFTEN}')"
        checked = f"CASE {too_often} ELSE r.{self._m}::BIGINT END"
        shown = _list(f"r.{one}" for one in columns)
        return (
            f"WITH often AS MATERIALIZED ({rows}) SELECT {shown}, r.{self._m} FROM often AS r "
            f"WHERE r.{self._m} = 1 UNION ALL SELECT {shown}, unnest(range({checked})) "
            f"AS {self._m} FROM often AS r WHERE r.{self._m} > 1"
        )

    def _at_points(self, number: int, stage: Redo, span: Emission) -> str:
        """The rows of each group at each of its points.

        What no update touches is there at all points, and before the span each row is there once.
        """
        columns = [quoted(one.name) for one in self.plan.stages[stage.input].columns]
        keys, changed = [quoted(name) for name in stage.keys], f"{span.changes}{stage.input}"
        at_point = _list([f"p.{self._p}"], [f"i0.{one}" for one in columns])

        def added(source: str) -> str:
            return (
                f"SELECT {at_point}, sum(i0.{self._m}) AS {self._m} FROM points AS p JOIN {source} AS i0 "
                f"ON {_same('p', 'i0', keys)} AND i0.{self._t} <= p.{self._p} "
                f"GROUP BY ALL HAVING sum(i0.{self._m}) > 0"
            )

        if not span.base:
            return added(changed)
        old, row = before(number, 0, 0), _same("b", "x", columns)
        touched = f"SELECT DISTINCT {_list(columns)} FROM {changed}"
        some = (
            f"(SELECT b.* FROM {old} AS b SEMI JOIN touched AS x ON {row} UNION ALL SELECT * FROM {changed})"
        )
        others = f"(SELECT b.* FROM {old} AS b ANTI JOIN touched AS x ON {row} WHERE b.{self._m} > 0)"
        same = _same("p", "i0", keys)
        stay = f"SELECT {at_point}, i0.{self._m} FROM points AS p JOIN {others} AS i0 ON {same}"
        return f"WITH touched AS MATERIALIZED ({touched}) {added(some)} UNION ALL {stay}"


def firsts(stage: Join, changed: frozenset[int] | None) -> list[int]:
    """The places of the inputs of a join that have updates."""
    return [place for place, one in enumerate(stage.inputs) if changed is None or one in changed]


def canonical(column: PlanColumn) -> str:
    """A column as it would be read back if it were stored."""
    name = quoted(column.name)
    return f"{name} + 0 AS {name}" if column.type in ("FLOAT", "DOUBLE") else name


def _same(left: str, right: str, names: Iterable[str]) -> str:
    return " AND ".join(f"{left}.{one} IS NOT DISTINCT FROM {right}.{one}" for one in names) or "true"


def _by(keys: Iterable[str]) -> str:
    return f" GROUP BY {_list(keys)}" if keys else ""


def _list(*parts: Iterable[str]) -> str:
    return ", ".join(one for several in parts for one in several)


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name
