"""Batch writes through the format."""

import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

import stream_source
from pyspark.errors import AnalysisException
from pyspark.sql.types import StructType

import tidelake
from tidelake.errors import CollectionDropped, InternalError, UsageError
from tidelake.lake.api.distributed import Distributed
from tidelake.model.frontier import Frontier
from tidelake.model.names import parts
from tidelake.shard.engine.spec import stores_of
from tidelake.spark.source.sink import batch_writer, stream_writer
from tidelake.testing import tables

Rows = Counter[Any]
EVENTS = "id bigint, v string, n int"
DDL = StructType().add("id", "long").add("v", "string")


class Place:
    """A collection, and writes to it through the format."""

    def __init__(self, root: Path, spark: Any) -> None:
        self.spark = spark
        self.lake = tidelake.open(root / "lake")
        self.c = self.lake.create("c", stream_source.SCHEMA, key=["id"])
        self.path = f"{root}/lake/c"

    def frame(self, *rows: tuple[Any, ...], schema: str = "id bigint, v string") -> Any:
        return self.spark.createDataFrame(list(rows), schema)

    def write(self, frame: Any, mode: str = "append", **options: Any) -> None:
        frame.write.format("tidelake").mode(mode).options(**options).save(self.path)

    def rows(self) -> Rows:
        return tables.by_time(self.c.updates(0, self.c.upper).read_all(), self.c.domain)

    def contents(self) -> Rows:
        return tables.netted(self.c.snapshot().read_all(), self.c.domain, self.c.upper.elements[0] - 1)


@pytest.fixture
def place(tmp_path: Path, spark: Any) -> Place:
    return Place(tmp_path, spark)


def test_rows_are_appended_in_one_commit(place: Place) -> None:
    place.write(place.frame((1, "a"), (2, None), (1, "a")).repartition(3))
    place.write(place.frame((3, "c")))
    assert place.rows() == {((1, "a"), 0): 2, ((2, None), 0): 1, ((3, "c"), 1): 1}


def test_an_empty_frame_closes_a_time(place: Place) -> None:
    place.write(place.frame((1, "a")).where("id > 1"), envelope="upsert")
    assert (place.c.upper, place.rows()) == (Frontier.of(1), {})
    place.write(place.frame((1, "a")).where("id > 1"), envelope="snapshot")
    assert place.c.upper == Frontier.of(1)
    place.write(place.frame((1, "a")).where("id > 1"))
    assert place.c.upper == Frontier.of(2)


def test_times_are_those_of_the_commit_a_column_or_given(place: Place) -> None:
    place.write(place.frame((1, "a", 4), schema="id bigint, v string, at int"), time="at")
    place.write(place.frame((1, "a", 7, -1), schema="id bigint, v string, _time bigint, _diff bigint"))
    place.write(place.frame((2, "b")))
    assert place.rows() == {((1, "a"), 4): 1, ((1, "a"), 7): -1, ((2, "b"), 8): 1}


def test_a_token_is_in_once(place: Place) -> None:
    for _ in range(2):
        place.write(place.frame((1, "a")), token="monday")
    place.write(place.frame((1, "a")), token="tuesday")
    assert place.rows() == {((1, "a"), 0): 1, ((1, "a"), 1): 1}


@pytest.mark.promise(
    "Columns of a write are checked before a task runs; values that do not fit are one readable "
    "error, and nothing is in",
    rule="`Envelope.check`, `uploads.total`",
    also=[
        "::test_values_that_do_not_fit_are_one_readable_error",
        "spark/writing/test_exactly_once.py::test_rows_that_do_not_fit_stop_the_stream_with_a_reason",
    ],
)
def test_columns_are_checked_before_a_task_runs(place: Place) -> None:
    frame = place.frame((1, "a")).selectExpr("raise_error('it ran') AS v")
    with pytest.raises(AnalysisException, match=r"InvalidUpdates: .* column 'id' \(bigint\) is missing"):
        place.write(frame)


@pytest.mark.full
def test_values_that_do_not_fit_are_one_readable_error(place: Place) -> None:
    with pytest.raises(AnalysisException, match="InvalidUpdates: column 'id' must not be null"):
        place.write(place.frame((1, "a"), (None, "b")))
    assert (place.c.upper, place.rows()) == (Frontier.of(0), {})


