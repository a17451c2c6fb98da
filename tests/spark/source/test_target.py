"""Collections that a process keeps open: up to date, few, and none that was dropped."""

from pathlib import Path

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

import tidelake
from tidelake.config import Config
from tidelake.errors import Closed, CollectionDropped, CollectionNotFound
from tidelake.model.frontier import Frontier
from tidelake.spark.source import target as targets
from tidelake.spark.source.place import located
from tidelake.spark.source.target import Target

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])


def made(tmp_path: Path, *names: str) -> tidelake.Lake:
    lake = tidelake.open(tmp_path / "lake")
    for name in names:
        lake.create(name, SCHEMA, key=["id"])
    return lake


def test_a_kept_collection_is_as_others_left_it(tmp_path: Path) -> None:
    c = made(tmp_path, "c").collection("c")
    target = located({"path": f"{tmp_path}/lake/c"})
    assert target == Target(c.distributed.uploader().spec.url, c.id, "c", Config())
    first = target.collection()
    c.append(pa.table({"id": [1]}))
    again = target.collection()
    assert again is first
    assert again.distributed.uploader().spec.seqno == c.state().seqno
    assert again.upper == Frontier.of(1)


def test_a_name_that_leads_elsewhere_is_another_collection(tmp_path: Path) -> None:
    lake = made(tmp_path, "c", "d")
    options = {"path": f"{tmp_path}/lake", "collection": "c"}
    before = located(options)
    assert before.collection().id == lake.collection("c").id
    lake.swap("c", "d")
    assert located(options).collection().id == lake.collection("c").id
    assert before.collection().id == lake.collection("d").id
    with pytest.raises(CollectionNotFound, match="'cc'"):
        located(options | {"collection": "cc"})


def test_what_was_dropped_is_not_kept(tmp_path: Path) -> None:
    lake = made(tmp_path, "c")
    target = located({"path": f"{tmp_path}/lake/c"})
    target.collection()
    lake.drop("c")
    for _ in range(2):
        with pytest.raises(CollectionDropped):
            target.collection()


def test_few_are_kept_and_others_closed(tmp_path: Path) -> None:
    names = [f"c{i}" for i in range(targets._KEPT_MAX + 1)]
    made(tmp_path, *names)
    found = [located({"path": f"{tmp_path}/lake/{name}"}).collection() for name in names]
    with pytest.raises(Closed):
        found[0].state()
    assert all(c.state().upper == Frontier.of(0) for c in found[1:])
    assert len(targets._KEPT.get()) == targets._KEPT_MAX
