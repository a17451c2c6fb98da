"""Processes of one machine that commit to one collection take turns, and work in vain only at first."""

import threading
import time
from dataclasses import replace

import pytest

import inside
import tidelake
from inside import stores
from tables import SCHEMA, ids, rows
from tidelake.config import Config
from tidelake.env import Counters, Env
from tidelake.lake.api.lake import Lake
from tidelake.shard.engine import history
from tidelake.store.layers import LogLayer


class Intruded(LogLayer):
    """Does something else just before each entry is written."""

    def __init__(self, inner):
        super().__init__(inner)
        self.intrude = lambda: None

    def compare_and_set(self, key, expected, data):
        self.intrude()
        return self._inner.compare_and_set(key, expected, data)


class Place:
    """A lake with a collection, and two processes that write to it."""

    def __init__(self, path):
        self.rival = tidelake.open(path)
        self.theirs = self.rival.create("c", SCHEMA, key=["id"])
        self.log, self.counters = Intruded(stores(self.rival).log), Counters()
        mine = replace(stores(self.rival), log=self.log)
        self.lake = Lake(self.rival.url, mine, Config(), Env(recorder=self.counters))
        self.ours = self.lake.collection("c")

    @property
    def conflicts(self):
        return self.counters.counts.get("commit.conflict", 0)

    def intrude(self, *ids_):
        """From now on the rival begins to append just before each commit, and gets up to 0.2 s for it."""
        left, self.threads = list(ids_), []

        def intrude():
            if left:
                self.threads.append(threading.Thread(target=self.theirs.append, args=(rows(left.pop()),)))
                self.threads[-1].start()
                self.threads[-1].join(0.2)

        self.log.intrude = intrude

    def settle(self):
        for thread in self.threads:
            thread.join()


@pytest.fixture
def place(tmp_path):
    place = Place(tmp_path / "lake")
    yield place
    place.lake.close()
    place.rival.close()


@pytest.mark.promise(
    "Processes of one machine that write to one collection decide and commit in turns, so work is "
    "seldom in vain; a turn that is kept for too long stops no other process, and the "
    "compare-and-set decides as without turns",
    rule="`shard/engine/machine.py`, `store/advisory.py`",
    also=["shard/test_turns.py", "store/test_advisory.py::test_a_turn_is_waited_for_and_not_without_end"],
)
def test_who_has_met_another_process_is_not_overtaken_by_it_again(place):
    place.theirs.append(rows(1))
    for _ in range(12):  # more than it takes to forget a rival that has gone
        place.ours.append(rows(2))
        place.theirs.append(rows(3))
    before = place.conflicts
    place.intrude(21, 22, 23)
    for n in (5, 6, 7):
        place.ours.append(rows(n))
    place.settle()
    assert place.conflicts == before
    assert sorted(ids(place.ours)) == [1, 2, 3, 5, 6, 7, 21, 22, 23]


def test_a_process_that_has_met_no_other_takes_no_turn_and_loses_once(place):
    place.ours.append(rows(1))
    place.intrude(21)
    place.ours.append(rows(2))
    place.settle()
    assert place.conflicts == 1
    assert sorted(ids(place.ours)) == [1, 2, 21]


def test_who_loses_in_its_turn_to_a_process_that_takes_none_keeps_it_and_waits_for_nobody(place, monkeypatch):
    monkeypatch.setattr(history, "_TURN_S_MAX", 60.0)
    place.theirs.append(rows(1))
    place.ours.append(rows(2))
    place.theirs.append(rows(3))
    place.ours.append(rows(4))
    with tidelake.open(place.rival.url) as opened:
        newcomer = opened.collection("c")
        place.theirs, before, began_s = newcomer, place.conflicts, time.monotonic()
        place.intrude(21)
        place.ours.append(rows(5))
        place.settle()
    assert time.monotonic() - began_s < 30
    assert place.conflicts == before + 1
    assert sorted(ids(place.ours)) == [1, 2, 3, 4, 5, 21]


def test_a_process_that_keeps_its_turn_for_too_long_stops_no_other(place, monkeypatch):
    monkeypatch.setattr(history, "_TURN_S_MAX", 0.01)
    place.theirs.append(rows(1))
    place.ours.append(rows(2))
    place.theirs.append(rows(3))
    with stores(place.lake).locks.take(inside.shard(place.ours).spec.shard_id, "commit") as is_ours:
        assert is_ours
        place.ours.append(rows(4))
    assert sorted(ids(place.ours)) == [1, 2, 3, 4]
