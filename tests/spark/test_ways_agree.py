"""One write by the driver, by tasks and through the format: the same updates, or the same refusal."""

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

import tidelake
from tidelake.spark import write
from tidelake.testing import tables
from tiers import examples

SCHEMA = pa.schema(
    [
        pa.field("a.b", pa.string()),
        pa.field("k`2", pa.float64()),
        pa.field("größe", pa.decimal128(38, 2)),
        pa.field("x y", pa.float64()),
        pa.field("bin", pa.binary()),
        pa.field("t", pa.timestamp("us", "UTC")),
        pa.field("big", pa.int64()),
        pa.field("list", pa.list_(pa.int32())),
        pa.field("st", pa.struct([("f.g", pa.string()), ("h", pa.float32())])),
    ]
)
NAN = float("nan")
VALUES: dict[str, list[Any]] = {
    "a.b": [None, "", "a", "日本", "a\x00b", "z" * 50],
    "k`2": [None, 0.0, -0.0, NAN, float("inf"), 1.5],
    "größe": [None, Decimal("0.00"), Decimal("-1.50"), Decimal("9" * 36 + ".99")],
    "x y": [None, 0.0, -0.0, NAN, 2.5],
    "bin": [None, b"", b"\xff\x00"],
    "t": [None, dt.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=dt.UTC)],
    "big": [None, 2**63 - 1, -(2**63), 0],
    "list": [None, [], [1, None], [2**31 - 1]],
    "st": [None, {"f.g": None, "h": None}, {"f.g": "q", "h": NAN}, {"f.g": "", "h": -0.0}],
}
# How much the driver takes.
WAYS = {"driver": str(2**63), "tasks": "0", "format": None}
ENVELOPES = ("updates", "upsert", "snapshot")
REFUSALS = {"refused_upsert": "InvalidUpdates", "refused_updates": "UpdateBeforeLower"}
Rows = list[dict[str, Any]]


def int64(name: str) -> pa.Field:
    return pa.field(name, pa.int64())


class Writes:
    """Random writes: rows, columns beside the collection's, and options."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng

    def rows(self) -> Rows:
        count = self.rng.choice([0, 1, 2, 5, 30])
        return [{name: self.rng.choice(some) for name, some in VALUES.items()} for _ in range(count)]

    def timed(self, rows: Rows, upper: int, name: str, options: dict[str, str]) -> None:
        for row in rows:
            row[name] = upper + self.rng.randrange(3)
        if rows and upper and self.rng.random() < 0.6:
            rows[0][name] = upper - 1
            if self.rng.random() < 0.5:
                options["late"] = "advance"

    def updates(self, rows: Rows, upper: int) -> tuple[list[pa.Field], dict[str, str]]:
        name = self.rng.choice([None, "_time", "when"])
        options = {"time": "when"} if name == "when" else {}
        extra = [] if name is None else [int64(name)]
        if name is not None:
            self.timed(rows, upper, name, options)
        if self.rng.random() < 0.5:
            extra.append(int64("_diff"))
            for row in rows:
                row["_diff"] = self.rng.choice([-1, 1, 2])
        return extra, options

    def upsert(self, rows: Rows, upper: int) -> tuple[list[pa.Field], dict[str, str]]:
        extra = [int64("version"), pa.field("gone", pa.bool_())]
        options = {"order_by": "version", "delete_column": "gone"}
        for row, version in zip(rows, self.rng.sample(range(len(rows)), len(rows)), strict=True):
            row |= {"version": version, "gone": self.rng.random() < 0.2}
        if len(rows) > 1 and self.rng.random() < 0.3:  # perhaps of one key
            rows[1]["version"] = rows[0]["version"]
        if self.rng.random() < 0.5:
            extra.append(int64("_time"))
            self.timed(rows, upper, "_time", options)
        if rows and self.rng.random() < 0.3:
            rows.append(dict(rows[0]))
        return extra, options

    def snapshot(self, rows: Rows, upper: int) -> tuple[list[pa.Field], dict[str, str]]:
        return [], {} if self.rng.random() < 0.5 else {"time": str(upper + 1)}

    def refused_updates(self, rows: Rows, upper: int) -> tuple[list[pa.Field], dict[str, str]]:
        """A time that is closed."""
        rows[:] = [{name: some[-1] for name, some in VALUES.items()} | {"_time": upper - 1}]
        return [int64("_time")], {}

    def refused_upsert(self, rows: Rows, upper: int) -> tuple[list[pa.Field], dict[str, str]]:
        """Two rows of a key with the same place in the order."""
        row = {name: some[-1] for name, some in VALUES.items()} | {"version": 1}
        rows[:] = [row, row | {"big": 1}]
        return [int64("version")], {"order_by": "version"}


def attempt(work: Callable[[], object]) -> str:
    """Empty, or the class of the error: which row it names depends on who comes first."""
    try:
        work()
    except Exception as error:
        # Spark has it as a text.
        text = f"{type(error).__name__}: {error}"
        found = [name for name in ("InvalidUpdates", "UpdateBeforeLower") if name in text]
        assert len(found) == 1, text
        return found[0]
    return ""


@pytest.mark.full
@pytest.mark.grows
def test_every_way_of_a_write_gives_the_same_updates(spark: Any, tmp_path: Path, rng: Random) -> None:
    lake = tidelake.open(tmp_path / "lake")
    made = {way: lake.create(way, SCHEMA, key=["a.b", "k`2"]) for way in WAYS}
    some = Writes(rng)
    refused, count = 0, examples(30)
    # Whatever the others are: one that closes a time, and refusals of both classes.
    planned = {0: "snapshot", 1: "refused_upsert", 2: "refused_updates"}

    def written(way: str, frame: Any, envelope: str, options: dict[str, str]) -> None:
        if way == "format":
            names = {"order_by": "orderBy", "delete_column": "deleteColumn"}
            writer = frame.write.format("tidelake").mode("append").option("envelope", envelope)
            given = {names.get(name, name): value for name, value in options.items()}
            writer.options(**given).save(str(tmp_path / "lake" / way))
            return
        spark.conf.set("spark.tidelake.driverBytesMax", WAYS[way])
        at = {"time": int(options["time"])} if envelope == "snapshot" and options else {}
        write(made[way], frame, envelope, **(options | at))

    try:
        for number in range(count):
            upper = int(str(made["driver"].upper.elements[0]))
            kind = planned.get(number, ENVELOPES[number % len(ENVELOPES)])
            envelope = kind.removeprefix("refused_")
            rows = some.rows()
            extra, options = getattr(some, kind)(rows, upper)
            table = pa.Table.from_pylist(rows, schema=pa.schema([*SCHEMA, *extra]))
            frame = spark.createDataFrame(table).repartition(rng.choice([1, 3]))
            said = {way: attempt(partial(written, way, frame, envelope, options)) for way in WAYS}
            assert len(set(said.values())) == 1, (envelope, options, rows, said)
            assert len({str(c.upper) for c in made.values()}) == 1, (envelope, options, rows)
            driver, tasks, through_format = (
                tables.by_time(c.updates(0, c.upper).read_all(), c.domain) for c in made.values()
            )
            assert driver == tasks == through_format, (envelope, options, rows)
            if kind != envelope:
                assert said["driver"] == REFUSALS[kind]
            refused += bool(said["driver"])
    finally:
        spark.conf.unset("spark.tidelake.driverBytesMax")
    assert len(REFUSALS) <= refused < count * 2 // 3
