"""Upserts and full dumps of DataFrames: against a dictionary, with all there is in keys and values."""

import datetime as dt
import math
import random
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from threads import at_once

pytest.importorskip("pyspark")

from small_frames import close, rows

import tidelake
from tables import SCHEMA
from tidelake.config import Config
from tidelake.errors import InvalidUpdates, UpdateBeforeLower, UpperMismatch, UsageError
from tidelake.lake.api.distributed import Distributed
from tidelake.model.frontier import Frontier
from tidelake.spark import append, delete, replace, upsert, write
from tidelake.spark.envelopes.snapshot import Snapshot
from tidelake.spark.envelopes.upsert import Upsert
from tidelake.testing.oracle import canonical
from upsert_reference import Event, Model

pytestmark = pytest.mark.usefixtures("both_ways")

NAN = float("nan")
# Everything that meets oddly: zeros of both signs, NaN, nulls, texts that sort by bytes or not, nested.
FIELDS = {
    "x": (pa.float64(), "double", [0.0, -0.0, NAN, 1.5, -math.inf, None]),
    "s": (pa.string(), "string", ["", "a", "A", "é", "日本", "\U0001d11e", "a\x00", None]),
    "d": (pa.decimal128(9, 2), "decimal(9,2)", [Decimal("0.00"), Decimal("-1.25"), None]),
    "l": (pa.list_(pa.int64()), "array<bigint>", [[], [1], [None], None]),
    "f": (pa.float32(), "float", [0.0, -0.0, NAN, None]),
    "n": (pa.int64(), "bigint", [-1, 0, 1, None]),
}
ARROW = pa.schema([(name, kind) for name, (kind, _, _) in FIELDS.items()])
DDL = ", ".join(f"{name} {kind}" for name, (_, kind, _) in FIELDS.items())
TINY = Config(part_target_bytes=1024, row_group_rows=4, merge_chunk_rows=16, fold_rows=1, inline_part_bytes=0)


def drawn(rng: random.Random, n: int) -> list[tuple[Any, ...]]:
    return [tuple(rng.choice(values) for _, _, values in FIELDS.values()) for _ in range(n)]


def held(c: tidelake.Collection, as_of: int | None = None) -> Counter[Any]:
    table = c.snapshot(as_of).read_all().drop_columns(list(c.domain.columns))
    rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
    return Counter({tuple(canonical(v) for v in row[:-1]): row[-1] for row in rows})


@pytest.mark.promise(
    "After upserts and full dumps of DataFrames the contents are those of a dictionary, with NaN, "
    "zeros of both signs and nulls in keys",
    rule="`spark/envelopes/upsert.py`, `spark/envelopes/snapshot.py`",
    also=["::test_full_dumps_leave_exactly_their_rows"],
)
@pytest.mark.parametrize("config", [Config(), TINY], ids=["inline", "tiny"])
def test_upserts_of_frames_leave_what_a_dictionary_holds(spark: Any, tmp_path: Path, config: Config) -> None:
    rng = random.Random(str(config))
    c = tidelake.open(tmp_path / "lake", config=config).create("c", ARROW, key=["x", "s"])
    model, at = Model(2), 0
    for n in (30, 120):
        # Of each key and time one event for each order: rows of a frame have no order of their own.
        events = [
            Event(row, rng.randrange(at, at + 3), rng.random() < 0.3, i)
            for i, row in enumerate(drawn(rng, n))
        ]
        rows = [(*e.row, e.time, e.removed, e.order) for e in events]
        frame = spark.createDataFrame(rows, f"{DDL}, _time bigint, gone boolean, seq int").repartition(3)
        upsert(c, frame, order_by="seq", delete_column="gone")
        for time in range(at, c.upper.elements[0]):
            model.apply([e for e in events if e.time == time])
            assert held(c, time) == model.rows
        at = c.upper.elements[0]


