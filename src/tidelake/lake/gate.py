"""What a closed lake answers: a version log that refuses once its lake was closed.

Every method of a lake or a collection begins at the log, so this one gate closes all of them, whatever
the store below makes of a close; must not know collections.

INVARIANT: no call reaches the log below after `shut`.
"""

from collections.abc import Iterator

from tidelake.errors import Closed
from tidelake.store.protocols import Entry, VersionLog


class GatedVersionLog:
    """A `VersionLog` for one handle on a lake. Other handles on the same stores have gates of their own."""

    def __init__(self, inner: VersionLog, url: str) -> None:
        self._inner = inner
        self._url = url
        self._shut = False

    def shut(self) -> None:
        """Refuse everything from now on; may be repeated. The log below stays open: others may use it."""
        self._shut = True

    def check(self) -> None:
        """Refuse if it is shut.

        Raises:
            Closed: it is.
        """
        if self._shut:
            raise Closed(f"the lake at {self._url} was closed: open it again with tidelake.open")

    def _open(self) -> VersionLog:
        self.check()
        return self._inner

    def head(self, key: str) -> Entry | None:
        """The newest entry; see `VersionLog.head`."""
        return self._open().head(key)

    def scan(self, key: str, start: int, limit: int | None = None) -> list[Entry]:
        """Entries from `start` on; see `VersionLog.scan`."""
        return self._open().scan(key, start, limit)

    def compare_and_set(self, key: str, expected: int | None, data: bytes) -> bool:
        """Append iff the head is `expected`; see `VersionLog.compare_and_set`."""
        return self._open().compare_and_set(key, expected, data)

    def truncate(self, key: str, seqno: int) -> int:
        """Remove entries before `seqno`; see `VersionLog.truncate`."""
        return self._open().truncate(key, seqno)

    def delete(self, key: str) -> bool:
        """Remove the key; see `VersionLog.delete`."""
        return self._open().delete(key)

    def keys(self, prefix: str = "") -> Iterator[str]:
        """Ascending keys; see `VersionLog.keys`."""
        return self._open().keys(prefix)

    def close(self) -> None:
        """Shut, and close the log below."""
        self.shut()
        self._inner.close()
