"""A framed log on a disk that loses what was not flushed: writers are killed, and the power is cut.

Beside a writer a reader looks in before any of its operations on files. What was acknowledged, and what a
reader has seen, is there ever after, and every entry is one that was offered.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

import pytest

from clocks import RecordingClock
from tests.doubles.faults import SimulatedCrash
from tests.doubles.files import SimulatedDisk
from tidelake.errors import CorruptionError, OutcomeUnknown, StoreUnavailable
from tidelake.store.framed import frames
from tidelake.store.framed.folder import KeyFolder
from tidelake.store.framed.keyfile import KeyFile
from tidelake.store.framed.log import FramedVersionLog
from tiers import rounds

Does = Literal["append", "truncate", "delete", "read"]
_DOES: list[Does] = ["append", "append", "append", "append", "truncate", "delete", "read"]


@dataclass(frozen=True)
class Call:
    """What a process does: with so many bytes, or so far."""

    does: Does
    size: int


@dataclass(frozen=True)
class Life:
    """What a process does until it is killed before the so-manieth operation on files of a kind, or done.

    A reader looks in before every `looks`-th of them. Then, with a seed, the power is cut.
    """

    calls: list[Call]
    kind: str
    operations: int
    looks: int
    power_cut: int | None


# Kinds of operations, and at most how many of one a process lives for: most die amid an append.
_KINDS = {"file.": 150, "file.datasync": 4, "file.pwrite": 9, "file.rename": 1, "file.fsync": 4}
_DRAWN = ["file.", "file.datasync", "file.datasync", "file.pwrite", "file.rename", "file.fsync"]


def lives_of(seed: int) -> list[Life]:
    draw = Random(seed)
    lives = []
    for _ in range(draw.randint(1, 6)):
        calls = [
            Call(draw.choice(_DOES), draw.choice([3, 90, 700, 6_000])) for _ in range(draw.randint(1, 6))
        ]
        kind = draw.choice([*_KINDS])
        power_cut = draw.randrange(2**32) if draw.random() < 0.6 else None
        lives.append(Life(calls, kind, draw.randint(0, _KINDS[kind]), draw.randint(1, 3), power_cut))
    return lives


class Wrong(AssertionError):
    pass


class History:
    """What the log may hold: entries that are certain, and perhaps one more.

    Attributes:
        certain: seqno of the newest entry that was acknowledged or seen; -1 if there is none.
        offered: what was offered for each seqno of this generation of the key.
        is_gone: whether the key may be gone, or made anew.
    """

    def __init__(self, skipped_flush: Literal["file", "folder"] | None = None) -> None:
        self.disk = SimulatedDisk(skipped_flush=skipped_flush)
        self.certain, self.is_gone, self.floor = -1, False, 0
        self.offered: dict[int, set[bytes]] = {}
        self.count = 0

    def live(self, life: Life) -> None:
        left = life.operations
        clock = RecordingClock()
        reader = FramedVersionLog("/lake/log", files=self.disk.process(), clock=clock)
        looking = False

        def before(operation: str) -> None:
            nonlocal left, looking
            if looking or not operation.startswith(life.kind):
                return
            if not left % life.looks:
                looking = True
                self.look(reader)
                looking = False
            if not left:
                raise SimulatedCrash(operation)
            left -= 1

        writer = FramedVersionLog("/lake/log", files=self.disk.process(before), clock=clock)
        with suppress(SimulatedCrash):  # which is how this life ends
            for call in life.calls:
                getattr(self, call.does)(writer, call.size)
        if life.power_cut is not None:
            self.disk.crash(Random(life.power_cut))
            reader = FramedVersionLog("/lake/log", files=self.disk.process(), clock=clock)
        self.look(reader, is_last=True)

    def append(self, writer: FramedVersionLog, size: int) -> None:
        head = self.look(writer)
        expected = None if head < 0 else head
        self.count += 1
        data = (b"%d " % self.count * size)[:size] + b"%d" % self.count
        if head < 0:
            self.offered.clear()
        self.offered.setdefault(head + 1, set()).add(data)
        with suppress(OutcomeUnknown):
            if not writer.compare_and_set("k", expected, data):
                raise Wrong(f"{head} is the newest entry, and an append after it was refused")
            self.offered[head + 1] = {data}
            self.certain = max(self.certain, head + 1)

    def truncate(self, writer: FramedVersionLog, size: int) -> None:
        head = self.look(writer)
        if head >= 0:
            self.floor = max(self.floor, head - size % 5)
            writer.truncate("k", max(head - size % 5, 0))

    def delete(self, writer: FramedVersionLog, size: int) -> None:
        if size == 3 and self.look(writer) >= 0:
            self.is_gone = True
            writer.delete("k")
            self.gone()

    def read(self, writer: FramedVersionLog, size: int) -> None:
        if size < 0 or self.look(writer) < -1:
            raise Wrong("a head before the first entry")

    def gone(self) -> None:
        self.certain, self.is_gone, self.floor = -1, False, 0

    def look(self, asked: FramedVersionLog, *, is_last: bool = False) -> int:
        """Judge what a process sees; return the newest seqno."""
        try:
            found = asked.scan("k", 0)
            head = asked.head("k") if is_last else None
        except StoreUnavailable:
            if is_last:
                raise
            return self.certain  # the writer has the lock, and stands still
        except CorruptionError as error:
            raise Wrong(f"damage is seen where there is none: {error}") from error
        if is_last and head != (found[-1] if found else None):
            raise Wrong(f"the head is {head}, and the newest entry {found[-1:]}")
        if not found:
            if self.certain >= 0 and not self.is_gone:
                raise Wrong(f"entry {self.certain} was there, and the key is gone")
            if is_last:
                self.gone()
            return -1
        for entry in found:
            if entry.data not in self.offered.get(entry.seqno, ()):
                raise Wrong(f"{entry} was never offered: {self.offered.get(entry.seqno)}")
            self.offered[entry.seqno] = {entry.data}
        if found[-1].seqno < self.certain:
            raise Wrong(f"entry {self.certain} was there, and the log ends at {found[-1].seqno}")
        if found[0].seqno > self.floor:
            raise Wrong(f"entry {found[0].seqno} is the first, and {self.floor} was to be kept")
        self.certain = found[-1].seqno
        if is_last:
            self.is_gone = False
        return found[-1].seqno


@pytest.mark.promise(
    "No reader acts on an entry that a power cut can take back: a frame is flushed before it is "
    "published, and only what is published is believed",
    rule="`KeyFile.flush`, `FramedVersionLog._believed`",
    also=["::test_a_defect_is_found_within_200_seeds"],
)
@pytest.mark.grows
def test_what_was_acknowledged_or_seen_survives_kills_and_power_cuts(rng: Random) -> None:
    for _ in rounds(fast=1, full=20, soak=600, least=50):
        seed = rng.randrange(2**32)
        history = History()
        try:
            for life in lives_of(seed):
                history.live(life)
        except Wrong as wrong:
            raise AssertionError(f"seed {seed}: {wrong}") from wrong


def published_first(self: KeyFile, written: Any) -> None:
    self.publish(written.record)
    self._files.datasync(self._descriptor)


def any_data(self: frames.Frame, content: bytes, origin: int = 0) -> bytes:
    at = self.start + frames.FRAME_BYTES - origin
    return content[at : at + self.length]


def believing(self: FramedVersionLog, key: str, file: KeyFile) -> Any:
    flush = self._files.datasync
    self._files.datasync = lambda _: None  # type: ignore[method-assign]
    try:
        return file.recover(writes=False)
    finally:
        self._files.datasync = flush  # type: ignore[method-assign]


def patched(patch: pytest.MonkeyPatch, owner: type, name: str, defect: Any) -> Callable[[], History]:
    patch.setattr(owner, name, defect)
    return History


def unsynced(put: Callable[..., Any]) -> Callable[..., Any]:
    """A file that is made whole and not flushed."""

    def making(self: KeyFolder, *arguments: Any, **named: Any) -> Any:
        flush = self._files.fsync
        self._files.fsync = lambda _: None  # type: ignore[method-assign]
        try:
            return put(self, *arguments, **named)
        finally:
            self._files.fsync = flush  # type: ignore[method-assign]

    return making


def as_known(self: KeyFile) -> Any:
    return None if self._newest is None else self._newest.known


CANARIES: dict[str, Callable[[pytest.MonkeyPatch], Callable[[], History]]] = {
    "no flush": lambda _: lambda: History("file"),
    "a rename without its directory": lambda _: lambda: History("folder"),
    "published first": lambda patch: patched(patch, KeyFile, "flush", published_first),
    "links unchecked": lambda patch: patched(patch, frames.Frame, "data", any_data),
    "what was known is believed without a look": lambda patch: patched(patch, KeyFile, "unchanged", as_known),
    "the unpublished tail is believed": lambda patch: patched(
        patch, FramedVersionLog, "_believed", believing
    ),
    "a truncation without a flush": lambda patch: patched(patch, KeyFolder, "put", unsynced(KeyFolder.put)),
}


@pytest.mark.full
@pytest.mark.parametrize("canary", CANARIES)
def test_a_defect_is_found_within_200_seeds(canary: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make = CANARIES[canary](monkeypatch)

    def lived() -> None:
        for seed in range(200):
            history = make()
            for life in lives_of(seed):
                history.live(life)

    with pytest.raises(Wrong):
        lived()
