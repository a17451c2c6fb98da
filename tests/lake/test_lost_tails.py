"""Logs that have lost their newest entries: no older answer, and no wait.

A lake is copied while it is open, which is what a crash leaves, and one bit of it is flipped.
"""

import shutil
import time
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from damage import World

import tidelake
from tidelake.config import Config
from tidelake.errors import CorruptionError
from tiers import rounds

NAMES = ("alone", "left", "right")
TIMES = range(6)
ASKED = (0, 3, 5)
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])
# Far more than any call here takes: a call that takes this long never ends.
TOO_LONG_S = 60.0


def rows(name: str, at: int) -> pa.Table:
    return pa.table({"id": [at, 100 + at], "v": [f"{name} {at}", name * 20]}, SCHEMA)


def contents(name: str, at: int) -> list[tuple[int, str]]:
    return sorted((row["id"], row["v"]) for t in range(at + 1) for row in rows(name, t).to_pylist())


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake of three collections, two of them in a group, as a crash leaves it."""
    place = tmp_path_factory.mktemp("lost")
    with tidelake.open(place / "lake", config=Config(merge_budget_s=0)) as lake:
        for name in NAMES:
            lake.create(name, SCHEMA, key=["id"])
        for at in TIMES:
            lake.collection("alone").append(rows("alone", at))
            lake.write({"left": rows("left", at), "right": rows("right", at)})
        lake.create("last", SCHEMA, key=["id"])
        shutil.copytree(place / "lake", place / "crashed")
    return place / "crashed"


def logs(lake: Path) -> list[Path]:
    return sorted((lake / "log").glob("*/log"))


def names_file(error: CorruptionError, place: Path) -> bool:
    return str(place / "log") in str(error)


def judge(place: Path) -> int:
    """How many answers are refused; all others are right."""
    refused = 0
    started_s = time.monotonic()
    with tidelake.open(place, create=False) as lake:
        try:
            assert lake.list() == sorted([*NAMES, "last"])
        except CorruptionError as error:
            refused += names_file(error, place)
        for name in NAMES:
            for at in ASKED:
                try:
                    found = lake.collection(name).snapshot(at, timeout_s=0).read_all()
                except CorruptionError as error:
                    refused += names_file(error, place)
                    continue
                assert sorted(zip(*found.select(["id", "v"]).to_pydict().values(), strict=True)) == contents(
                    name, at
                )
            try:
                made = lake.create(name, SCHEMA, key=["id"])
                assert made.snapshot(TIMES[-1], timeout_s=0).read_all().num_rows
            except CorruptionError:
                refused += 1
        try:
            lake.collection("last").state()
        except CorruptionError as error:
            refused += names_file(error, place)
        report = lake.fsck()
        assert report.clean == (not refused), report.findings
    assert time.monotonic() - started_s < TOO_LONG_S
    return refused


def test_a_lake_that_crashed_is_whole(crashed: Path, tmp_path: Path) -> None:
    shutil.copytree(crashed, tmp_path / "lake")
    assert len(logs(tmp_path / "lake")) == 6
    assert judge(tmp_path / "lake") == 0


@pytest.mark.promise(
    "After a flipped bit in any log of a lake (of a collection, a group, the catalog), each read "
    "and each `create` is right or raises `CorruptionError`, in bounded time, and `fsck` finds the "
    "same damage",
    rule="`store/framed/keyfile.py`, `Shard.version`, `History.refresh`",
    also=[
        "::test_a_group_that_has_forgotten_its_collections_ends_every_wait",
        "::test_a_log_that_has_lost_its_newest_entries_is_not_taken_for_one_that_was_dropped",
    ],
)
@pytest.mark.grows
def test_no_flipped_bit_in_a_log_gives_a_wrong_or_an_older_answer(
    crashed: Path, tmp_path: Path, rng: Random
) -> None:
    refused = 0
    for i in rounds(fast=2, full=10, soak=300, least=6):
        place = tmp_path / f"lake{i}"
        shutil.copytree(crashed, place)
        path = logs(place)[i % 6]
        content = bytearray(path.read_bytes())
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(content)
        refused += judge(place) > 0
        shutil.rmtree(place)
    assert refused


@pytest.mark.grows
def test_a_repair_takes_back_what_is_sound_and_says_what_is_lost(
    crashed: Path, tmp_path: Path, rng: Random
) -> None:
    whole = 0
    for i in rounds(fast=2, full=8, soak=300, least=6):
        place = tmp_path / f"lake{i}"
        shutil.copytree(crashed, place)
        path = logs(place)[i % 6]
        content = bytearray(path.read_bytes())
        second = content.index(b"\xf0frm", 100)  # no reader can begin without the first entry
        content[rng.randrange(second, content.rindex(b"tidelake:"))] ^= 1 << rng.randrange(8)
        path.write_bytes(content)
        with tidelake.open(place, create=False) as lake:
            lost = [one for one in lake.fsck(repair=True).findings if one.kind == "log-lost"]
        if lost:
            assert "were acknowledged, and are lost" in lost[0].message
            with tidelake.open(place, create=False) as lake:
                assert {one.kind for one in lake.fsck().left} <= {"log-behind", "unnamed-shard"}
        else:
            whole += 1
            assert judge(place) == 0
        shutil.rmtree(place)
    assert whole


# --- Without what files say: a log of memory that is cut ---


@pytest.fixture
def world() -> World:
    return World(Config(merge_budget_s=0))


def grouped(world: World) -> tuple[tidelake.Lake, str]:
    lake = world.lake()
    for name in ("a", "b"):
        lake.create(name, SCHEMA, key=["id"])
    lake.write({"a": rows("a", 0), "b": rows("b", 0)})
    return lake, lake.collection("a").state().group


@pytest.mark.parametrize("fresh", [False, True])
def test_a_group_that_has_forgotten_its_collections_ends_every_wait(world: World, fresh: bool) -> None:
    lake, group = grouped(world)
    del world.log._entries[group][1:]
    if fresh:
        lake = world.lake()
    for call in (
        lambda: lake.collection("a").snapshot(0, timeout_s=0).read_all(),
        lambda: lake.collection("a").snapshot(5, timeout_s=0.1).read_all(),
        lambda: lake.collection("a").upper,
        lambda: lake.write({"a": rows("a", 1)}),
        lambda: lake.seal({"a": 3, "b": 3}),
    ):
        with pytest.raises(CorruptionError, match=f"{group}.*lost"):
            call()


def test_a_log_that_has_lost_its_newest_entries_is_not_taken_for_one_that_was_dropped(world: World) -> None:
    c = world.lake().create("c", SCHEMA, key=["id"])
    for at in TIMES:
        c.append(rows("c", at))
    del world.log._entries[c.id][-2:]
    with pytest.raises(CorruptionError, match="was there: the rest is lost"):
        c.snapshot(0).read_all()
