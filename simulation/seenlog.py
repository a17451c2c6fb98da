"""A framed log on the simulated disk, with an observer that is told of each entry once it is seen.

Owns which entries were seen: what was acknowledged to a process, or read by one, is there ever after. An
entry of a process that died amid the write counts from when another one finds it. Must not know what an entry
means.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from simulation.witness import Actor, Observer
from tidelake.store.layers import LogLayer
from tidelake.store.protocols import Entry, VersionLog


@dataclass
class SeenEntries:
    """What all processes have seen of a log.

    Attributes:
        heads: the newest entry of each key that was seen.
        offered: who tries, or died when they tried, to write an entry of a key.
        ending: keys whose deletion was begun, and not answered.
        ended: those of them that were seen to be gone. A power cut may bring them back, and then they are
            deleted again: what happens to them is not judged.
    """

    heads: dict[str, Entry] = field(default_factory=dict)
    offered: dict[tuple[str, Entry], list[Actor]] = field(default_factory=lambda: defaultdict(list))
    ending: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)


class SeenLog(LogLayer):
    """A `VersionLog` of one process, whose new entries are seen.

    Args:
        inner: the log of the process.
        seen: what all processes have seen.
        observer: is told of entries and deletions.
        acting: the actor of a call.
    """

    def __init__(
        self, inner: VersionLog, seen: SeenEntries, observer: Observer, acting: Callable[[], Actor]
    ) -> None:
        super().__init__(inner)
        self._seen, self._observer, self._acting = seen, observer, acting

    def head(self, key: str) -> Entry | None:
        """Judge the answer; see `VersionLog.head`."""
        found = self._inner.head(key)
        self._see(key, [] if found is None else [found], end=-1)
        return found

    def scan(self, key: str, start: int, limit: int | None = None) -> list[Entry]:
        """Judge the answer; see `VersionLog.scan`."""
        found = self._inner.scan(key, start, limit)
        self._see(key, found, end=-1 if start == 0 and limit is None else None)
        return found

    def newer(self, key: str, seqno: int, through: int | None = None) -> list[Entry] | None:
        """Judge the answer; see `VersionLog.newer`."""
        found = self._inner.newer(key, seqno, through)
        self._see(key, found or [], end=None if found is None or through is not None else seqno)
        return found

    def keys(self, prefix: str = "") -> Iterator[str]:
        """Judge the answer; see `VersionLog.keys`."""
        found = list(self._inner.keys(prefix))
        for key in self._seen.heads.keys() - set(found):
            if key.startswith(prefix):
                self._see(key, [], end=-1)
        return iter(found)

    def compare_and_set(self, key: str, expected: int | None, data: bytes) -> bool:
        """Tell the observer of the new entry; see `VersionLog.compare_and_set`."""
        entry, actor = Entry(0 if expected is None else expected + 1, data), self._acting()
        offers = self._seen.offered[key, entry]
        offers.append(actor)
        won = self._inner.compare_and_set(key, expected, data)
        offers.remove(actor)
        if won:
            if expected is None:
                self._seen.ended.discard(key)
            offers.insert(0, actor)
            self._see(key, [entry], end=-1)
        return won

    def delete(self, key: str) -> bool:
        """Tell the observer; see `VersionLog.delete`."""
        self._seen.ending.add(key)
        deleted = self._inner.delete(key)
        self._end(key)
        self._seen.ending.discard(key)
        self._seen.ended.discard(key)
        return deleted

    def close(self) -> None:
        """Close the files of this process."""
        self._inner.close()

    def _see(self, key: str, entries: list[Entry], *, end: int | None) -> None:
        """Judge entries that were read.

        Args:
            key: the key.
            entries: what was read.
            end: the newest entry by an answer without entries, -1 if that says that the key does not exist;
                None: the newest entries were not asked for.
        """
        seen = self._seen
        if key in seen.ended:
            return
        if end == -1 and not entries and key in seen.ending:
            self._end(key)
            seen.ended.add(key)
            return
        last = seen.heads.get(key)
        for entry in entries:
            if last is None or entry.seqno > last.seqno:
                if entry.seqno != (0 if last is None else last.seqno + 1):
                    self._observer.wrong(f"{key} has {entry}, and the last that was seen is {last}")
                offers = seen.offered[key, entry]
                if not offers:
                    self._observer.wrong(f"{key} has {entry}, which was not written")
                seen.heads[key] = last = entry
                self._observer.entered(key, entry, offers.pop(0))
            elif entry.seqno == last.seqno and entry != last:
                self._observer.wrong(f"{key} had {last}, and has {entry}")
        newest = max([end, *(entry.seqno for entry in entries)]) if end is not None else None
        if newest is not None and last is not None and newest < last.seqno:
            self._observer.wrong(f"{key} had {last}, and the newest is {newest}")

    def _end(self, key: str) -> None:
        if self._seen.heads.pop(key, None) is not None:
            self._observer.ending(key)
