"""A log that may lose its newest entries, as SQLite's recovery leaves one whose write-ahead log is damaged.

Owns the witness of each key, which outlives that. What contradicts it is damage, as in a log on disk.
"""

from tidelake.errors import CorruptionError
from tidelake.store import witness
from tidelake.store.memory import MemoryVersionLog
from tidelake.store.protocols import Entry
from tidelake.store.witness import Acknowledged


class LosingLog(MemoryVersionLog):
    """A `VersionLog` in memory with a witness a key.

    Attributes:
        noticed: whether somebody was told that a key is damaged.
    """

    def __init__(self) -> None:
        super().__init__()
        self.noticed = False
        self._witnesses: dict[str, Acknowledged] = {}

    def head(self, key: str) -> Entry | None:
        """The newest entry; see `VersionLog.head`."""
        self._believe(key)
        return super().head(key)

    def scan(self, key: str, start: int, limit: int | None = None) -> list[Entry]:
        """Entries from `start` on; see `VersionLog.scan`."""
        self._believe(key)
        return super().scan(key, start, limit)

    def compare_and_set(self, key: str, expected: int | None, data: bytes) -> bool:
        """Append iff the head is `expected`; see `VersionLog.compare_and_set`."""
        self._believe(key)
        won = super().compare_and_set(key, expected, data)
        if won:
            seqno, before = 0 if expected is None else expected + 1, self._witnesses.get(key)
            link = witness.link(before.link if before else b"", seqno, data)
            self._witnesses[key] = Acknowledged(seqno, link)
        return won

    def truncate(self, key: str, seqno: int) -> int:
        """Remove entries before `seqno`; see `VersionLog.truncate`."""
        self._believe(key)
        return super().truncate(key, seqno)

    def delete(self, key: str) -> bool:
        """Remove the key; see `VersionLog.delete`."""
        self._witnesses.pop(key, None)
        return super().delete(key)

    def lose(self, key: str, count: int) -> None:
        """Lose the newest entries of a key, but not all."""
        entries = self._entries[key]
        del entries[max(1, len(entries) - count) :]

    def seqno(self, key: str) -> int:
        """Of the newest entry that is there."""
        return self._entries[key][-1].seqno

    def _believe(self, key: str) -> None:
        head = super().head(key)
        if head is None:
            return
        reason = witness.contradiction(self._witnesses.get(key), head.seqno, None)
        if reason is not None:
            self.noticed = True
            raise CorruptionError(key, reason)
