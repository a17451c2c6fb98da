"""Lakes that are dropped and not closed: nothing of them stays in the process."""

import gc
import os
import warnings
import weakref

import pytest

import tidelake
from tables import SCHEMA, rows
from threads import at_once


def read(lake):
    lake["a"].snapshot().read_all()


def written(lake):
    lake["a"].append(rows(1))
    lake["a"].maintain()


def grouped(lake):
    lake.write({name: rows(2) for name in ("a", "b")})


def reader(lake):
    next(iter(lake["a"].reader("r").snapshot()))


def half_read(lake):
    rest = lake["a"].snapshot()
    next(iter(rest))
    return rest


@pytest.fixture
def place(tmp_path):
    with tidelake.open(tmp_path / "lake") as lake:
        for name in ("a", "b"):
            lake.create(name, SCHEMA, key=["id"]).append(rows(0))
    return tmp_path / "lake"


def opened_files(place):
    links = (f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd"))
    return sum(str(place) in os.readlink(link) for link in links if os.path.lexists(link))


def drop_one(place, use, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        lake = tidelake.open(place, **options)
        use(lake)
        gone = weakref.ref(lake)
        del lake
        gc.collect()
    assert gone() is None


@pytest.mark.promise(
    "A lake or log that is dropped without a close keeps no file open, and a reader that was "
    "forgotten does not pin its lake",
    rule="`KeyFile.__del__`, `Lease._let_go`",
    also=[
        "lake/test_forgotten_lakes.py",
        "store/test_store_processes.py::test_a_log_that_is_dropped_without_a_close_keeps_no_files_open",
    ],
)
@pytest.mark.parametrize("use", [read, written, grouped, reader, half_read], ids=lambda use: use.__name__)
def test_a_lake_that_is_dropped_keeps_no_file_open(place, use):
    for _ in range(3):
        drop_one(place, use)
        assert opened_files(place) == 0


def test_who_asks_for_it_is_told_of_a_lake_that_was_dropped(place):
    def drop():
        read(tidelake.open(place))
        gc.collect()

    with pytest.warns(ResourceWarning, match="log was not closed: close the lake"):
        drop()


def test_one_that_was_only_read_beside_one_that_is_used_keeps_no_file_open(place):
    with tidelake.open(place) as lake:
        read(lake)
        counts = []
        for _ in range(6):
            drop_one(place, read, read_only=True)
            drop_one(place, read)
            counts.append(opened_files(place))
        assert len({*counts[1:]}) == 1
    assert opened_files(place) == 0


def test_lakes_that_are_dropped_while_others_work_are_closed_by_these(place):
    """The garbage collector runs in any thread, also where it holds a lock of the log."""
    failures = []

    def work():
        try:
            for _ in range(15):
                read(tidelake.open(place))
                read(tidelake.open(place, read_only=True))
        except Exception as error:
            failures.append(error)

    usual = gc.get_threshold()
    gc.set_threshold(50, 5, 5)
    try:
        at_once(lambda _: work(), range(3))
    finally:
        gc.set_threshold(*usual)
    assert failures == []
    gc.collect()
    with tidelake.open(place) as lake:
        read(lake)
    assert opened_files(place) == 0
