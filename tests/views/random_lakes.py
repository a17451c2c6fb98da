"""Random queries as views of a lake with a random history: what is stored is what DuckDB answers, each time.

A lake serves many queries, and a query, compiled once, several lakes. Views are made at a random time and
refreshed at random ones, once by a process that is killed. What they store must be, row for row, how the
engine's answers over the snapshots differ from one time to the next: so it does not depend on the cuts
either. While rows are there less than no times, the engine has no answer; then the stages of the plan over
whole contents say what is right.
"""

import contextlib
import gc
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from plan_reference import evaluated, fill
from random_queries import BASE, Queries

import tidelake
from killed import killed_before
from tidelake.errors import UsageError
from tidelake.lake.api.embedded import DUCKDB_CONFIG
from tidelake.lake.api.lake import Lake
from tidelake.views import spans, state
from tidelake.views.database import Database
from tidelake.views.engine import Schemas
from tidelake.views.inputs import named, plan_of
from tidelake.views.plan import ViewPlan
from tidelake.views.query.compile import compiled

TIMES = 4
ARROW = {"i": pa.int32(), "f": pa.float64(), "s": pa.string(), "d": pa.decimal128(10, 2)}
ENGINE = {"i": "INTEGER", "f": "DOUBLE", "s": "VARCHAR", "d": "DECIMAL(10,2)"}
VALUES: dict[str, list[object]] = {
    "i": [None, 0, 1, 1, 2, 3],
    "f": [None, 0.5, -1.5, 0.0, -0.0, float("nan"), 2.0],
    "s": [None, "p", "q", "q", "z"],
    "d": [None, "1.50", "-2.25", "66.67", "0.00"],
}
Rows = list[tuple[Any, ...]]
"""Rows with a time and a multiplicity at the end."""


def history(rng: Random, name: str, *, negative: bool) -> Rows:
    """Updates of a table: new rows, equal ones, retractions, and rows that are owed if that is wanted."""
    current, found = Counter[tuple[Any, ...]](), Rows()
    if name == "e" and rng.random() < 0.5:
        return []
    for time in range(TIMES):
        for _ in range(rng.choice([0, 1, 2, 2, 4]) if time else rng.randint(0, 6)):
            row = tuple(rng.choice(VALUES[kind]) for kind in BASE[name].values())
            many = rng.choice([1, 1, 1, 2, 3])
            if current and rng.random() < 0.5:
                row = rng.choice(sorted(current, key=repr))
                many = -rng.randint(1, max(1, current[row])) if rng.random() < 0.8 else many
            if negative and rng.random() < 0.4:
                many = -rng.randint(1, 2)
            current[row] += many
            if not current[row]:
                del current[row]
            found.append((*row, time, many))
    return found


def table(name: str, rows: Rows) -> pa.Table:
    """Updates as a collection takes them."""
    arrays = {}
    for i, (column, kind) in enumerate(BASE[name].items()):
        given = pa.array([row[i] for row in rows], pa.string() if kind == "d" else ARROW[kind])
        arrays[column] = given.cast(ARROW[kind])
    times, counts = [[row[place] for row in rows] for place in (-2, -1)]
    return pa.table(arrays | {"_time": pa.array(times, pa.int64()), "_diff": pa.array(counts, pa.int64())})


def contents(rows: Rows, time: int) -> Rows:
    """Rows with multiplicities."""
    found = Counter[str]()
    first = {repr(row[:-2]): row[:-2] for row in rows}
    for row in rows:
        if row[-2] <= time:
            found[repr(row[:-2])] += row[-1]
    return [(*first[row], many) for row, many in found.items() if many]


def plain(value: Any) -> Any:
    """A value that is equal to itself."""
    match value:
        case float():
            return "NaN" if value != value else value + 0.0
        case list():
            return tuple(map(plain, value))
        case dict():
            return tuple((name, plain(one)) for name, one in value.items())
        case _:
            return value


class Engines:
    """What is right: DuckDB over each snapshot, or the stages of a plan over it."""

    def __init__(self, duckdb: Any, tables: dict[str, Rows]) -> None:
        self._engine = duckdb.connect(":memory:", config=DUCKDB_CONFIG)
        self._engine.execute("SET TimeZone = 'UTC'")
        self._tables, self.owed = tables, set[int]()
        for time in range(TIMES):
            at = {name: contents(rows, time) for name, rows in tables.items()}
            if any(row[-1] < 0 for rows in at.values() for row in rows):
                self.owed.add(time)
            self._engine.execute(f"CREATE SCHEMA t{time}; SET schema = 't{time}'")
            for name, rows in at.items():
                columns = {column: ENGINE[kind] for column, kind in BASE[name].items()}
                # The stages need multiplicities, and DuckDB each row so often.
                fill(self._engine, name, columns, rows)
                if time not in self.owed:
                    self._engine.execute(
                        f"CREATE OR REPLACE TABLE {name} AS SELECT * EXCLUDE (__m, __n) FROM "
                        f"(SELECT *, unnest(range(__m)) AS __n FROM {name})"
                    )

    def close(self) -> None:
        self._engine.close()

    def answer(self, sql: str, plan: ViewPlan, time: int) -> Counter[tuple[Any, ...]]:
        self._engine.execute(f"SET schema = 't{time}'")
        if time in self.owed:
            return evaluated(plan, self._engine)
        return Counter(tuple(map(plain, row)) for row in self._engine.execute(sql).fetchall())


