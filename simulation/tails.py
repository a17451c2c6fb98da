"""A log that may lose its newest entries, as a file may that was damaged.

Owns how far each key was acknowledged, which survives the loss. A log that ends before is damaged; a log on
disk finds damage in the same way.
"""

from tidelake.errors import CorruptionError
from tidelake.store.memory import MemoryVersionLog
from tidelake.store.protocols import Entry


class LosingLog(MemoryVersionLog):
    """A `VersionLog` in memory that knows how far each key was acknowledged.

    Attributes:
        noticed: whether a caller was told that a key is damaged.
    """

    def __init__(self) -> None:
        super().__init__()
        self.noticed = False
        self._acknowledged: dict[str, int] = {}

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
            self._acknowledged[key] = 0 if expected is None else expected + 1
        return won

    def truncate(self, key: str, seqno: int) -> int:
        """Remove entries before `seqno`; see `VersionLog.truncate`."""
        self._believe(key)
        return super().truncate(key, seqno)

    def delete(self, key: str) -> bool:
        """Remove the key; see `VersionLog.delete`."""
        self._acknowledged.pop(key, None)
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
        acknowledged = self._acknowledged.get(key, head.seqno)
        if head.seqno < acknowledged:
            self.noticed = True
            raise CorruptionError(key, f"it ends at entry {head.seqno}, but {acknowledged} was acknowledged")
