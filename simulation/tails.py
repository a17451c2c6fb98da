"""A log that may lose its newest entries, as SQLite may after it recovered from a damaged write-ahead log.

Owns the witness of each key, which survives the loss. A log that contradicts its witness is damaged; a log
on disk finds damage in the same way.
"""

from tidelake.errors import CorruptionError
from tidelake.store import witness
from tidelake.store.memory import MemoryVersionLog
from tidelake.store.protocols import Entry
from tidelake.store.witness import Acknowledged


class LosingLog(MemoryVersionLog):
    """A `VersionLog` in memory with a witness for each key.

    Attributes:
        noticed: whether a caller was told that a key is damaged.
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

    def newer(self, key: str, seqno: int, through: int | None = None) -> list[Entry] | None:
        """Entries after `seqno`; see `VersionLog.newer`."""
        self._believe(key)
        return super().newer(key, seqno, through)

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
        """Lose the newest `count` entries of a key, but keep at least one."""
        entries = self._entries[key]
        del entries[max(1, len(entries) - count) :]

    def seqno(self, key: str) -> int:
        """The seqno of the newest entry that is left."""
        return self._entries[key][-1].seqno

    def _believe(self, key: str) -> None:
        head = super().head(key)
        if head is None:
            return
        reason = witness.contradiction(self._witnesses.get(key), head.seqno, None)
        if reason is not None:
            self.noticed = True
            raise CorruptionError(key, reason)