def test_events_that_move_to_a_later_time_keep_their_order(spark: Any, tmp_path: Path) -> None:
    c = make(tmp_path)
    close(c, 10)
    frame = rows(spark, (1, "a", 3), (1, "b", 7), (1, "c", 12), schema=TIMED)
    with pytest.raises(InvalidUpdates, match="not at or after the lower frontier"):
        upsert(c, frame)
    assert upsert(c, frame, late="advance").upper == Frontier.of(13)
    assert history(c) == {((1, "b"), 10): 1, ((1, "b"), 12): -1, ((1, "c"), 12): 1}


@pytest.mark.full
def test_full_dumps_leave_exactly_their_rows(spark: Any, tmp_path: Path, small_tasks: None) -> None:
    rng = random.Random(0)
    c = tidelake.open(tmp_path / "lake", config=TINY).create("c", ARROW, key=["x", "s"])
    kept: list[tuple[Any, ...]] = []
    for step, n in enumerate((60, 200, 0)):
        kept = kept[: len(kept) // 2] + drawn(rng, n)
        replace(c, spark.createDataFrame(kept, DDL).repartition(3), time=step)
        assert held(c) == Counter(tuple(canonical(v) for v in row) for row in kept)
    # Only what differs is in the history.
    changed = c.updates(1, 2).read_all().num_rows
    before, after = held(c, 0), held(c, 1)
    assert changed == len([row for row in before | after if before[row] != after[row]])
    # What was stored of the dumps to compare them is gone.
    state = c.state()
    named = {part.name for member in state.spine for part in member.batch.parts()}
    stored = {path.name for path in (tmp_path / "lake" / "blobs" / c.id).rglob("*.parquet")}
    assert stored
    assert stored <= {name.rpartition("/")[2] for name in named | {*state.garbage, *state.doomed}}


TIMED = "id bigint, v string, _time bigint"


def make(
    tmp_path: Path, time: str = "counter", schema: pa.Schema = SCHEMA, **more: Any
) -> tidelake.Collection:
    return tidelake.open(tmp_path / "lake", **more).create("c", schema, key=["id"], time=time)


def history(c: tidelake.Collection) -> Counter[Any]:
    """(row, time) -> diff."""
    from tidelake.testing import tables

    return tables.by_time(c.updates(0, c.upper).read_all(), c.domain)


def test_a_row_of_nulls_is_a_row_and_equal_rows_write_nothing(spark: Any, tmp_path: Path) -> None:
    c = make(tmp_path)
    upsert(c, rows(spark, (1, "a"), (2, "b"), (2, "b")))
    assert upsert(c, rows(spark, (1, "a"))).already
    assert c.upper == Frontier.of(1)
    upsert(c, rows(spark, (1, None), (3, "c")))
    first = {((1, "a"), 0): 1, ((2, "b"), 0): 1, ((1, "a"), 1): -1, ((1, None), 1): 1, ((3, "c"), 1): 1}
    assert history(c) == first
    # Removals need no values, and a row that is none does.
    upsert(c, rows(spark, (1, True), (2, True), schema="id bigint, gone boolean"), delete_column="gone")
    assert history(c) == first | {((1, None), 2): -1, ((2, "b"), 2): -1}
    with pytest.raises(InvalidUpdates, match=r"missing column 'v'.*the key id=4"):
        upsert(c, rows(spark, (3, True), (4, False), schema="id bigint, gone boolean"), delete_column="gone")
    assert upsert(c, rows(spark)).already
    assert upsert(c, rows(spark, (3, "c")), time=7).upper == Frontier.of(8)


@pytest.mark.promise(
    "Events of a key that differ and have no last one are refused with their key, whichever task is faster",
    rule="`Rules.rows_count`",
)
def test_duplicates_of_a_key_that_differ_are_refused_with_the_key(spark: Any, tmp_path: Path) -> None:
    c = make(tmp_path)
    frame = rows(spark, (1, "a"), (7, "b"), (7, "c"), (2, "d")).repartition(3)
    with pytest.raises(InvalidUpdates, match=r"several events of the key id=7 differ.*order_by"):
        upsert(c, frame)
    assert c.upper == Frontier.of(0)
    upsert(c, frame, order_by="v")
    assert history(c) == {((1, "a"), 0): 1, ((2, "d"), 0): 1, ((7, "c"), 0): 1}
    # Older than the stored one, since the order is a column of the collection.
    assert upsert(c, rows(spark, (7, "b")), order_by="v").already


def test_times_come_from_a_column_also_of_a_clock(spark: Any, tmp_path: Path) -> None:
    c = make(tmp_path, "us")
    at = dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC)
    us = int(at.timestamp()) * 1_000_000
    frame = rows(
        spark,
        (1, "a", at),
        (1, "b", at + dt.timedelta(seconds=1)),
        schema="id bigint, v string, ts timestamp",
    )
    upsert(c, frame, time="ts")
    assert history(c) == {((1, "a"), us): 1, ((1, "a"), us + 10**6): -1, ((1, "b"), us + 10**6): 1}


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("id string, v string", {}, "'id' is string and not bigint"),
    ("id bigint", {}, r"'v' \(string\) is missing"),
    ("id bigint, v string, w int", {}, "'w' is not in the collection"),
    ("id bigint, v string, _diff bigint", {}, "'_diff' is not in the collection"),
    ("id bigint, v string, gone string", {"delete_column": "gone"}, "'gone' is string and not boolean"),
    ("id bigint, v string", {"delete_column": "gone"}, "0 columns 'gone'"),
    ("id bigint, v string", {"order_by": "seq"}, "0 columns 'seq'"),
    ("id bigint, v string", {"order_by": "id"}, "must name a value column"),
    ("id bigint, v string", {"time": "ts"}, "0 columns 'ts'"),
    ("id bigint, v string, ts string", {"time": "ts"}, "'ts' is string"),
    ("id bigint, v string", {"late": "drop"}, "late='drop' is unknown"),
]


