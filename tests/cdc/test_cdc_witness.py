"""wal2json beside Debezium: what PostgreSQL itself says of each transaction, read by no code of ours."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from tests.cdc.dialects.dialect_parsing import parse
from tests.cdc.workload import TABLES, Bank, key_of
from tests.store.servers import postgres, program
from tidelake.cdc.dialects.wal2json import WAL2JSON

SLOT = "witness"
# Columns whose values wal2json writes as JSON has them, or as texts of which there is one.
SIMPLE = ("bigint", "integer", "text", "boolean")


@pytest.fixture
def wal2json() -> None:
    if not (Path(program("postgres")).resolve().parents[1] / "lib" / "wal2json.so").exists():
        pytest.skip("no wal2json on this machine; setup/servers.sh installs it")


def slot(connection: psycopg.Connection[Any]) -> None:
    connection.execute("SELECT pg_create_logical_replication_slot(%s, 'wal2json')", [SLOT])


def messages(connection: psycopg.Connection[Any], version: int) -> list[bytes]:
    """What the plug-in says of all transactions since the slot was made."""
    options = ["include-lsn", "1", "include-timestamp", "1", "include-pk", "1", "add-tables", "public.*"]
    statement = "SELECT data FROM pg_logical_slot_peek_changes(%s, NULL, NULL, VARIADIC %s::text[])"
    told = connection.execute(statement, [SLOT, ["format-version", str(version), *options]]).fetchall()
    return [text.encode() for (text,) in told]


def simple(columns: list[dict[str, Any]]) -> dict[str, Any]:
    return {one["name"]: one["value"] for one in columns if one["type"] in SIMPLE}


def columns_of(table: str) -> list[str]:
    """The columns of `SIMPLE` types, in the order of the table."""
    words = [part.split() for part in TABLES[table].split(", ") if part[0].islower()]
    return [word[0] for word in words if len(word) > 1 and word[1] in SIMPLE]


def replayed(lines: list[bytes]) -> Iterator[tuple[int, Counter[Any]]]:
    """Of each transaction: its time, and its updates."""
    tables: dict[str, dict[tuple[Any, ...], dict[str, Any]]] = {table: {} for table in TABLES}
    changed: Counter[Any] = Counter()
    for line in lines:
        one = json.loads(line)
        action, table = one["action"], one.get("table", "")
        if action == "C":
            high, _, low = one["nextlsn"].partition("/")
            upto = (int(high, 16) << 32) + int(low, 16) - 1
            yield upto, Counter({row: n for row, n in changed.items() if n})
            changed = Counter()
        if not table:
            continue
        rows, names, columns = tables[table], key_of(table), columns_of(table)
        given, identity = (simple(one.get(name, [])) for name in ("columns", "identity"))
        gone = [*rows] if action == "T" else [tuple(identity[n] for n in names)] if identity else []
        new = {**(rows.get(gone[0], {}) if action == "U" else {}), **given}
        for key in gone:
            old = rows.pop(key)
            changed[(table, *(old[n] for n in columns))] -= 1
        if action in "IU":
            # A value that is left out did not change.
            rows[tuple(new[n] for n in names)] = new
            changed[(table, *(new[n] for n in columns))] += 1


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("wal2json")
def test_the_dialect_tells_what_a_real_plug_in_has_written(rng: Random) -> None:
    schemas = {
        "accounts": {"id": pa.int64(), "owner": pa.string(), "active": pa.bool_(), "tx": pa.int64()},
        "documents": {"id": pa.int64(), "body": pa.string(), "meta": pa.string(), "tx": pa.int64()},
        "notes": {"place": pa.int32(), "name": pa.string(), "body": pa.string(), "tx": pa.int64()},
    }
    with postgres(wal_level="logical") as database:
        bank = Bank(database, rng.getrandbits(32))
        with psycopg.connect(database.url(), autocommit=True) as connection:
            slot(connection)
            bank.start()
            time.sleep(3)
            # From the first barrier on, tables are truncated as well.
            bank.barrier()
            bank.start()
            time.sleep(3)
            barrier = bank.barrier()
            lines = messages(connection, 2)
        for table, columns in schemas.items():
            key = key_of(table)
            fields = [pa.field(n, kind, nullable=n not in key) for n, kind in columns.items()]
            parsed = parse(
                WAL2JSON,
                *lines,
                schema=pa.schema(fields),
                key=key,
                unit="us",
                table=("public", table),
            )
            emptied = [] if parsed.truncates is None else parsed.truncates.lines.tolist()
            events = [(row["_line"], row) for row in parsed.rows.to_pylist()] + [(n, None) for n in emptied]
            rows: dict[tuple[Any, ...], dict[str, Any]] = {}
            for _, row in sorted(events, key=lambda event: event[0]):
                if row is None:
                    rows.clear()
                    continue
                at = tuple(row[n] for n in key)
                old = rows.pop(at, {})
                if not row["_removed"]:
                    left = json.loads(row["_left_out"] or "[]")
                    rows[at] = {n: old[n] if n in left else row[n] for n in columns}
            wanted = [{n: row[n] for n in columns} for row in barrier.tables[table]]
            # It may have been truncated last.
            assert sorted(rows.values(), key=repr) == sorted(wanted, key=repr) and events


@pytest.mark.promise(
    "Each transaction of a PostgreSQL is in the collections at its own time, with exactly the rows that "
    "another plug-in of that database tells",
    rule="`cdc/times/timeline.py`",
)
@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.timeout(0)
@pytest.mark.usefixtures("wal2json")
def test_each_transaction_has_the_rows_that_wal2json_tells(rng: Random) -> None:
    pytest.importorskip("pyspark")
    from tests.cdc.pipeline import PARTS, pipeline

    with pipeline() as parts, psycopg.connect(parts.database.url(), autocommit=True) as connection:
        slot(connection)
        bank = Bank(parts.database, rng.getrandbits(32))
        bank.start()
        parts.start()
        parts.follow(bank.barrier().lsn)
        for part in rng.sample([one for one in PARTS if one != "postgresql"], 3):
            parts.kill_amid(part, bank, rng)
        bank.start()
        time.sleep(20)
        last = bank.barrier().lsn
        parts.follow(last)
        found: dict[int, Counter[Any]] = {}
        copied = 0
        for table in TABLES:
            collection = parts.lake[f"bank.public.{table}"]
            rows = collection.updates(0, last + 1).read_all().to_pylist()
            copied = max(copied, min((row["_time"] for row in rows), default=0))
            for row in rows:
                told = found.setdefault(row["_time"], Counter())
                told[table, *(row[n] for n in columns_of(table))] += row["_diff"]
        compared = 0
        for at, wanted in replayed(messages(connection, 2)):
            if copied < at <= last:
                assert {row: n for row, n in found.pop(at, Counter()).items() if n} == wanted, at
                compared += bool(wanted)
        assert not [at for at, rows in found.items() if at > copied and any(rows.values())]
        assert compared > 100
