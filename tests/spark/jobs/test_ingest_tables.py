"""Change events of many tables, and of one: truncations, values left out, columns that change."""

import base64
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from feed import UNAVAILABLE, Feed, connect, contents, told

import tidelake
from tidelake.errors import IncompatibleSchema, InvalidUpdates, UsageError
from tidelake.spark import IngestReport, ingest_change_files, ingest_tables

pytestmark = pytest.mark.usefixtures("both_ways")

COLUMNS = {"id": ("int64", False), "v": ("string", True)}


class Landing:
    """A lake, a directory of change files and a checkpoint."""

    def __init__(self, root: Path, spark: Any) -> None:
        self.root, self.spark, self.files = root, spark, 0
        self.directory = root / "in"
        self.directory.mkdir()
        self.lake = tidelake.open(root / "lake")

    def put(self, *lines: str) -> Path:
        self.files += 1
        path = self.directory / f"{self.files:04}.json"
        path.write_text("".join(line + "\n" for line in lines))
        os.utime(path, (1_000_000_000 + self.files,) * 2)
        return path

    def run(self, **options: Any) -> IngestReport:
        given = {"into": "shop", "keys": ["id"]} | options
        return ingest_tables(self.spark, self.lake, self.directory, self.root / "checkpoint", **given)

    def rows(self, name: str) -> dict[int, dict[str, Any]]:
        collection = self.lake[name]
        return contents(collection, collection.upper.elements[0] - 1)


@pytest.fixture
def landing(tmp_path: Path, spark: Any) -> Landing:
    return Landing(tmp_path, spark)


def event(op: str, after: Any, lsn: int, *, before: Any = None, table: str = "a", **more: Any) -> str:
    source = {"db": more.get("db", "d"), "schema": "public", "table": table, "lsn": lsn}
    payload = {"before": before, "after": after, "op": op, "source": source}
    columns = more.get("columns", COLUMNS)
    return json.dumps(payload if columns is None else {"schema": connect(table, columns), "payload": payload})


@pytest.mark.full
def test_a_feed_is_what_a_replay_leaves(landing: Landing) -> None:
    feed = Feed(7).transactions(12)
    for at in range(0, 12, 6):
        landing.put(*(line for _, lines in feed.lines[at : at + 6] for line in lines), "null", "")
    report = landing.run(max_files_per_trigger=1)
    assert (report.batches, report.already, report.tombstones) == (2, 0, 4)
    assert sorted(report.created) == [f"shop.public.{table}" for table in sorted(feed.now)]
    assert report.heartbeats == sum('"op": "m"' in line for _, lines in feed.lines for line in lines)
    for (time, _), state in zip(feed.lines, feed.states, strict=True):
        for table, rows in state.items():
            found = contents(landing.lake[f"shop.public.{table}"], time)
            assert found == {key: told(row) for key, row in rows.items()}, (time, table)
    again = landing.run()
    assert (again.batches, again.events, again.upper) == (0, 0, report.upper)


def test_a_truncation_empties_the_collection(landing: Landing) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
    c = landing.lake.create("c", schema, key=["id"])

    def run() -> Any:
        return ingest_change_files(
            landing.spark, c, landing.directory, landing.root / "cp", old_rows="stored"
        )

    landing.put(*(event("c", {"id": i, "v": "x"}, 3, columns=None) for i in range(20)))
    run()
    landing.put(
        event("u", {"id": 1, "v": "y"}, 5, columns=None),
        event("c", {"id": 30, "v": "gone"}, 6, columns=None),
        event("t", None, 7, columns=None),
        event("c", {"id": 2, "v": "new"}, 7, columns=None),
        event("u", {"id": 2, "v": UNAVAILABLE}, 9, columns=None),
    )
    report = run()
    assert (report.events, report.rejects) == (5, 0)
    assert contents(c, 6) == {i: {"id": i, "v": "y" if i == 1 else "x"} for i in range(20)} | {
        30: {"id": 30, "v": "gone"}
    }
    assert contents(c, 7) == contents(c, 9) == {2: {"id": 2, "v": "new"}}
    landing.put(event("t", None, 12, columns=None))
    run()
    assert contents(c, 12) == {}
    landing.put(event("u", {"id": 2, "v": UNAVAILABLE}, 14, columns=None))
    with pytest.raises(InvalidUpdates, match=r"left out the value of column 'v'.*REPLICA IDENTITY FULL"):
        run()


def test_tables_that_are_copied_again_are_not_doubled(landing: Landing) -> None:
    def copied(snapshot: str, pos: int) -> str:
        source = {"connector": "mysql", "file": "bin.000001", "pos": pos, "snapshot": snapshot, "ts_ms": 1}
        return json.dumps({"op": "r", "before": None, "after": {"id": 1, "v": "x"}, "source": source})

    c = landing.lake.create("c", {"id": "int64", "v": "string"}, key=["id"])

    def run(**options: Any) -> None:
        ingest_change_files(landing.spark, c, landing.directory, landing.root / "cp", **options)

    landing.put(copied("last", 5))
    run()
    landing.put(copied("first", 9), copied("last", 9))
    with pytest.raises(InvalidUpdates, match=r"copied while the collection has rows.*old_rows='stored'"):
        run()
    run(old_rows="stored")
    assert landing.rows("c") == {1: {"id": 1, "v": "x"}}