@pytest.mark.parametrize(("ddl", "asked", "message"), WRONG, ids=[f"{d}-{a}" for d, a, _ in WRONG])
def test_frames_that_do_not_fit_are_refused_before_anything_runs(
    spark: Any, tmp_path: Path, ddl: str, asked: dict[str, Any], message: str
) -> None:
    c = make(tmp_path)
    with pytest.raises(UsageError, match=message):
        upsert(c, spark.createDataFrame([], ddl), **asked)


def test_values_that_do_not_fit_are_refused_and_nothing_is_written(spark: Any, tmp_path: Path) -> None:
    c = make(tmp_path)
    with pytest.raises(InvalidUpdates, match="'id' must not be null"):
        upsert(c, rows(spark, (1, "a"), (None, "b")))
    with pytest.raises(InvalidUpdates, match="'seq' must not be null"):
        upsert(c, rows(spark, (1, "a", None), schema="id bigint, v string, seq int"), order_by="seq")
    with pytest.raises(InvalidUpdates, match="say true or false"):
        upsert(c, rows(spark, (1, "a", None), schema="id bigint, v string, no boolean"), delete_column="no")
    with pytest.raises(InvalidUpdates, match="must not be null"):
        replace(c, rows(spark, (None, "b")))
    assert c.upper == Frontier.of(0)


def test_closed_times_are_refused(spark: Any, tmp_path: Path) -> None:
    c = make(tmp_path)
    close(c, 5)
    for ask in (lambda f: upsert(c, f, time=4), lambda f: replace(c, f, time=4)):
        with pytest.raises(UpdateBeforeLower):
            ask(rows(spark, (1, "a")))
    c.append(SCHEMA.empty_table().append_column("_time", pa.array([], pa.int64())), upper=[])
    with pytest.raises(UpperMismatch):
        upsert(c, rows(spark, (1, "a")))