def test_bad_options_are_refused_with_what_to_do(place: Place) -> None:
    for options, reason in (
        ({"envelope": "update"}, "no envelope 'update': did you mean 'updates'"),
        ({"envelope": "updates", "orderBy": "at"}, "'updates' takes no order_by"),
        ({"late": "drop"}, "late='drop' is unknown"),
        ({"token": "x" * 250}, "token .* has 250 bytes"),
        ({"rejects": "/x"}, "'updates' takes no rejects"),
        ({"envelope": "snapshot", "time": "noon"}, "option time='noon' is not a time of unit counter"),
    ):
        with pytest.raises(UsageError, match=reason):
            batch_writer({"path": place.path, **options}, DDL, False)
    with pytest.raises(AnalysisException, match="UsageError: the envelope 'updates' adds to what is there"):
        place.write(place.frame((1, "a")), "overwrite", envelope="updates")
    assert place.rows() == {}


@pytest.mark.promise(
    "The commit of the format combines all events of a key, from any task, in bounded memory; if "
    "another writer was first, it looks again",
    rule="`shard/writing/shufflespill.py`, `data/keys/keyruns.py`",
    also=[
        "::test_upserts_look_again_if_another_writer_was_faster",
        "shard/writing/test_shufflespill.py::test_all_rows_come_back_in_the_order_of_their_keys",
    ],
)
@pytest.mark.full
def test_upserts_find_old_rows_whatever_task_an_event_is_in(place: Place) -> None:
    place.write(place.frame((1, "a"), (2, "b"), (3, "c")))
    events = place.frame((1, "x", 1), (1, "y", 2), (2, None, 3), (3, "c", 4), (4, "d", 5), schema=EVENTS)
    place.write(events.repartition(5), envelope="upsert", orderBy="n")
    assert place.contents() == {(1, "y"): 1, (2, None): 1, (3, "c"): 1, (4, "d"): 1}
    flagged = place.frame((1, None, True), (4, "e", False), schema="id bigint, v string, gone boolean")
    place.write(flagged.repartition(2), envelope="upsert", deleteColumn="gone", time="9")
    assert place.contents() == {(2, None): 1, (3, "c"): 1, (4, "e"): 1}
    assert place.c.upper == Frontier.of(10)
    # What was handed over on the way is gone, and so is nothing else.
    stored = {
        name.name for name in stores_of(place.c.distributed.uploader().spec).blobs.list(parts(place.c.id))
    }
    assert stored == {part.name for m in place.c.state().spine for part in m.batch.parts() if not part.inline}


@pytest.mark.full
def test_unequal_events_of_a_key_are_refused(place: Place) -> None:
    events = place.frame((1, "x"), (1, "y")).repartition(2)
    with pytest.raises(AnalysisException, match="InvalidUpdates: several events of the key"):
        place.write(events, envelope="upsert")
    with pytest.raises(AnalysisException, match=r"InvalidUpdates: .*'id' must not be null"):
        place.write(place.frame((None, "x")), envelope="upsert")
    assert place.c.upper == Frontier.of(0)


