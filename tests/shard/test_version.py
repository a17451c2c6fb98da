"""A read is of one moment: the schema that it reads under and the parts that it reads are of one version."""

import pyarrow as pa
import pytest
from shards import Place

import inside
from tables import SCHEMA, rows
from tidelake.config import Config
from tidelake.data.ingest.events import EventColumns
from tidelake.model.frontier import Frontier
from tidelake.model.query import AsOf, Changes, Updates
from tidelake.shard.engine.lease import Lease
from tidelake.shard.engine.shard import Shard
from tidelake.shard.reading.versionread import VersionRead
from tidelake.shard.runs.plan import TaskOptions
from tidelake.shard.writing.replacement import plan_replacement
from tidelake.shard.writing.upserter import Upserter

WIDE = SCHEMA.append(pa.field("w", pa.int32()))
ASKED = {"as of": AsOf(4), "changes": Changes(0, 4), "updates": Updates(Frontier.of(0), Frontier.of(5))}


def timed(table, time):
    return table.append_column("_time", pa.array([time] * table.num_rows, pa.int64()))


@pytest.fixture(params=[0, 1_000_000], ids=["stored", "inline"])
def collection(request):
    lake = Place().lake(config=Config(merge_budget_s=0.0, inline_part_bytes=request.param))
    c = lake.create("c", SCHEMA, key=["id"])
    c.append(timed(rows(1, 2, v="a"), 3), upper=5)
    return c


def goes_on(c):
    """What others do once a version was taken: another schema, more rows, and a merge of all."""
    c.evolve(WIDE)
    c.append(timed(pa.table({"id": [3], "v": ["b"], "w": pa.array([7], pa.int32())}), 8), upper=9)
    c.advance_since(7)
    c.merge()


def streamed(shard, version, asked):
    return VersionRead.of(shard, version, asked).stream().read_all()


def split(shard, version, asked):
    streams = VersionRead.of(shard, version.kept_by(Lease(shard)), asked).split(2)
    return pa.concat_tables(stream.read_all() for stream in streams)


def planned(shard, version, asked):
    return VersionRead.of(shard, version, asked).plan(TaskOptions(2))


@pytest.mark.promise(
    "A read, a plan, an upsert and a replacement have the schemas, runs and decisions of one "
    "version, whatever happens after it was taken",
    rule="`shard/engine/version.py`, `Shard.version`",
    also=[
        "::test_what_is_written_from_a_version_has_its_schema_and_its_runs",
        "::test_what_happens_once_a_read_has_its_version_does_not_change_it",
        "::test_a_version_has_the_schemas_of_all_of_its_parts",
    ],
)
@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
@pytest.mark.parametrize("read", [streamed, split, planned])
def test_a_read_of_a_version_has_the_schema_and_the_rows_of_that_version(collection, read, asked):
    shard = inside.shard(collection)
    version = shard.version()
    before = read(shard, version, asked)
    goes_on(collection)
    assert shard.known().schema_id == 1 and read(shard, version, asked) == before


def test_what_is_written_from_a_version_has_its_schema_and_its_runs(collection):
    shard = inside.shard(collection)

    def made(version):
        replacements = plan_replacement(version, shard.stores.blobs, [], at=9, parallelism=1)
        return Upserter.at(version, EventColumns(None, None), 9), replacements

    version = shard.version()
    before = made(version)
    goes_on(collection)
    assert made(version) == before
    upserter, [replacement] = before
    assert upserter.spec.schema_id == replacement.old.spec.schema_id == 0
    assert upserter.lower == replacement.lower == Frontier.of(5)


@pytest.mark.parametrize(
    "read",
    [
        lambda c: c.snapshot(4).read_all(),
        lambda c: c.changes(0, 4).read_all(),
        lambda c: c.lookup(pa.table({"id": [1, 2]}), 4),
        lambda c: pa.concat_tables(stream.read_all() for stream in c.distributed.split_snapshot(2, as_of=4)),
    ],
    ids=["snapshot", "changes", "lookup", "split"],
)
def test_what_happens_once_a_read_has_its_version_does_not_change_it(collection, read, monkeypatch):
    before, taken, take = read(collection), [], Shard.version

    def version(shard, **more):
        found = take(shard, **more)
        if not taken:
            taken.append(found)
            goes_on(collection)
        return found

    monkeypatch.setattr(Shard, "version", version)
    assert read(collection) == before
    assert taken[0].spec.schema_id == 0 and inside.shard(collection).known().schema_id == 1


def test_a_version_has_the_schemas_of_all_of_its_parts(collection):
    """The other way round: no state is newer than the schemas that it is read with."""
    first = inside.shard(collection).version()
    goes_on(collection)
    later = inside.shard(collection).version()
    assert set(first.spec.schemas) == {0} and set(later.spec.schemas) == {0, 1}
    for version in (first, later, inside.shard(collection).last_version()):
        assert version.spec.seqno == version.state.seqno
        assert {part.schema_id for part in version.state.parts()} <= set(version.spec.schemas)


def test_a_version_that_is_released_is_held_no_longer(collection):
    lease = Lease(inside.shard(collection), "a test", reader=True)
    version = lease.pin()
    assert collection.state().holds[lease.id].pins == (version.state.seqno,)
    version.release()
    version.release()
    assert not collection.state().holds