@pytest.fixture
def meddler(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What another writer does right before an append of uploads."""
    acts: list[Any] = []
    original = Distributed.append_uploaded

    def append_uploaded(self: Distributed, *args: Any, **kwargs: Any) -> Any:
        if acts:
            acts.pop(0)(tidelake.open(self.lake_url)["c"])
        return original(self, *args, **kwargs)

    monkeypatch.setattr(Distributed, "append_uploaded", append_uploaded)
    return acts


@pytest.mark.promise(
    "Commits of other writers while the workers compare are taken into account",
    rule="`Envelope.rebases`",
    also=["::test_two_drivers_at_once_lose_no_row"],
)
def test_what_another_writer_commits_meanwhile_is_taken_into_account(
    spark: Any, tmp_path: Path, meddler: list[Any]
) -> None:
    c = make(tmp_path, config=TINY)
    upsert(c, rows(spark, (1, "a")))
    meddler.append(lambda other: other.upsert(pa.table({"id": [1, 2], "v": ["x", "y"]})))
    upsert(c, rows(spark, (1, "b")))
    assert held(c) == {(1, "b"): 1, (2, "y"): 1}
    meddler.append(lambda other: other.upsert(pa.table({"id": [1, 3], "v": ["x", "z"]})))
    replace(c, rows(spark, (1, "b"), (4, "d")))
    assert held(c) == {(1, "b"): 1, (4, "d"): 1}


def test_a_dump_is_compared_with_what_another_writer_commits_while_it_is_stored(
    spark: Any, tmp_path: Path, by_value: None
) -> None:
    c, lake = make(tmp_path, config=TINY), str(tmp_path / "lake")
    upsert(c, rows(spark, (1, "a")))

    def meddling(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        tidelake.open(lake).collection("c").upsert(pa.table({"id": [1, 3], "v": ["x", "z"]}))

    frame = rows(spark, (1, "a"), (2, "b")).coalesce(1).mapInArrow(meddling, "id bigint, v string")
    done = replace(c, frame)
    assert held(c) == {(1, "a"): 1, (2, "b"): 1}
    assert (done.lower, done.upper) == (Frontier.of(2), Frontier.of(3))


def test_two_drivers_at_once_lose_no_row(spark: Any, tmp_path: Path) -> None:
    make(tmp_path)

    def work(number: int) -> None:
        c = tidelake.open(tmp_path / "lake").collection("c")
        for step in range(2):
            upsert(c, rows(spark, (0, f"{number}.{step}"), (number, f"{number}.{step}")))

    at_once(work, (1, 2))
    c = tidelake.open(tmp_path / "lake").collection("c")
    found = held(c)
    assert {row: n for row, n in found.items() if row[0]} == {(1, "1.1"): 1, (2, "2.1"): 1}
    assert sum(n for row, n in found.items() if not row[0]) == 1


def test_a_token_makes_an_upsert_that_is_run_again_do_nothing(spark: Any, tmp_path: Path) -> None:
    c = make(tmp_path)
    upsert(c, rows(spark, (1, "a")), token="t")
    assert upsert(c, rows(spark, (1, "b")), token="t").already
    replace(c, rows(spark, (2, "b")), token="u")
    assert replace(c, rows(spark, (3, "b")), token="u").already
    assert held(c) == {(2, "b"): 1}


def test_envelopes_are_known_by_name(spark: Any, tmp_path: Path) -> None:
    c = make(tmp_path)
    done = write(c, rows(spark, (1, "a"), (1, "b")), "upsert", order_by="v")
    assert (done.events, done.updates) == (2, 1)
    done = write(c, rows(spark, (1, "b"), (2, "c")), "snapshot")
    assert (done.events, done.updates) == (2, 1)
    assert held(c) == {(1, "b"): 1, (2, "c"): 1}


def test_a_dump_is_compared_in_this_process_if_there_is_no_session(spark: Any, tmp_path: Path) -> None:
    c = make(tmp_path)
    c.append(pa.table({"id": [1, 2], "v": ["a", "b"]}))
    uploads = (
        c.distributed.uploader().upload([pa.record_batch({"id": [2, 3], "v": ["b", "c"], "_time": [0, 0]})]),
    )
    from tidelake.feeds.answers import Answer
    from tidelake.feeds.reports import Counts

    answer = Snapshot().difference(c, Answer(uploads, Counts(updates=2)), c.upper, None)
    assert (answer.counts.updates, answer.time_lower, answer.time_upper) == (2, 1, 1)
    c.distributed.append_uploaded(answer.uploads, lower=1, upper=2)
    assert held(c) == {(2, "b"): 1, (3, "c"): 1}


def test_a_stream_of_upserts_is_written_once(spark: Any, tmp_path: Path) -> None:
    from tidelake.spark import sink

    c = make(tmp_path)
    source = tmp_path / "in"
    for step in range(2):
        rows(spark, (1, f"a{step}"), (10 + step, "b")).coalesce(1).write.mode("append").json(str(source))
        query = (
            spark.readStream.schema("id bigint, v string")
            .json(str(source))
            .writeStream.foreachBatch(sink(c, Upsert()))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    assert held(c) == {(1, "a1"): 1, (10, "b"): 1, (11, "b"): 1}


def test_keys_and_rows_of_a_condition_are_deleted_and_absent_keys_counted(spark: Any, tmp_path: Path) -> None:
    c = make(tmp_path)
    upsert(c, rows(spark, (1, "a"), (2, "b"), (3, "c")))
    asked = {"token": "one", "author": "ann", "message": "gone"}
    done = delete(c, rows(spark, (1,), (9,), schema="id bigint"), **asked)
    assert (done.removed, done.absent, held(c)) == (1, 1, Counter({(2, "b"): 1, (3, "c"): 1}))
    assert delete(c, rows(spark, (2,), schema="id bigint"), **asked).already
    assert delete(c, where="v = 'c'", token="two").removed == 1
    assert delete(c, where="TRUE", token="two").already and held(c) == Counter({(2, "b"): 1})
    assert delete(c, where="v = 'x'").already
    for given, message in (
        ({}, "delete takes keys or where"),
        ({"keys": rows(spark, (1,), schema="id bigint"), "where": "TRUE"}, "give one of the two"),
        ({"keys": rows(spark, (1, "a"))}, "column 'v' is none"),
        ({"keys": (1, 2)}, "does not fit the key columns"),
    ):
        with pytest.raises(UsageError, match=message):
            delete(c, **given)
    by_flag = rows(spark, (2, True), (7, True), schema="id bigint, gone boolean")
    done = upsert(c, by_flag, delete_column="gone", time=9)
    assert (done.removed, done.absent, held(c)) == (1, 1, Counter())


def test_a_first_write_without_rows_leaves_a_collection_that_can_be_read(spark: Any, tmp_path: Path) -> None:
    empty, gone = rows(spark), rows(spark, (1,), schema="id bigint")
    with tidelake.open(tmp_path / "lake") as lake:
        for number, write in enumerate(
            (
                lambda c: append(c, empty),
                lambda c: append(c, empty, token="t"),
                lambda c: upsert(c, empty),
                lambda c: upsert(c, empty, time=0),
                lambda c: replace(c, empty),
                lambda c: delete(c, gone),
                lambda c: delete(c, where="TRUE"),
            )
        ):
            c = lake.create(f"c{number}", SCHEMA, key=["id"])
            write(c)
            assert c.upper == Frontier.of(1) and held(c) == Counter(), number
        # An append closes a time always, and a time that is given is closed.
        assert append(c, empty).upper == Frontier.of(2)
        assert upsert(c, empty).already and replace(c, empty).already
        assert upsert(c, empty, time=4).upper == Frontier.of(5)
        assert replace(c, empty, time=5).upper == Frontier.of(6)
        timed = spark.createDataFrame([], "id bigint, v string, _time bigint")
        assert append(c, timed).already and upsert(c, timed).already
