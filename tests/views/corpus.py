"""The queries of TPC-H and TPC-DS, over random rows that come, go and are corrected.

The texts are not ours, so they are not here: extensions of DuckDB have them, in an environment of their own.
"""

import datetime
import json
import subprocess
from collections import defaultdict
from decimal import Decimal
from functools import cache
from random import Random
from typing import Any

import pyarrow as pa
import pytest
import sqlglot
from sqlglot import exp

from bench.peers.run import PLACE

ARROW = {"BIGINT": pa.int64(), "INTEGER": pa.int32(), "VARCHAR": pa.string(), "DATE": pa.date32()}
DAY = datetime.date(1998, 1, 1)
# Keys are so few that joins find something.
KEYS = 6
GENERATORS = {"tpch": "dbgen", "tpcds": "dsdgen"}
_ASK = """
import json, sys, duckdb, importlib
name, generate = sys.argv[1:]
place = importlib.import_module("duckdb_extension_" + name).__path__[0]
run = duckdb.connect(config={"allow_unsigned_extensions": "true"}).execute
run(f"LOAD '{place}/extensions/v{duckdb.__version__}/{name}.duckdb_extension'")
texts = [text for _, text in run(f"FROM {name}_queries() ORDER BY 1").fetchall()]
run(f"CALL {generate}(sf=0)")
columns = run("SELECT table_name, column_name, data_type FROM duckdb_columns() WHERE NOT internal").fetchall()
print(json.dumps([texts, columns]))
"""


@cache
def corpus(name: str) -> tuple[dict[str, dict[str, str]], list[str]]:
    """The types of columns by table, and the queries."""
    python = PLACE / "tpc" / "bin" / "python"
    if not python.exists():
        pytest.skip("no texts of TPC-H and TPC-DS: setup/peers.sh tpc installs it")
    asked = [str(python), "-c", _ASK, name, GENERATORS[name]]
    texts, columns = json.loads(subprocess.run(asked, check=True, capture_output=True, text=True).stdout)
    tables = defaultdict[str, dict[str, str]](dict)
    for table, column, type_ in columns:
        tables[table][column] = type_
    return tables, [*map(_ordered, texts)]


def _ordered(text: str) -> str:
    """A query whose first rows are the same ones for each engine: all columns order them."""
    query = sqlglot.parse_one(text, dialect="duckdb")
    if query.args.get("limit") is None or query.args.get("order") is None or query.is_star:
        return text
    for place in range(1, len(query.selects) + 1):
        query.args["order"].append("expressions", exp.Ordered(this=exp.Literal.number(place)))
    return query.sql("duckdb")


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


def created(lake: Any, tables: dict[str, dict[str, str]]) -> None:
    """Make collections of all tables."""
    for table, types in tables.items():
        schema = {column: ARROW.get(type_, pa.decimal128(15, 2)) for column, type_ in types.items()}
        lake.create(table, schema, key=[next(iter(types))])
