"""Repairs, copies, forks and what else takes several steps, killed before each change to a file.

The next process goes on where it stopped. What is called lost is lost, and nothing else is.
"""

import shutil
from pathlib import Path

import pytest
from copied_lakes import TINY, as_table, compared, filled, grown

import tidelake
from killed import killed
from tables import SCHEMA, contents
from tidelake.arrangement.arrangement import Arrangement
from tidelake.lake.api.lake import Lake
from tidelake.state.core.agreed import Agreed
from tidelake.state.core.formats import NEWEST


def opened(place: Path) -> Lake:
    return tidelake.open(place, config=TINY)


def as_crashed(lake: Lake, place: Path, prepared: Path) -> None:
    """What a crash leaves of an open lake."""
    shutil.copytree(place, prepared)
    lake.close()


def told(place: Path, *, repair: bool = True) -> set[tuple[str, str]]:
    with opened(place) as lake:
        return {(one.kind, one.object) for one in lake.fsck(repair=repair).findings}


def rows_of(place: Path, name: str) -> list[dict[str, object]]:
    with opened(place) as lake:
        return list(lake.collection(name).snapshot().read_all().to_pylist())


@pytest.fixture
def damaged_log(tmp_path: Path) -> tuple[Path, str]:
    """A lake whose collection has six rows, the last of them in a damaged entry; and the shard's id."""
    lake = opened(tmp_path / "lake")
    c = lake.create("c", SCHEMA, key=["id"])
    for n in range(6):
        c.append(as_table([(n, "v")]))
    as_crashed(lake, tmp_path / "lake", tmp_path / "damaged")
    log = tmp_path / "damaged" / "log" / c.id / "log"
    content = bytearray(log.read_bytes())
    content[content.rindex(b"tidelake:") + 40] ^= 1
    log.write_bytes(content)
    return tmp_path / "damaged", c.id


@pytest.mark.promise(
    "A repair that is killed at any step is gone on with, and sets the same aside once; likewise "
    "upgrades, copies, forks, leaving a group, drops, erasures, and checkpoints of arrangements",
    rule="names of what is set aside follow from the plan (`Mending._store_aside`)",
    also=["kills/test_killed_at_every_change.py"],
)
def test_a_repair_of_a_log_keeps_what_is_sound(damaged_log: tuple[Path, str]) -> None:
    prepared, id_ = damaged_log
    lost = set()
    for place in killed(prepared, told, fast=10, full=1):
        found = told(place)
        lost.add(("log-lost", id_) in found)
        assert [row["id"] for row in rows_of(place, "c")] == [0, 1, 2, 3, 4]
        assert told(place, repair=False) == set()
        folder = place / "log" / id_
        assert {"lock", "log", "published"} <= {path.name for path in folder.iterdir()}
        assert not (folder / "new").exists() and list(folder.glob("damaged-*"))
    assert True in lost


def test_a_repair_of_a_state_sets_the_same_aside_once(tmp_path: Path) -> None:
    prepared = tmp_path / "lake"
    with opened(prepared) as lake:
        c = lake.create("c", SCHEMA, key=["id"])
        for n in range(3):
            c.append(as_table([(100 * n + i, "x" * 40) for i in range(30)]))
        gone = next(part.name for part in c.state().parts())
    (prepared / "blobs" / gone).unlink()
    whole = tmp_path / "whole"
    shutil.copytree(prepared, whole)
    assert ("set-aside", gone) in told(whole)
    expected = rows_of(whole, "c")
    for place in killed(prepared, told, fast=20):
        found = told(place)
        assert {object_ for kind, object_ in found if kind == "set-aside"} <= {gone}
        assert rows_of(place, "c") == expected
        asides = {path.parent for path in (place / "blobs").rglob("what.txt")}
        assert len(asides) == 1


@pytest.mark.full
def test_an_upgrade_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = tmp_path / "lake"
    with monkeypatch.context() as patch:
        patch.setattr(Agreed, "of", classmethod(lambda *_: Agreed(format=NEWEST - 1)))
        with opened(prepared) as lake:
            filled(lake)
    for place in killed(prepared, lambda place: opened(place).upgrade(), fast=10):
        with opened(place) as lake:
            lake.collection("a").append(as_table([(5, "z")]))
            lake.upgrade()
            formats = {lake.collection(name).state().agreed.format for name in lake.list()}
            assert formats == {NEWEST} and lake.fsck().left == ()


