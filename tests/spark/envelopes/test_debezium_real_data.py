"""The history of a real table, written as Debezium writes it, gives every state that the data set has."""

import csv
import itertools
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

import tidelake
from tidelake.spark import ingest_change_files

pytestmark = pytest.mark.usefixtures("both_ways")

FILES = 4


def history(folder: Path) -> tuple[list[dict[str, Any]], pa.Schema]:
    """The changes in order, and the columns of the table; the first column is the key."""
    table = pq.read_table(folder / "changes.parquet").sort_by("version")
    names = [name for name in table.column_names if name not in ("version", "ts", "op")]
    fields = [pa.field(name, pa.string(), nullable=name != names[0]) for name in names]
    return table.to_pylist(), pa.schema(fields)


def lines(changes: list[dict[str, Any]], schema: pa.Schema, whole: bool) -> list[str]:
    """A change event each; with `whole` old rows, or the keys of deletes only."""
    rows: dict[str, dict[str, Any]] = {}
    found = []
    for n, change in enumerate(changes):
        row = {name: change[name] for name in schema.names}
        key = row[schema.names[0]]
        old = rows.pop(key, None)
        new = None if change["op"] == "delete" else rows.setdefault(key, row)
        op = "d" if new is None else "c" if old is None else "u"
        before = old if whole else {schema.names[0]: key} if op == "d" else None
        event = {"before": before, "after": new, "source": {"lsn": change["version"], "n": n}, "op": op}
        found.append(
            json.dumps(event if n % 3 else {"schema": None, "payload": event}, ensure_ascii=n % 2 == 0)
        )
    return found


def states(folder: Path, schema: pa.Schema) -> dict[int, Counter[Any]]:
    with (folder / "versions.csv").open(newline="") as file:
        numbers = {line["commit"][:12]: i for i, line in enumerate(csv.DictReader(file))}
    found = {}
    for path in (folder / "truth").glob("state_*.parquet"):
        table = pq.read_table(path)
        assert table.column_names == schema.names
        rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
        found[numbers[path.stem.removeprefix("state_")]] = Counter(rows)
    return found


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "old_rows"),
    [
        ("sp500", "events"),
        ("sp500", "stored"),
        pytest.param("dotgov", "events", marks=pytest.mark.soak),
        ("dotgov", "stored"),
    ],
)
def test_every_state_of_a_real_table(
    spark: Any, tmp_path: Path, shared_data: Path, name: str, old_rows: Any
) -> None:
    folder = shared_data / name
    changes, schema = history(folder)
    truth = states(folder, schema)
    texts = lines(changes, schema, old_rows == "events")
    landing = tmp_path / "in"
    landing.mkdir()
    # Cut between versions: time goes on in the next file.
    begins = _begins(changes)
    cuts = [min(n for n in begins if n >= len(texts) * i // FILES) for i in range(FILES + 1)]
    for i, (start, end) in enumerate(itertools.pairwise(cuts)):
        path = landing / f"{i}.json"
        path.write_text("\n".join(texts[start:end]) + "\n")
        os.utime(path, (1_000_000_000 + i,) * 2)
    c = tidelake.open(tmp_path / "lake").create("c", schema, key=schema.names[:1])
    order = "source.n" if old_rows == "stored" else None
    report = ingest_change_files(
        spark, c, landing, tmp_path / "check", old_rows=old_rows, order_by=order, max_files_per_trigger=1
    )
    assert (report.batches, report.events) == (FILES, len(changes))
    wrong = []
    for version, state in truth.items():
        rows = c.snapshot(min(version, c.upper.elements[0] - 1)).read_all()
        columns = [rows.column(name).to_pylist() for name in schema.names]
        found = Counter(dict(zip(zip(*columns, strict=True), rows.column("_diff").to_pylist(), strict=True)))
        wrong += [version] if found != state else []
    assert not wrong and truth


def _begins(changes: list[dict[str, Any]]) -> set[int]:
    """Where a version begins, and the end."""
    versions = [change["version"] for change in changes]
    return {0, len(changes), *(n for n in range(1, len(changes)) if versions[n] != versions[n - 1])}