def texts(seed: int, many: int, *, deep: Sequence[int] = (1, 1, 2, 2, 3)) -> list[str]:
    """Random queries."""
    rng = Random(seed)
    return [Queries(seed * 1_000 + number).query(rng.choice(deep)).sql for number in range(many)]


@lru_cache
def _plan(sql: str) -> ViewPlan:
    schemas = {n: {c: ENGINE[kind] for c, kind in columns.items()} for n, columns in BASE.items()}
    return compiled(sql, schemas.get)


def _compiled_once(_: Database, sql: str, schema_of: Schemas) -> ViewPlan:
    """As `Database.compiled`, of these tables only."""
    plan = _plan(sql)
    assert all(schema_of(name) for name in plan.collections)
    return plan


def check(duckdb: Any, place: Path, seed: int, queries: Sequence[str]) -> int:
    """Make views of queries over a random history, and check what they store. Returns how many."""
    rng = Random(seed)
    negative = rng.random() < 0.25
    tables = {name: history(rng, name, negative=negative) for name in BASE}
    birth = rng.choice([0, 0, 0, 1])
    first = rng.randint(birth, TIMES - 1)
    cuts = sorted({TIMES - 1, *(rng.randrange(TIMES) for _ in range(rng.randint(0, 1)))})
    views = dict[str, str]()
    dies = rng.randrange(12 * len(queries)) if rng.random() < 0.3 else None
    # Half of the lakes look rows up, and keep groups in order, however few there are, and trim state often.
    looks_up = Random(seed + 1).random() < 0.5
    together = "t" if Random(seed + 2).random() < 0.3 else ""
    indexes = Random(seed + 3)
    with contextlib.ExitStack() as stack:
        # Tables of a few rows take half the time without threads, and tests without searches for garbage.
        stack.enter_context(patch.dict(DUCKDB_CONFIG, threads="1"))
        stack.callback(gc.enable)
        gc.disable()
        stack.enter_context(patch.object(Database, "compiled", _compiled_once))
        engines = stack.enter_context(contextlib.closing(Engines(duckdb, tables)))
        stack.enter_context(patch.object(state, "_ROWS_PER_KEY", 0 if looks_up else 8))
        stack.enter_context(patch.object(state, "_TRIMMED_EVERY", 2 if looks_up else 16))
        stack.enter_context(patch.object(state, "_MANY_ROWS", 2 if looks_up else 16_384))
        # Half of them compute all again wherever that may be.
        again = Random(seed + 4).random() < 0.5
        stack.enter_context(patch.object(spans, "AGAIN_SHARE", 0.0 if again else 1.0))
        # Only what is killed needs files.
        lake = tidelake.open(place if dies is not None else f"memory://{place.parent.name}-{place.name}")
        for name, columns in BASE.items():
            lake.create(name, {c: ARROW[kind] for c, kind in columns.items()}, key=[next(iter(columns))])
        for time in range(TIMES):
            for name, rows in tables.items():
                lake[name].append(table(name, [row for row in rows if row[-2] == time]), upper=time + 1)
            if time == first:
                lake["a"].advance_since(birth)
                _index(lake, indexes)
                views = {f"v{n}": sql for n, sql in enumerate(queries) if _made(lake, f"v{n}", sql, together)}
                _index(lake, indexes)
            elif time > first and time in cuts:
                if dies is not None:
                    lake.close()
                    killed_before(place, _refresh, dies)
                    lake, dies = tidelake.open(place), None
                lake.refresh()
        assert not together or len({str(lake[name].upper) for name in views}) <= 1
        for name, sql in views.items():
            _same(name, sql, lake, engines, seed)
        lake.close()
    return len(views)


def _index(lake: Lake, rng: Random) -> None:
    """Make some indexes, in half of the lakes."""
    for name, (_, *columns) in BASE.items() if rng.random() < 0.3 else ():
        lake.index(name, by=rng.sample(columns, rng.randint(1, len(columns))))


def _refresh(place: Path) -> None:
    with tidelake.open(place) as lake:
        lake.refresh()


def _made(lake: Lake, name: str, sql: str, together: str) -> bool:
    """Whether a query is a view; one of constants only is none."""
    try:
        lake.view(name, sql, together=together)
    except UsageError as error:
        if "reads no collection" in str(error):
            return False
        raise
    return True


def _same(name: str, sql: str, lake: Lake, engines: Engines, seed: int) -> None:
    definition, before = named(lake, name)[1], Counter[tuple[Any, ...]]()
    stored, plan = stored_updates(lake, name, definition.birth), plan_of(name, definition, Database())
    for time in range(definition.birth, TIMES):
        now = engines.answer(sql, plan, time)
        wanted = {row: now[row] - before[row] for row in {**now, **before} if now[row] != before[row]}
        found = {row[:-1]: many for row, many in stored.items() if row[-1] == time}
        assert found == wanted, f"seed {seed}, {name} at {time}: {sql}\nfound {found}\nwanted {wanted}"
        before = now


def stored_updates(lake: Lake, name: str, birth: int) -> Counter[tuple[Any, ...]]:
    """The stored updates by row and time; each must be there once."""
    found = Counter[tuple[Any, ...]]()
    for rows in _batches(lake, name, birth):
        for *row, time, many in zip(*(column.to_pylist() for column in rows.columns), strict=True):
            key = (*map(plain, row), time)
            assert key not in found and many, f"{name} has the update {key} twice, or no times"
            found[key] = many
    return found


def _batches(lake: Lake, name: str, birth: int) -> Iterator[pa.RecordBatch]:
    view = lake[name]
    yield from view.snapshot(birth)
    yield from view.updates(birth + 1, TIMES)