@pytest.mark.full
def test_a_first_copy_and_one_that_is_renewed_are_gone_on_from(tmp_path: Path) -> None:
    with opened(tmp_path / "lake") as lake:
        filled(lake)
        (tmp_path / "copy").mkdir()
        for _ in range(2):
            for place in killed(tmp_path / "copy", lake.copy, fast=40, full=8):
                lake.copy(place)
                with opened(place) as target:
                    for name in target.list():
                        # A run that died right before its commit has left a rollup that no state names.
                        target.collection(name).collect(thorough=True)
                    compared(target, lake)
            lake.copy(tmp_path / "copy")
            grown(lake)


@pytest.mark.full
def test_a_fork_is_made_or_not(tmp_path: Path) -> None:
    prepared = tmp_path / "lake"
    with opened(prepared) as lake:
        grown(filled(lake))

    def fork(place: Path) -> None:
        with opened(place) as lake:
            lake.fork("a", "f")

    for place in killed(prepared, fork, fast=12):
        with opened(place) as lake:
            if "f" not in lake.list():
                lake.fork("a", "f")
            assert contents(lake.collection("f")) == contents(lake.collection("a"))
            lake.collection("f").append(as_table([(1, "more")]))
            lake.write({name: as_table([(7000, "on")]) for name in "ab"})
            assert lake.fsck().left == ()


@pytest.mark.full
def test_a_collection_has_left_its_group_or_not(tmp_path: Path) -> None:
    prepared = tmp_path / "lake"
    with opened(prepared) as lake:
        grown(filled(lake))

    def leave(place: Path) -> None:
        with opened(place) as lake:
            lake.leave("a")

    for place in killed(prepared, leave, fast=12):
        with opened(place) as lake:
            before = [contents(lake.collection(name)) for name in "ab"]
            lake.leave("a")
            assert not lake.collection("a").state().group
            assert [contents(lake.collection(name)) for name in "ab"] == before
            lake.collection("a").append(as_table([(1, "alone")]))
            lake.write({name: as_table([(7000, "on")]) for name in "ab"})
            assert lake.fsck().left == ()


@pytest.mark.full
def test_a_drop_and_an_erasure_end(tmp_path: Path) -> None:
    prepared = tmp_path / "lake"
    with opened(prepared) as lake:
        grown(filled(lake))

    def ends(place: Path) -> None:
        with opened(place) as lake:
            lake.collection("a").erase([1, 3001], reason="asked")
            if "b" in lake.list():
                lake.drop("b")

    for place in killed(prepared, ends, fast=30, full=6):
        ends(place)
        with opened(place) as lake:
            found = lake.collection("a").snapshot().read_all()["id"].to_pylist()
            assert lake.list() == ["a"] and not {1, 3001} & set(found) and {2, 3000} <= set(found)
            assert lake.fsck().left == ()


@pytest.mark.full
def test_a_checkpoint_is_saved_or_not_and_restored_by_the_next_process(tmp_path: Path) -> None:
    prepared = tmp_path / "all"
    with opened(prepared / "lake") as lake:
        c = lake.create("c", SCHEMA, key=["id"])
        c.append(as_table([(n, "v") for n in range(30)]))
        with c.arrange(follow=False) as one:
            one.save(prepared / "saved")
        c.append(as_table([(n, "w") for n in range(30, 60)]))

    def arranged(place: Path) -> Arrangement:
        found = (
            opened(place / "lake")
            .collection("c")
            .arrange(restore=place / "saved", directory=place / "homes", follow=False)
        )
        found.save(place / "saved")
        return found

    for place in killed(prepared, arranged, fast=8):
        with arranged(place) as found, found.snapshot() as seen:
            assert sum(rows.num_rows for rows in seen.scan()) == 60
        assert len(list((place / "saved").glob("*.list"))) == 2