def test_upserts_look_again_if_another_writer_was_faster(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.write(place.frame((1, "a")))
    writer = batch_writer({"path": place.path, "envelope": "upsert"}, DDL, False)
    tasks = [place.frame((1, "x")), place.frame((2, "y"))]
    messages = [writer.write(iter(task.toArrow().to_batches())) for task in tasks]
    original = Distributed.append_uploaded

    def append_uploaded(self: Distributed, *args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(Distributed, "append_uploaded", original)
        place.c.upsert(tables.pa.table({"id": [1, 2], "v": ["b", "b"]}))
        return original(self, *args, **kwargs)

    monkeypatch.setattr(Distributed, "append_uploaded", append_uploaded)
    writer.commit(messages)
    assert place.rows() == {
        ((1, "a"), 0): 1,
        ((1, "a"), 1): -1,
        ((1, "b"), 1): 1,
        ((2, "b"), 1): 1,
        ((1, "b"), 2): -1,
        ((2, "b"), 2): -1,
        ((1, "x"), 2): 1,
        ((2, "y"), 2): 1,
    }


@pytest.mark.promise(
    "An overwrite, and output mode `complete`, write what differs",
    rule="envelope `snapshot`",
    also=["spark/writing/test_exactly_once.py::test_a_query_with_all_its_rows_replaces_the_contents"],
)
def test_an_overwrite_writes_what_differs(place: Place) -> None:
    place.write(place.frame((1, "a"), (2, "b"), (2, "b")))
    place.write(place.frame((2, "b"), (3, "c")).repartition(3), "overwrite")
    assert place.rows() == {
        ((1, "a"), 0): 1,
        ((2, "b"), 0): 2,
        ((1, "a"), 1): -1,
        ((2, "b"), 1): -1,
        ((3, "c"), 1): 1,
    }
    place.write(place.frame((2, "b"), (3, "c")), "overwrite", time="7")
    assert (place.c.upper, len(place.rows())) == (Frontier.of(8), 5)
    place.write(place.frame((4, "d")).where("id > 4"), "overwrite")
    assert place.contents() == {}


@pytest.mark.full
def test_insert_overwrite_replaces_the_contents(place: Place) -> None:
    place.write(place.frame((1, "a"), (2, "b")))
    spark = place.spark
    spark.sql(f"CREATE OR REPLACE TEMP VIEW sink_view USING tidelake OPTIONS (path '{place.path}')")
    spark.sql("INSERT OVERWRITE sink_view VALUES (2, 'b'), (3, 'c')")
    spark.catalog.dropTempView("sink_view")
    assert place.contents() == {(2, "b"): 1, (3, "c"): 1}


def test_insert_into_a_view_appends(place: Place) -> None:
    spark = place.spark
    spark.sql(f"CREATE OR REPLACE TEMP VIEW sink_view USING tidelake OPTIONS (path '{place.path}')")
    spark.sql("INSERT INTO sink_view VALUES (1, 'a'), (2, 'b')")
    spark.sql("INSERT INTO sink_view (id) SELECT 3")
    spark.catalog.dropTempView("sink_view")
    assert place.rows() == {((1, "a"), 0): 1, ((2, "b"), 0): 1, ((3, None), 1): 1}


def test_another_writer_that_commits_meanwhile_moves_the_time_of_the_commit(place: Place) -> None:
    writer = batch_writer({"path": place.path}, DDL, False)
    message = writer.write(iter(place.frame((1, "a")).toArrow().to_batches()))
    place.lake.collection("c").append(tables.pa.table({"id": [2], "v": ["b"]}))
    pickle.loads(pickle.dumps(writer)).commit([message])
    assert place.rows() == {((2, "b"), 0): 1, ((1, "a"), 1): 1}


@pytest.mark.promise(
    "An aborted or repeated write through the format deletes nothing that a commit may have published",
    rule="`abort` of `spark/source/sink.py` does nothing",
)
def test_an_abort_deletes_nothing(place: Place) -> None:
    writer = batch_writer({"path": place.path}, DDL, False)
    frame = place.spark.range(50_000).selectExpr("id", "uuid() AS v")
    message = writer.write(iter(frame.toArrow().to_batches()))
    writer.commit([message])
    writer.abort([message, None])
    assert sum(place.rows().values()) == 50_000


def test_a_task_without_a_message_fails_the_commit(place: Place) -> None:
    writer = batch_writer({"path": place.path}, DDL, False)
    message = writer.write(iter(place.frame((1, "a")).toArrow().to_batches()))
    with pytest.raises(InternalError, match="1 of 2 tasks sent no message"):
        writer.commit([message, None])
    assert place.rows() == {}


def test_options_of_the_other_kind_of_write_are_refused(place: Place) -> None:
    for options in ({"writer": "w"}, {"takeOver": "true"}):
        with pytest.raises(UsageError, match="are of streams: a batch write is recognised by a token"):
            batch_writer({"path": place.path, **options}, DDL, False)
    with pytest.raises(UsageError, match="a stream is recognised by its checkpoint"):
        stream_writer({"path": place.path, "token": "t"}, DDL, False)


@pytest.mark.promise(
    "A write through the format keeps its collection when names change",
    rule="`spark/source/uploading.py`, `Lake.same_collection`",
    also=[
        "spark/writing/test_exactly_once.py::test_a_sink_that_is_sent_to_another_process_goes_on_with_its_collection"
    ],
)
@pytest.mark.usefixtures("spark")  # an upload is named by the session's application
@pytest.mark.parametrize("envelope", ["updates", "upsert", "snapshot"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_write_goes_on_with_its_collection_when_names_change(
    tmp_path: Path, envelope: str, stream: bool
) -> None:
    lake = tidelake.open(tmp_path / "lake")
    first, other = (lake.create(name, stream_source.SCHEMA, key=["id"]) for name in ("c", "d"))
    options = {"path": f"{tmp_path}/lake/c", "envelope": envelope}
    make = stream_writer if stream else batch_writer
    task = pickle.loads(pickle.dumps(make(options, DDL, overwrite=False)))
    message = task.upload.store(
        iter([pa.record_batch({"id": pa.array([1, 2]), "v": ["a", "b"]})]), "q" * stream
    )
    lake.swap("c", "d")
    # As Spark does for a stream: from the options again.
    writer = make(options, DDL, overwrite=False) if stream else task
    writer.commit([message], *([0] if stream else []))
    assert tables.netted(first.snapshot().read_all(), first.domain, 0) == {(1, "a"): 1, (2, "b"): 1}
    assert other.upper == Frontier.of(0)
    lake.drop("d")
    with pytest.raises(CollectionDropped):
        writer.commit([message], *([1] if stream else []))
