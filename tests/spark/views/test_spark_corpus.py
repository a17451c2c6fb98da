"""The queries of TPC-H and TPC-DS in Spark's SQL are views: see `tests/views/query/test_corpus.py`."""

import datetime
import json
import os
from collections import defaultdict
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
import sqlglot

pytest.importorskip("pyspark")
pytest.importorskip("duckdb")

from sqlglot import exp

import tidelake
from tidelake import spark as ts
from tidelake.errors import UsageError
from tidelake.spark.views.engine import SparkEngine

FOLDER = os.environ.get("TIDELAKE_TPC")
pytestmark = pytest.mark.skipif(FOLDER is None, reason="TIDELAKE_TPC names no folder with the queries")
REFUSED = {17: "stddev_samp", 35: "stddev_samp", 39: "stddev_samp", 64: "'cnt'"}
ARROW = {"BIGINT": pa.int64(), "INTEGER": pa.int32(), "VARCHAR": pa.string(), "DATE": pa.date32()}
DAY = datetime.date(1998, 1, 1)
# Keys are so few that joins find something.
KEYS = 6


def corpus(name: str) -> tuple[dict[str, dict[str, str]], list[str]]:
    """The types of columns by table, and the queries."""
    folder = Path(str(FOLDER))
    tables = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return tables, [
        one for one in (folder / f"{name}.sql").read_text(encoding="utf-8").split(";") if one.strip()
    ]


@pytest.mark.parametrize(
    ("name", "queries", "refused"),
    [
        pytest.param("tpc-h", 22, {}, marks=pytest.mark.full),
        pytest.param("tpc-ds", 99, REFUSED, marks=pytest.mark.soak),
    ],
)
def test_the_queries_of_a_benchmark_are_accepted_by_spark(
    spark: Any, name: str, queries: int, refused: dict[int, str]
) -> None:
    engine, found, (told, texts) = SparkEngine(spark), dict[int, str](), corpus(name)
    tables = {
        table: {column: type_.replace("VARCHAR", "STRING") for column, type_ in columns.items()}
        for table, columns in told.items()
    }
    assert len(texts) == queries
    for number, text in enumerate(texts, 1):
        try:
            assert engine.compiled(sqlglot.transpile(text, "duckdb", "spark")[0], tables.get).stages
        except UsageError as error:
            found[number] = str(error)
    assert found.keys() == refused.keys()
    assert all(why in found[number] for number, why in refused.items())


class Rows:
    """Random rows of the tables, whose values are among those that the queries ask for."""

    def __init__(self, random: Random, tables: dict[str, dict[str, str]], texts: list[str]) -> None:
        self.random, self.tables = random, tables
        self.wanted = defaultdict[str, list[str]](list)
        self.there: dict[str, list[tuple[Any, ...]]] = {name: [] for name in tables}
        for text in texts:
            for node in sqlglot.parse_one(text, dialect="duckdb").find_all(exp.Predicate):
                names = {column.name.lower() for column in node.find_all(exp.Column)}
                if len(names) == 1 and not node.find(exp.Query):
                    self.wanted[names.pop()] += [one.this for one in node.find_all(exp.Literal)]

    def change(self, table: str, gone: int, come: int) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
        """Rows that are gone, and new ones: the half of them are old ones in which one value is corrected."""
        there, columns = self.there[table], [*self.tables[table].items()]
        old = [there.pop(self.random.randrange(len(there))) for _ in range(min(gone, len(there)))]
        new = [tuple(self._value(*column) for column in columns) for _ in range(come)]
        for row in old[::2]:
            place = self.random.randrange(len(columns))
            new.append((*row[:place], self._value(*columns[place]), *row[place + 1 :]))
        there += new
        return old, new

    def _value(self, column: str, type_: str) -> Any:
        pick, is_wanted = self.random, self.wanted[column] and self.random.random() < 0.8
        if pick.random() < 0.03:
            return None
        text = pick.choice(self.wanted[column]) if is_wanted else None
        number = int(text) if text is not None and text.isdigit() else None
        is_key = column.endswith(("key", "_sk")) or number is None
        if type_ in ("BIGINT", "INTEGER"):
            return pick.randrange(KEYS) if is_key else number
        if type_ == "DATE" or (type_ == "VARCHAR" and column.endswith("date")):
            try:
                day = datetime.date.fromisoformat(text or "")
            except ValueError:
                day = DAY
            day += datetime.timedelta(days=pick.randrange(-20, 60))
            return day if type_ == "DATE" else str(day)
        if type_ == "VARCHAR":
            return text.replace("%", pick.choice("ab")).replace("_", "c") if text else f"{pick.randrange(3)}"
        return Decimal(pick.randrange(1, 40_000)) / 100 if number is None else Decimal(number)


def appended(lake: Any, rows: Rows, time: int, *, gone: int, come: int) -> None:
    """Change all tables."""
    for name, types in rows.tables.items():
        old, new = rows.change(name, gone, come)
        counts = pa.array([-1] * len(old) + [1] * len(new), pa.int64())
        given = {
            column: pa.array([row[place] for row in (*old, *new)], ARROW.get(type_, pa.decimal128(15, 2)))
            for place, (column, type_) in enumerate(types.items())
        }
        lake[name].append(pa.table({**given, "_diff": counts}), time=time)


def follow(spark: Any, place: Path, random: Random, name: str, numbers: list[int]) -> int:
    """Make views of some queries, refresh them after changes, and compare each time. Returns how many."""
    (tables, texts), views = corpus(name), list[str]()
    rows = Rows(random, tables, texts)
    with tidelake.open(place) as lake:
        for table, types in tables.items():
            schema = {column: ARROW.get(type_, pa.decimal128(15, 2)) for column, type_ in types.items()}
            lake.create(table, schema, key=[next(iter(types))])
        appended(lake, rows, 0, gone=0, come=30)
        for number in numbers:
            ts.view(spark, lake, f"q{number}", sqlglot.transpile(texts[number - 1], "duckdb", "spark")[0])
            views.append(f"q{number}")
        for time in (1, 3):
            appended(lake, rows, time, gone=4, come=3)
            appended(lake, rows, time + 1, gone=3, come=4)
            ts.refresh(spark, lake)
            for view in views:
                found = ts.verify(spark, lake, view)
                assert found.equal, f"{name} {found}"
    return len(views)


@pytest.mark.full
@pytest.mark.promise(
    "Views of TPC-H's queries in Spark's SQL are Spark's answers after rows came, went and were corrected",
    rule="`views/rules.py`, `SparkEngine` in `spark/views/engine.py`",
)
def test_some_queries_of_a_benchmark_stay_sparks_answers(spark: Any, tmp_path: Path, rng: Random) -> None:
    # An aggregate, an outer join with two groups, and a subquery.
    assert follow(spark, tmp_path, rng, "tpc-h", [1, 13, 4]) == 3


@pytest.mark.soak
@pytest.mark.parametrize(("name", "queries"), [("tpc-h", 22), ("tpc-ds", 99)])
def test_all_queries_of_a_benchmark_stay_sparks_answers(
    spark: Any, tmp_path: Path, rng: Random, name: str, queries: int
) -> None:
    for number in range(1, queries + 1):
        if name == "tpc-h" or number not in REFUSED:
            assert follow(spark, tmp_path / f"{number}", rng, name, [number])
