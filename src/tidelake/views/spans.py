"""A span of a view, carried out by an engine: from what its inputs were and how they change, its updates.

Owns which tables of it are needed. Must not know how lakes store rows, nor what an engine is.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pyarrow.compute as pc

from tidelake.errors import RefreshFailed, TidelakeError
from tidelake.lake.api.embedded import Scan
from tidelake.model.schema import DIFF
from tidelake.views.engine import Engine, Found, KeyRows, Output, reason
from tidelake.views.leading import leading
from tidelake.views.plan import (
    Columns,
    Count,
    FromCollection,
    Join,
    Map,
    PlanColumn,
    Redo,
    Stage,
    Union,
    inputs,
)
from tidelake.views.reach import (
    Computed,
    KeptStage,
    Looked,
    Need,
    Reach,
    Summed,
    columns_of,
    needs,
    sum_columns,
    sums_of,
)
from tidelake.views.rules import BEFORE, Emission, Rules, firsts
from tidelake.views.tablenames import before, moved, taken, whole

AGAIN_SHARE = 1.0
"""If inputs have more updates at one time than this share of what they had, all is computed again.

Measured with a million rows by DuckDB: at 1.0 maxima and top tens of groups cost as much in both ways, at 2.0
(each row changes) 0.8 of it, and three joins below such 0.7. Plans without a redo never cost less.
"""
_TIME = "_time"
Updates = Callable[[int], Scan]
"""Reads updates of the collection of a stage: its columns, in its order, then times and multiplicities."""
Contents = Callable[[int, KeyRows | None], Scan]
"""Reads contents of a collection likewise: at least the rows with these values in its key; None: all."""
State = Callable[[KeptStage, KeyRows | None, int | None], Scan]
"""Reads what a view keeps, likewise; columns as `columns_of` gives them. Of rows in an order, the first ones
of a key are enough: so many that are there, with all before them and all that are equal in the order."""


class SpanTooLarge(Exception):
    """A span has so many times that groups would be computed again too often, or too many updates.

    The `time` is in the middle of them.
    """

    def __init__(self, time: int) -> None:
        super().__init__()
        self.time = time


@dataclass(frozen=True)
class Again:
    """How all contents are computed again, and compared with the old ones, if much changes at one time.

    Attributes:
        rows: updates that are stored of the inputs, those of the span among them.
        contents: reads all contents of the collection of a stage, the first number, at a time in the span.
        stored: reads all of what the view keeps, just before the span; None: of the view itself.
    """

    rows: int
    contents: Callable[[int, int], Scan]
    stored: Callable[[KeptStage | None], Scan]


class SpanRun:
    """Carries one span out.

    Args:
        view: the name of the view, for messages.
        reach: the plan of the view, and where rows of its stages are found.
        emission: what the updates depend on.
        contents: reads the contents of a collection just before the span.
        updates: reads the updates of a collection in the span.
        state: reads what the view keeps, as of just before the span; None: it keeps nothing, and computes it.
        pairs_max: a group that is computed again, once for each of its times, has at most so many rows;
            None: any number.
        rows_max: a stage that changes at several times has at most so many updates; None: any number.
        again: how all is computed again if much changes; None: it is not.

    Attributes:
        read: rows that were read, by stage.
        emitted: updates of each stage.
        how: in which way rows of a stage were read, or its groups computed, for people.
        kept: the updates of what the view keeps, its columns, `_time` and `_diff`.
    """

    def __init__(
        self,
        view: str,
        reach: Reach,
        emission: Emission,
        *,
        contents: Contents,
        updates: Updates,
        state: State | None = None,
        pairs_max: int | None = None,
        rows_max: int | None = None,
        again: Again | None = None,
    ) -> None:
        self._view, self._plan, self._reach, self._emission = view, reach.plan, reach, emission
        self._contents, self._updates, self._state = contents, updates, state
        self._pairs_max, self._rows_max, self._again = pairs_max, rows_max, again
        self._rules = Rules(self._plan)
        self._known: set[int] = set()
        self._sizes: dict[str, int] = {}
        self.read: dict[int, int] = {}
        self.emitted: dict[int, int] = {}
        self.how: dict[int, str] = {}
        self.kept: dict[KeptStage, Output] = {}

    def carried_out(self, engine: Engine) -> Output:
        """The updates of the view: its columns, `_time` and `_diff`, each row of a time once.

        Raises:
            RefreshFailed: the engine could not compute a stage; names it.
            SpanTooLarge: it has too many times for the size of a group, or too many updates.
        """
        stages = self._plan.stages
        read = [number for number, stage in enumerate(stages) if isinstance(stage, FromCollection)]
        try:
            for number in read:
                self._change(engine, number)
            if self._again is not None and (time := self._much_at(engine, self._again, read)) is not None:
                self._compare(engine, self._again, time)
            else:
                for number in range(len(stages)):
                    if number not in read:
                        self._change(engine, number)
            if self._state is not None:
                self.kept = {one: self._rows_kept(engine, one, "d") for one in self._reach.kept()}
            return self._answer(engine)
        finally:
            engine.clear()

    def computed(self, engine: Engine, wanted: Sequence[KeptStage]) -> dict[KeptStage, Output]:
        """What the view keeps, as of just before the span, from all of the contents of the inputs.

        Raises:
            RefreshFailed: as `carried_out`.
        """
        try:
            for one in wanted:
                self._know(engine, one.stage)
            return {one: self._rows_kept(engine, one, "a") for one in wanted}
        finally:
            engine.clear()

    def _much_at(self, engine: Engine, again: Again, read: Sequence[int]) -> int | None:
        """The only time at which inputs change, if they change much; else None."""
        changed = sum(self.emitted[one] for one in read)
        if changed <= AGAIN_SHARE * max(0, again.rows - changed):
            return None
        times = {
            time for one in read if self.emitted[one] for time in engine.times(f"d{one}", self._rules.time)
        }
        return times.pop() if len(times) == 1 else None

    def _compare(self, engine: Engine, again: Again, time: int) -> None:
        """Make the updates of what the view keeps, and of the view: contents at the time less those before.

        What follows from the updates of inputs row by row is made of these.
        """
        self._contents = lambda number, _: again.contents(number, time)
        for kept in (*self._reach.kept(), None):
            number = len(self._plan.stages) - 1 if kept is None else kept.stage
            sums = kept is not None and kept.sums
            of = f"s{number}" if sums else f"{number}"
            if f"d{of}" in self._sizes:
                continue
            if self._follows(number):
                self._change_through(engine, number)
                continue
            self._know(engine, number)
            self._take(engine, f"h{of}", number, again.stored(kept), sums=sums)
            columns = columns_of(self._plan, KeptStage(number, (), sums))
            less = self._rules.less(columns, f"a{of}", f"h{of}", time)
            emitted = self._make_of(engine, f"d{of}", number, less, sums=sums)
            if not sums:
                self.emitted[number] = emitted
        self.how[len(self._plan.stages) - 1] = "computed again, as the inputs have so many updates"

    def _follows(self, number: int) -> bool:
        """Whether the updates of a stage follow from those of collections row by row."""
        match self._plan.stages[number]:
            case FromCollection():
                return True
            case Map() | Union() as stage:
                return all(map(self._follows, inputs(stage)))
            case _:
                return False

    def _change_through(self, engine: Engine, number: int) -> None:
        """Make the updates of a stage, and of those before it."""
        if number not in self.emitted:
            for one in inputs(self._plan.stages[number]):
                self._change_through(engine, one)
            self._change(engine, number)

    def _change(self, engine: Engine, number: int) -> None:
        stage, rules = self._plan.stages[number], self._rules
        if isinstance(stage, FromCollection):
            emitted = self._take(engine, f"d{number}", number, self._updates(number), net=True)
        elif self._emission.birth is None and not any(self.emitted[one] for one in inputs(stage)):
            emitted = self._empty(engine, number)
            if isinstance(stage, Count):
                engine.empty(f"ds{number}", self._timed(sum_columns(self._plan, number)))
        else:
            changed = frozenset(one for one in inputs(stage) if self.emitted[one])
            emission = replace(self._emission, changed=changed, time=self._only_time(engine, stage))
            if emission.base:
                self._look(engine, number, changed)
            if isinstance(stage, Redo):
                emitted = self._redo(engine, number, stage, emission)
            else:
                if isinstance(stage, Count):
                    # At each time of a group what it is, and no longer is.
                    most = 2 * (self.emitted[stage.input] + 1)
                    sums = rules.sums(number, emission)
                    self._make_of(engine, f"ds{number}", number, sums, sums=True, most=most)
                emitted = self._make_of(engine, f"d{number}", number, rules.updates(number, emission))
        self.emitted[number] = emitted
        if self._rows_max is not None and emitted > self._rows_max:
            self._cut(engine, number)

    def _only_time(self, engine: Engine, stage: Stage) -> int | None:
        """The only time at which groups change; None: there are several, or it takes a job to find it."""
        if not isinstance(stage, Count | Redo) or not engine.holds_rows:
            return None
        # Without keys the only group changes at the birth as well.
        births = () if stage.keys or self._emission.birth is None else (self._emission.birth,)
        times = {*engine.times(f"d{stage.input}", self._rules.time), *births}
        return times.pop() if len(times) == 1 else None

    def _empty(self, engine: Engine, number: int) -> int:
        engine.empty(f"d{number}", self._timed(self._plan.stages[number].columns))
        return 0

    def _redo(self, engine: Engine, number: int, stage: Redo, emission: Emission) -> int:
        """Make the updates of groups, of which those are left out whose first rows stay."""
        rules, table, of, changed = self._rules, before(number, 0, 0), stage.input, self.emitted[stage.input]
        if emission.base and self._reach.tells_moved(stage):
            changed = self._make_of(engine, f"{moved(number)}{of}", of, rules.moved(number, stage))
            emission = replace(emission, changes=moved(number))
        self.how[number] = f"{changed:,} of {self.emitted[of]:,} changes may change a result"
        if not changed and emission.base:
            return self._empty(engine, number)
        if emission.changes != "d":
            self._make_of(engine, table, of, rules.first_of_moved(number, stage))
        elif emission.base:
            engine.call(table, rules.of_changed(number, stage))
            self._sizes[table] = self._sizes[taken(number)]
        if emission.time is not None:
            self.how[number] += ", computed once"
        else:
            self._check_size(engine, number, stage, emission)
        return self._make_of(engine, f"d{number}", number, rules.updates(number, emission))

    def _check_size(self, engine: Engine, number: int, stage: Redo, emission: Emission) -> None:
        """Refuse what would take long and much memory, if the span can be cut."""
        changed = self._sizes[f"{emission.changes}{stage.input}"]
        rows = changed + self._sizes.get(before(number, 0, 0), 0)
        if self._pairs_max is None or changed * rows <= self._pairs_max:
            return
        (pairs,) = engine.answer(self._rules.pairs(number, emission)).column(0).to_pylist()
        if pairs > self._pairs_max:
            self._cut(engine, stage.input)

    def _cut(self, engine: Engine, number: int) -> None:
        """Ask for a shorter span, unless the stage changes at one time only."""
        if len(times := engine.times(f"d{number}", self._rules.time)) > 1:
            raise SpanTooLarge(times[len(times) // 2])

    def _look(self, engine: Engine, number: int, changed: frozenset[int]) -> None:
        """Make the tables of what a stage reads of its inputs just before the span."""
        match self._plan.stages[number]:
            case Count() as stage:
                (need,) = needs(stage, 0)
                self._sums(engine, f"b{number}", number, self._values(engine, need, f"d{stage.input}"))
            case Redo() as stage:
                self._group(engine, number, stage)
            case Join() as stage:
                for first in firsts(stage, changed):
                    self._meet(engine, number, stage, first)
            case _:
                pass

    def _group(self, engine: Engine, number: int, stage: Redo) -> None:
        """Make the tables of the groups that change, each row once; the first rows may be enough."""
        table, of, (need,) = taken(number), stage.input, needs(stage, 0)
        way = self._reach.to_redo(stage)
        if self._state is None or not isinstance(way, KeptStage):
            self._rows(engine, f"{table}_some", of, stage.keys, self._values(engine, need, f"d{of}"))
            most = self._sizes[f"{table}_some"]
            self._make_of(engine, table, of, self._rules.netted(of, f"{table}_some"), most=most)
            return
        if way.order is None:
            groups, first = self._values(engine, need, f"d{of}"), None
        else:
            losing = engine.answer(self._rules.losing(stage, "d"))
            first = pc.max(losing.column(-1)).as_py() + leading(stage)[0].most
            groups = losing.select(list(stage.keys))
        self._take(engine, table, of, self._state(way, groups, first))

    def _meet(self, engine: Engine, number: int, stage: Join, first: int) -> None:
        """Make the tables of what meets the updates of the input at a place."""
        read = inputs(stage)
        known = {first: f"d{read[first]}"}
        for need in needs(stage, first):
            table, both = before(number, first, need.place), whole(number, first, need.place)
            one = read[need.place]
            self._rows(engine, table, one, need.by, self._values(engine, need, known[need.given]))
            engine.call(both, f"SELECT * FROM {table} UNION ALL SELECT * FROM d{one}")
            known[need.place] = table if need.place < first else both

    def _values(self, engine: Engine, need: Need, table: str) -> KeyRows | None:
        """The values to look for; None: all rows are wanted."""
        if not need.by:
            return None
        try:
            return engine.values(table, need)
        except engine.errors as error:
            raise RefreshFailed(self._view, f"keys of {table}", reason(error)) from error

    def _rows(
        self, engine: Engine, table: str, number: int, by: tuple[str, ...], keys: KeyRows | None
    ) -> None:
        """Make a table of the rows of a stage just before the span: at least those with keys."""
        stage, way = self._plan.stages[number], self._reach.way(number, by)
        if keys is not None and not keys.num_rows:
            self._sizes[table] = 0
            engine.empty(table, self._timed(stage.columns))
            return
        match way:
            case Looked(key):
                found = None if keys is None or not key else keys.select(list(key))
                self._take(engine, table, number, self._contents(number, found))
            case Computed(ways):
                for one, columns in ways:
                    inner = None if keys is None else _renamed(keys.select(list(by)), columns)
                    self._rows(engine, f"{table}_{one}", one, columns, inner)
                most = None
                if isinstance(stage, Map | Union):
                    most = sum(self._sizes[f"{table}_{one}"] for one in inputs(stage))
                self._make_of(engine, table, number, self._rules.contents(number, f"{table}_"), most=most)
            case Summed(columns):
                inner = None if keys is None or not columns else _renamed(keys.select(list(by)), columns)
                self._sums(engine, f"{table}_s{number}", number, inner)
                most = self._sizes[f"{table}_s{number}"]
                self._make_of(engine, table, number, self._rules.contents(number, f"{table}_"), most=most)
            case KeptStage():
                if self._state is None:
                    self._know(engine, number)
                    engine.call(table, f"SELECT * FROM a{number}")
                    self._sizes[table] = self._sizes[f"a{number}"]
                else:
                    self._take(engine, table, number, self._state(way, keys, None))

    def _sums(self, engine: Engine, table: str, number: int, keys: KeyRows | None) -> None:
        """Make a table of the sums of groups just before the span: at least those of keys."""
        if keys is not None and not keys.num_rows:
            self._sizes[table] = 0
            engine.empty(table, self._timed(sum_columns(self._plan, number)))
        elif self._state is None:
            self._know(engine, number)
            self._sizes[table] = self._sizes[f"as{number}"]
            engine.call(table, f"SELECT * FROM as{number}")
        else:
            scan = self._state(sums_of(self._plan, number), keys, None)
            self._take(engine, table, number, scan, sums=True)

    def _know(self, engine: Engine, number: int) -> None:
        """Make the table of all contents of a stage just before the span."""
        if number in self._known:
            return
        self._known.add(number)
        stage = self._plan.stages[number]
        if isinstance(stage, FromCollection):
            self._take(engine, f"a{number}", number, self._contents(number, None))
            return
        for one in dict.fromkeys(inputs(stage)):
            self._know(engine, one)
        if isinstance(stage, Count):
            self._make_of(engine, f"as{number}", number, self._rules.sums_before(number), sums=True)
        self._make_of(engine, f"a{number}", number, self._rules.contents(number))

    def _take(
        self,
        engine: Engine,
        table: str,
        number: int,
        scan: Scan,
        *,
        net: bool = False,
        sums: bool = False,
    ) -> int:
        """Read rows into a table; returns how many it has.

        Updates are netted; contents are at `BEFORE`.
        """
        columns = self._timed(columns_of(self._plan, KeptStage(number, (), sums)))
        try:
            rows = engine.take(table, columns, scan, None if net else BEFORE)
        except engine.errors as error:
            if isinstance(scan.failure, TidelakeError):
                raise scan.failure from None
            if isinstance(error, TidelakeError):
                raise
            raise self._failed(number, error) from error
        self.read[number] = self.read.get(number, 0) + rows
        self._sizes[table] = rows
        if isinstance(scan, Found) and scan.how:
            self.how[number] = scan.how
        return rows

    def _timed(self, columns: Columns) -> Columns:
        return (
            *columns,
            PlanColumn(self._rules.time, "BIGINT"),
            PlanColumn(self._rules.count, "HUGEINT"),
        )

    def _make_of(
        self,
        engine: Engine,
        table: str,
        number: int,
        query: str,
        *,
        sums: bool = False,
        most: int | None = None,
    ) -> int:
        """Make a table of a query, with the types of a stage; returns how many rows it has, or may have."""
        columns = columns_of(self._plan, KeptStage(number, (), sums))
        try:
            self._sizes[table] = engine.fill(table, self._timed(columns), query, most)
        except engine.errors as error:
            raise self._failed(number, error) from error
        return self._sizes[table]

    def _failed(self, number: int, error: Exception) -> RefreshFailed:
        kind = type(self._plan.stages[number]).__name__.lower()
        return RefreshFailed(self._view, f"{number} ({kind})", reason(error))

    def _rows_kept(self, engine: Engine, kept: KeptStage, letter: str) -> Output:
        """What is kept, or its updates, as a collection takes them. A sum that is too large is refused."""
        columns = [(one.name, one.name, stored_type(one.type)) for one in columns_of(self._plan, kept)]
        table = f"{letter}{'s' if kept.sums else ''}{kept.stage}"
        return self._read(engine, table, columns, str(kept), kept.order)

    def _answer(self, engine: Engine) -> Output:
        last = len(self._plan.stages) - 1
        names = zip(self._plan.stages[last].columns, self._plan.columns, strict=True)
        columns = [(old.name, new.name, stored_type(new.type)) for old, new in names]
        return self._read(engine, f"d{last}", columns, f"{last} (answer)")

    def _read(
        self,
        engine: Engine,
        table: str,
        columns: Sequence[tuple[str, str, str]],
        stage: str,
        order: str | None = None,
    ) -> Output:
        """The rows of a table: columns as they are called there and here, with their types, and the rest."""
        timed = [(self._rules.time, _TIME, "BIGINT"), (self._rules.count, DIFF, "BIGINT")]
        try:
            return engine.read(table, columns, timed, order)
        except engine.errors as error:
            raise RefreshFailed(self._view, stage, reason(error)) from error


def stored_type(type_: str) -> str:
    """The type in which a collection keeps a column."""
    return type_.replace("HUGEINT", "DECIMAL(38,0)")


def _renamed(keys: KeyRows, names: Sequence[str]) -> KeyRows:
    """KeyRows under other names; if two columns get one name, the first stays."""
    first = dict(zip(reversed(names), reversed(keys.column_names), strict=True))
    some = dict.fromkeys(names)
    return keys.select([first[name] for name in some]).rename_columns([*some])
