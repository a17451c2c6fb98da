"""Local objects on a disk that loses what was not flushed: processes are killed and the power is cut.

Each life of a process is one `Life`. Processes follow each other on the same disk; what is known of an
object is the set of the contents that it may have, `None` for none.
"""

from dataclasses import dataclass
from random import Random
from typing import Literal

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.doubles.faults import SimulatedCrash
from tests.doubles.files import SimulatedDisk
from tidelake.errors import BlobExists, BlobNotFound
from tidelake.store.local import LocalBlobStore
from tiers import examples

NAMES = ("a", "c/d", "c/f/g")


@dataclass(frozen=True)
class Call:
    does: Literal["put", "delete", "get", "prune"]
    name: str


@dataclass(frozen=True)
class Life:
    """What a process does until it is killed before the so-manieth operation on files, or done.

    Then, with a seed, the power is cut.
    """

    calls: list[Call]
    operations: int
    power_cut: int | None


LIVES = st.lists(
    st.builds(
        Life,
        st.lists(
            st.builds(
                Call, st.sampled_from(["put", "put", "delete", "get", "prune"]), st.sampled_from(NAMES)
            ),
            max_size=6,
        ),
        st.integers(0, 9) | st.integers(10, 60),
        st.none() | st.integers(0, 2**32),
    ),
    max_size=8,
)


class LostData(AssertionError):
    pass


class History:
    """What objects may hold, by what was acknowledged and what was begun."""

    def __init__(self, skipped_flush: Literal["file", "folder"] | None = None) -> None:
        self.disk = SimulatedDisk(skipped_flush=skipped_flush)
        self.possible: dict[str, set[bytes | None]] = {name: {None} for name in NAMES}
        self.puts = 0

    def live(self, life: Life) -> None:
        left = life.operations

        def before(operation: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise SimulatedCrash(operation)

        store = LocalBlobStore("/lake/blobs", self.disk.process(before))
        try:
            for call in life.calls:
                getattr(self, call.does)(store, call.name)
        except SimulatedCrash:
            pass  # which is how this life ends
        if life.power_cut is not None:
            self.disk.crash(Random(life.power_cut))
        self.look()
        if life.power_cut is not None:  # what is left now is durable
            found = self.found()
            self.possible = {name: {found.get(name)} for name in NAMES}

    def put(self, store: LocalBlobStore, name: str) -> None:
        self.puts += 1
        data = b"%d " % self.puts * 5
        known = self.possible[name]
        if None in known:
            known.add(data)
        try:
            store.put(name, data)
        except BlobExists:
            # It is durable, whichever it is.
            self.possible[name] = known - {None, data}
        else:
            if None not in known:
                raise LostData(f"{name} was put although it was there")
            self.possible[name] = {data}

    def delete(self, store: LocalBlobStore, name: str) -> None:
        self.possible[name].add(None)
        store.delete(name)
        self.possible[name] = {None}

    def prune(self, store: LocalBlobStore, name: str) -> None:
        store.prune(name.partition("/")[0])

    def get(self, store: LocalBlobStore, name: str) -> None:
        try:
            data = store.get(name)
        except BlobNotFound:
            data = None
        self.check(name, data)

    def look(self) -> None:
        found = self.found()
        for name in NAMES:
            self.check(name, found.get(name))

    def found(self) -> dict[str, bytes]:
        store = LocalBlobStore("/lake/blobs", self.disk.process())
        listed = {info.name: info.size_bytes for info in store.list()}
        contents = {name: store.get(name) for name in listed}
        if {name: len(data) for name, data in contents.items()} != listed:
            raise LostData("a listing shows other sizes")
        return contents

    def check(self, name: str, data: bytes | None) -> None:
        if data not in self.possible[name]:
            raise LostData(f"{name} is {data!r} and must be one of {self.possible[name]}")


@pytest.mark.promise(
    "Acknowledged data survives kills, and power cuts that lose all that POSIX lets them lose; so "
    "does work that a killed process left half done and another process acknowledged. The tests "
    "notice a skipped flush of files or folders",
    rule="`store/local.py`, `store/disk.py` over `Files`",
    also=[
        "store/test_power_cuts.py",
        "doubles/files.py",
        "doubles/test_simulated_files.py",
        "store/test_files_conformance.py",
    ],
)
@settings(max_examples=examples(1_000))
@given(LIVES)
def test_what_was_acknowledged_survives_kills_and_power_cuts(lives: list[Life]) -> None:
    history = History()
    for life in lives:
        history.live(life)


@pytest.mark.parametrize("skipped_flush", ["file", "folder"])
def test_a_skipped_flush_is_found_within_200_histories(skipped_flush: Literal["file", "folder"]) -> None:
    @settings(max_examples=200, phases=[Phase.generate], database=None, report_multiple_bugs=False)
    @given(LIVES)
    def survives(lives: list[Life]) -> None:
        history = History(skipped_flush)
        for life in lives:
            history.live(life)

    with pytest.raises(LostData):
        survives()


def test_a_killed_process_leaves_no_scratch_to_the_next_writer() -> None:
    for operations in range(40):
        history = History()
        history.live(Life([Call("put", "a")], operations, None))
        files = history.disk.process()
        LocalBlobStore("/lake/blobs", files).put("other", b"x")
        assert files.scan("/lake/blobs/~tmp") == []


@pytest.mark.parametrize("again", ["put", "delete"])
@pytest.mark.parametrize("killed", ["put", "delete"])
@pytest.mark.parametrize("is_there", [False, True])
def test_what_a_killed_process_left_half_done_is_durable_once_another_answers(
    is_there: bool, killed: Literal["put", "delete"], again: Literal["put", "delete"]
) -> None:
    for operations in range(50):  # more than any of these calls makes
        for power_cut in range(6):
            history = History()
            if is_there:
                history.live(Life([Call("put", "c/d")], 100, None))
            history.live(Life([Call(killed, "c/d")], operations, None))
            history.live(Life([Call(again, "c/d")], 100, power_cut))