def test_an_array_that_the_source_left_out_is_that_of_the_row_before(landing: Landing) -> None:
    kinds = {"s": pa.string(), "i": pa.int32(), "j": pa.int64(), "b": pa.binary(), "u": pa.string()}
    key = pa.field("id", pa.int64(), nullable=False)
    c = landing.lake.create("c", pa.schema([key, *((n, pa.list_(k)) for n, k in kinds.items())]), key=["id"])
    numbers = [*UNAVAILABLE.encode()]
    # Bytes are in base64, and a UUID has no room for the text: Java makes another one of it.
    left_out = {
        **{"s": [UNAVAILABLE], "i": numbers, "j": numbers},
        **{
            "b": [base64.b64encode(UNAVAILABLE.encode()).decode()],
            "u": ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"],
        },
    }
    texts = {"s": ["a", None, ""], "u": ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"]}
    first = {"id": 1, "i": [1, None], "j": [1 << 40], "b": ["AP8=", None], **texts}
    landing.put(
        event("c", first, 3, columns=None),
        event("c", first | {"id": 2, "j": numbers[1:]}, 3, columns=None),
        event("u", first | left_out | {"i": [4]}, 4, columns=None),
    )
    landing.put(event("u", {"id": 2, **left_out}, 5, columns=None))

    def run() -> None:
        ingest_change_files(
            landing.spark,
            c,
            landing.directory,
            landing.root / "cp",
            old_rows="stored",
            max_files_per_trigger=1,
        )

    run()
    stored = first | {"b": [b"\0\xff", None]}
    assert contents(c, 5) == {1: stored | {"i": [4]}, 2: stored | {"id": 2, "j": numbers[1:]}}
    landing.put(event("u", {"id": 7, **left_out}, 6, columns=None))
    with pytest.raises(InvalidUpdates, match="left out the value of column"):
        run()


def test_a_table_that_is_truncated_before_it_has_rows_needs_no_collection(landing: Landing) -> None:
    landing.put(event("t", None, 3), event("c", {"id": 1, "v": "x"}, 4, table="b"))
    assert landing.run(keys={"public.b": ["id"]}).created == ["shop.public.b"]
    landing.put(event("t", None, 5), event("c", {"id": 1, "v": "x"}, 6))
    assert landing.run().created == ["shop.public.a"]
    assert landing.rows("shop.public.a") == {1: {"id": 1, "v": "x"}}
    landing.put(event("t", None, 7))
    landing.run()
    assert landing.rows("shop.public.a") == {}


def test_a_truncation_needs_old_rows_from_the_collection(landing: Landing) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
    c = landing.lake.create("c", schema, key=["id"])
    landing.put(event("t", None, 7, columns=None))
    with pytest.raises(InvalidUpdates, match="old_rows='stored'"):
        ingest_change_files(landing.spark, c, landing.directory, landing.root / "cp")


@pytest.mark.promise(
    "Columns of a feed's tables change as the source's do, or the ingest stops and says what to do; "
    "a column that was dropped and comes again is compared with the collection",
    rule="`_followed` in `feeds/tabletargets.py`",
    also=[
        "::test_a_change_that_no_collection_can_follow_stops_the_ingest",
        "spark/writing/test_table_targets.py::test_a_column_that_is_dropped_and_comes_again_is_compared_with_the_collection",
    ],
)
def test_columns_follow_the_source(landing: Landing) -> None:
    landing.put(event("c", {"id": 1, "v": "x"}, 3))
    assert landing.run().created == ["shop.public.a"]
    wide = {"id": ("int64", False), "n": ("int32", True), "at": ("int64", False)}
    landing.put(event("c", {"id": 2, "n": 5, "at": 6}, 4, columns=wide))
    assert landing.run().evolved == ["shop.public.a"]
    a = landing.lake["shop.public.a"]
    assert a.schema.names == ["id", "v", "n", "at"]
    assert a.schema.field("n").type == pa.int32()
    assert a.schema.field("at").nullable, "earlier rows have no value"
    landing.put(event("c", {"id": 3, "n": 1 << 40, "at": 6}, 5, columns=wide | {"n": ("int64", True)}))
    assert landing.run().evolved == ["shop.public.a"]
    assert landing.rows("shop.public.a") == {
        1: {"id": 1, "v": "x"},
        2: {"id": 2, "n": 5, "at": 6},
        3: {"id": 3, "n": 1 << 40, "at": 6},
    }
    (entry,) = landing.lake["shop"].snapshot().read_all().to_pylist()
    assert (entry["table"], entry["collection"]) == ("d.public.a", "shop.public.a")
    assert [(one["field"], one["type"]) for one in json.loads(entry["columns"])][1] == ("n", "int64")


def test_a_change_that_no_collection_can_follow_stops_the_ingest(landing: Landing) -> None:
    landing.put(event("c", {"id": 1, "v": "x"}, 3), event("c", {"id": 1, "v": "x"}, 3, table="b"))
    landing.run()
    changed = COLUMNS | {"v": ("int64", True)}
    landing.put(
        event("c", {"id": 2, "v": "y"}, 4, table="b"), event("c", {"id": 2, "v": 5}, 5, columns=changed)
    )
    with pytest.raises(IncompatibleSchema, match=r"table 'd.public.a': column 'v' has become int64.*names="):
        landing.run()
    assert landing.rows("shop.public.b") == {1: {"id": 1, "v": "x"}}, "nothing of the micro-batch is in"


@pytest.mark.full
def test_what_cannot_be_created_or_told_apart_is_refused_by_name(landing: Landing) -> None:
    path = landing.put(event("c", {"id": 1, "v": "x"}, 3, columns=None))
    with pytest.raises(UsageError, match=r"table 'd.public.a' has no collection yet.*schemas.enable"):
        landing.run()
    path.write_text(event("c", {"id": 1, "v": "x"}, 3) + "\n")
    with pytest.raises(UsageError, match=r"keys=\{'public.a': \['id'\]\}"):
        landing.run(keys=None)
    with pytest.raises(UsageError, match="'w' is no column"):
        landing.run(keys={"public.a": ["w"]})
    path.write_text(event("c", {"id": 1}, 3, columns={"id": ("map", False)}) + "\n")
    with pytest.raises(UsageError, match="'id' has the type 'map'"):
        landing.run()
    wide = event("c", {"id": 1, "v": "AQ=="}, 3, columns=COLUMNS | {"v": ("bytes", True)})
    decimal = '"name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2", '
    digits = '"connect.decimal.precision": "200"}, "type": "bytes"'
    path.write_text(wide.replace('"type": "bytes"', decimal + digits) + "\n")
    with pytest.raises(UsageError, match=r"'v' is a number of 200 digits.*decimal.handling.mode=string"):
        landing.run()
    lines = [event("c", {"id": 1, "v": "x"}, 3), event("c", {"id": 1, "v": "y"}, 3, db="e")]
    path.write_text("\n".join(lines))
    with pytest.raises(UsageError, match=r"'d.public.a' and 'e.public.a' would both go to .*names="):
        landing.run()
    assert landing.run(names={"e.public.a": "other"}).events == 2
    assert (landing.rows("shop.public.a"), landing.rows("other")) == (
        {1: {"id": 1, "v": "x"}},
        {1: {"id": 1, "v": "y"}},
    )


@pytest.mark.full
def test_an_event_of_no_table_or_a_bad_line_stops_all_tables(landing: Landing) -> None:
    good = event("c", {"id": 1, "v": "x"}, 3)
    nowhere = json.dumps({"op": "c", "before": None, "after": {"id": 1}, "source": {"lsn": 4}})
    path = landing.put(good, nowhere)
    with pytest.raises(InvalidUpdates, match=r"names no table.*number=2"):
        landing.run()
    path.write_text(good + "\n" + "{nonsense\n")
    with pytest.raises(InvalidUpdates, match=r"not JSON.*number=2"):
        landing.run()
    kept = landing.root / "rejects"
    assert landing.run(rejects=kept).rejects == 1
    (file,) = kept.iterdir()
    assert json.loads(file.read_text())["line"] == "{nonsense"
    assert landing.rows("shop.public.a") == {1: {"id": 1, "v": "x"}}


def test_lines_of_a_key_a_tab_and_a_value(landing: Landing) -> None:
    fields = [{"field": "id", "type": "int64", "optional": False}]
    keys = [
        json.dumps({"schema": {"type": "struct", "fields": fields}, "payload": {"id": id_}}) for id_ in (1, 2)
    ]
    rows = [{"id": id_, "v": "tab\tü"} for id_ in (1, 2)]
    landing.put(
        *(f"{key}\t{event('c', row, 5)}" for key, row in zip(keys, rows, strict=True)),
        f"{keys[0]}\t{event('d', None, 6)}",
        f"{keys[0]}\tnull",
        f"null\t{event('m', None, 7, table='', columns=None)}",
    )
    with pytest.raises(InvalidUpdates, match=r"a key and a value with a tab between.* format='keyed'"):
        ingest_tables(landing.spark, landing.lake, landing.directory, landing.root / "wrong", into="wrong")
    report = landing.run(keys=None, format="keyed")
    assert landing.rows("shop.public.a") == {2: rows[1]}
    assert (report.events, report.tombstones, report.heartbeats) == (3, 1, 1)
    one = landing.lake.create("one", pa.schema([("id", pa.int64()), ("v", pa.string())]), key=["id"])
    ingest_change_files(
        landing.spark, one, landing.directory, landing.root / "one", format="keyed", old_rows="stored"
    )
    assert contents(one, 5) == {1: rows[0], 2: rows[1]} and contents(one, 6) == {2: rows[1]}
    for format_ in ("csv", "xml"):
        with pytest.raises(
            UsageError, match=f"format='{format_}': lines of change events are jsonl or keyed"
        ):
            landing.run(format=format_)
