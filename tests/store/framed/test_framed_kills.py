"""Processes that extend, cut and repair one framed log, killed with -9 at random moments.

The parent damages the log now and then, so that each entry can be taken back. Whatever is killed, what was
acknowledged or read once is there, and as it was, until a truncation removes it.
"""

import itertools
import os
import signal
import time
from pathlib import Path
from random import Random

import pytest

from tests.store.test_store_processes import in_fork
from tidelake.errors import CorruptionError
from tidelake.store.framed.log import FramedVersionLog
from tidelake.store.protocols import Entry
from tiers import rounds

KEY = "k"
KILLS_LEAST = 500  # of a soak
LEFT = 20
"""So many entries a truncation leaves before the newest."""
# The damage is not at the end: that looks like a write that was under way.
UNTOUCHED = 5


def work(root: str, tag: str, told: int, parent: int) -> None:
    draw, log = Random(tag), FramedVersionLog(root)
    for number in itertools.takewhile(lambda _: os.getppid() == parent, itertools.count()):
        data = f"{tag}-{number} ".encode() + bytes(draw.choice((0, 600, 9_000)))
        try:
            head = log.head(KEY)
            seqno = -1 if head is None else head.seqno
            if not log.compare_and_set(KEY, None if head is None else seqno, data):
                continue
            os.write(told, b"%d %s\n" % (seqno + 1, data[:30].split(b" ")[0]))
            if draw.random() < 0.1 and log.truncate(KEY, max(0, seqno - LEFT)):
                os.write(told, b"cut\n")
            if draw.random() < 0.1:
                log.scan(KEY, 0)
        except CorruptionError:
            if log.mend(KEY, range(2**20)) is not None:
                os.write(told, b"mended\n")


class Crew:
    """The processes, and what they told."""

    def __init__(self, place: Path) -> None:
        self.root, self._told = str(place / "log"), place / "told"
        self.log = FramedVersionLog(self.root)
        self.seen: dict[int, bytes] = {}
        self.living: list[int] = []
        self.kills = self.damaged = 0

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self.living:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self.log.close()

    def start(self, tag: str) -> None:
        parent = os.getpid()

        def child() -> None:
            work(self.root, tag, os.open(self._told, os.O_WRONLY | os.O_CREAT | os.O_APPEND), parent)

        self.living.append(in_fork(child))

    def kill(self, pid: int) -> None:
        self.living.remove(pid)
        os.kill(pid, signal.SIGKILL)
        assert os.waitpid(pid, 0)[1] == signal.SIGKILL, "it had ended by itself"
        self.kills += 1

    def told(self, what: str = "") -> list[str]:
        lines = self._told.read_text().splitlines() if self._told.exists() else []
        return [line for line in lines if line == what or not what]

    def check(self) -> "list[Entry] | None":
        """The entries, after a comparison with what was told and seen; None while the log is damaged."""
        acknowledged = dict(line.split() for line in self.told() if " " in line)
        try:
            found = self.log.scan(KEY, 0)
        except CorruptionError:
            if self.damaged:
                return None
            raise
        head = found[-1].seqno if found else -1
        assert [entry.seqno for entry in found] == list(range(head + 1 - len(found), head + 1))
        assert max([*map(int, acknowledged), *self.seen, -1]) <= head
        for entry in found:
            assert self.seen.setdefault(entry.seqno, entry.data) == entry.data
            told = acknowledged.get(str(entry.seqno))
            assert told is None or entry.data.startswith(told.encode() + b" ")
        return found

    def damage(self, draw: Random, entries: list[Entry]) -> None:
        """Flip a bit in the header of a frame whose data the links beside it prove."""
        if len(entries) <= UNTOUCHED:
            return
        with open(f"{self.root}/{KEY}/log", "r+b") as file:
            content = file.read()
            at = content.find(draw.choice(entries[:-UNTOUCHED]).data[:30]) - 30
            if at > 0:
                file.seek(at)
                file.write(bytes([content[at] ^ 1 << draw.randrange(8)]))
                self.damaged += 1


@pytest.mark.full
@pytest.mark.grows
def test_killed_appends_truncations_and_repairs_lose_nothing(tmp_path, rng, record_property):
    with Crew(tmp_path) as crew:
        for number in range(3):
            crew.start(f"first{number}")
        for number in rounds(
            full=5,
            soak=60,
            least=20,
            until=lambda: bool(crew.told("cut") and crew.told("mended")),
            soak_until=lambda: crew.kills >= KILLS_LEAST,
        ):
            time.sleep(rng.random() * 0.05)
            crew.kill(rng.choice(crew.living))
            crew.start(f"next{number}")
            entries = crew.check()
            if entries is not None and number % 4 == 3:
                crew.damage(rng, entries)
        for pid in list(crew.living):
            crew.kill(pid)
        crew.log.mend(KEY, range(2**20))
        entries = crew.check()
        assert entries is not None
        assert crew.log.compare_and_set(KEY, entries[-1].seqno, b"goes on")
    cut, mended = len(crew.told("cut")), len(crew.told("mended"))
    record_property(
        "figures",
        f"{crew.kills} kills, {entries[-1].seqno} entries, {cut} truncations, {mended} repairs of "
        f"{crew.damaged} damages",
    )
