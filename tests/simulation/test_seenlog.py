"""What `SeenLog` tells its observer, and the answers that it refuses."""

import pytest

from simulation.seenlog import SeenEntries, SeenLog
from simulation.witness import Actor
from tests.doubles.faults import SimulatedCrash
from tidelake.store.memory import MemoryVersionLog

KEY = "k"


class Observed:
    def __init__(self):
        self.told = []

    def entered(self, _key, entry, actor):
        self.told.append((entry.seqno, actor.process))

    def ending(self, _key):
        self.told.append("end")

    def wrong(self, message):
        raise AssertionError(message)


class DyingLog(MemoryVersionLog):
    """A log whose processes die amid a write, before its effect or after it."""

    dies = None

    def compare_and_set(self, key, expected, data):
        return self._dying(lambda: super(DyingLog, self).compare_and_set(key, expected, data))

    def delete(self, key):
        return self._dying(lambda: super(DyingLog, self).delete(key))

    def _dying(self, call):
        dies, self.dies = self.dies, None
        if dies == "before":
            raise SimulatedCrash("")
        answer = call()
        if dies == "after":
            raise SimulatedCrash("")
        return answer


@pytest.fixture
def world():
    true, seen, observed = DyingLog(), SeenEntries(), Observed()

    def process(name):
        return SeenLog(true, seen, observed, lambda: Actor(name, None))

    return true, observed, process


def test_an_entry_of_a_process_that_died_is_told_when_another_one_reads_it(world):
    true, observed, process = world
    a, b = process("a"), process("b")
    assert a.compare_and_set(KEY, None, b"0")
    true.dies = "after"
    with pytest.raises(SimulatedCrash):
        a.compare_and_set(KEY, 0, b"1")
    assert observed.told == [(0, "a")]
    assert len(b.newer(KEY, 0)) == 1
    assert observed.told == [(0, "a"), (1, "a")]


@pytest.mark.parametrize("read", ["head", "scan", "newer", "keys"])
@pytest.mark.parametrize("loss", ["tail", "key"])
def test_a_log_that_has_less_than_was_seen_is_refused(world, read, loss):
    true, _, process = world
    log = process("a")
    for seqno in (None, 0):
        log.compare_and_set(KEY, seqno, b"data")
    if loss == "tail":
        true._entries[KEY].pop()
    else:
        true._entries.pop(KEY)
    calls = {
        "head": lambda: log.head(KEY),
        "scan": lambda: log.scan(KEY, 0),
        "newer": lambda: log.newer(KEY, 0),
        "keys": log.keys,
    }
    if (read, loss) in {("newer", "key"), ("keys", "tail")}:
        calls[read]()  # it says nothing of that
        return
    with pytest.raises(AssertionError, match="the newest is"):
        calls[read]()


def test_an_entry_that_has_changed_is_refused_and_so_is_one_that_was_not_written(world):
    true, _, process = world
    log = process("a")
    log.compare_and_set(KEY, None, b"0")
    true.compare_and_set(KEY, 0, b"1")
    with pytest.raises(AssertionError, match="not written"):
        log.head(KEY)
    true.delete(KEY)
    true.compare_and_set(KEY, None, b"other")
    with pytest.raises(AssertionError, match="had"):
        log.head(KEY)


@pytest.mark.parametrize("dies", ["before", "after"])
def test_a_deletion_amid_which_a_process_dies_counts_when_another_one_sees_it(world, dies):
    true, observed, process = world
    a, b = process("a"), process("b")
    a.compare_and_set(KEY, None, b"0")
    true.dies = dies
    with pytest.raises(SimulatedCrash):
        a.delete(KEY)
    assert "end" not in observed.told
    assert list(b.keys()) == ([KEY] if dies == "before" else [])
    assert ("end" in observed.told) == (dies == "after")
    true.compare_and_set(KEY, None, b"0")  # a power cut brings it back
    assert b.head(KEY) is not None
    b.delete(KEY)
    assert observed.told == [(0, "a"), "end"]
    b.compare_and_set(KEY, None, b"again")
    assert observed.told == [(0, "a"), "end", (0, "b")]
