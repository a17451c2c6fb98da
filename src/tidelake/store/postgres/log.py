"""A version log in a PostgreSQL database.

Owns the statements that read and write entries. Must not retry anything, nor know what the entries mean.

INVARIANT: the newest entry of a key is the one that its `head` row tells, and both change in one statement.
Two writers of one key wait for each other at this row. The second one then finds another seqno there and
writes nothing: PostgreSQL checks the condition of an `UPDATE` again after it has waited (READ COMMITTED).

SUBTLE: without the `head` row, `INSERT ... WHERE NOT EXISTS (a newer entry)` loses commits at READ COMMITTED,
since neither of two writers sees the row of the other. SERIALIZABLE would refuse one of them, at the price of
retries. A commit is one statement and not a transaction of several, so that no writer that dies or is far
away holds the row.

SUBTLE: every read begins with the row of the lake. In a database that was emptied or restored, a key is
missing that was never dropped: the missing row of the lake tells the two apart.
"""

from collections.abc import Collection, Iterator
from itertools import pairwise
from typing import Any

from psycopg.types.numeric import Int8

from tidelake.env import Clock
from tidelake.errors import CorruptionError, InternalError, NotALake
from tidelake.store.names import check_expected, check_limit, check_name, check_prefix, check_truncation
from tidelake.store.postgres import schema
from tidelake.store.postgres.address import Address
from tidelake.store.postgres.connections import Connection, Connections
from tidelake.store.protocols import Entry, Ghost, MendedLog

SEQNO_MAX = 2**63 - 1
DELETES_MAX = 1_000
"""Most entries that one statement deletes."""

_HEAD = """
SELECT h.log, h.seqno, e.data FROM tidelake.lake AS l
LEFT JOIN tidelake.head AS h ON h.lake = l.id AND h.key = %(key)s
LEFT JOIN tidelake.entry AS e ON e.log = h.log AND e.seqno = h.seqno
WHERE l.id = %(lake)s AND l.place = %(place)s
"""
_SCAN = """
SELECT h.seqno, e.seqno, e.data FROM tidelake.lake AS l
LEFT JOIN tidelake.head AS h ON h.lake = l.id AND h.key = %(key)s
LEFT JOIN LATERAL (
    SELECT seqno, data FROM tidelake.entry
    WHERE log = h.log AND seqno BETWEEN %(start)s AND LEAST(h.seqno, %(through)s)
    ORDER BY seqno LIMIT %(limit)s
) AS e ON true
WHERE l.id = %(lake)s AND l.place = %(place)s ORDER BY e.seqno
"""
_CREATE = """
WITH made AS (
    INSERT INTO tidelake.head (lake, key, seqno)
    SELECT id, %(key)s, 0 FROM tidelake.lake WHERE id = %(lake)s AND place = %(place)s
    ON CONFLICT DO NOTHING RETURNING log, seqno
)
INSERT INTO tidelake.entry (log, seqno, data) SELECT log, seqno, %(data)s FROM made RETURNING seqno
"""
_APPEND = """
WITH won AS (
    UPDATE tidelake.head SET seqno = seqno + 1
    WHERE lake = %(lake)s AND key = %(key)s AND seqno = %(expected)s RETURNING log, seqno
)
INSERT INTO tidelake.entry (log, seqno, data) SELECT log, seqno, %(data)s FROM won RETURNING seqno
"""
_TRUNCATE = """
DELETE FROM tidelake.entry WHERE log = %(log)s AND seqno IN (
    SELECT seqno FROM tidelake.entry WHERE log = %(log)s AND seqno < %(seqno)s ORDER BY seqno LIMIT %(limit)s
)
"""
_KEYS = """
SELECT h.key FROM tidelake.lake AS l
LEFT JOIN tidelake.head AS h ON h.lake = l.id AND starts_with(h.key, %(prefix)s)
WHERE l.id = %(lake)s AND l.place = %(place)s ORDER BY h.key
"""
_DELETE = """
WITH gone AS (DELETE FROM tidelake.head WHERE lake = %(lake)s AND key = %(key)s RETURNING log)
INSERT INTO tidelake.deleted (log) SELECT log FROM gone
"""
_FORGET = """
DELETE FROM tidelake.deleted
WHERE log = %(log)s AND NOT EXISTS (SELECT FROM tidelake.entry WHERE log = %(log)s)
"""
_LOCK = "SELECT log, seqno FROM tidelake.head WHERE lake = %(lake)s AND key = %(key)s FOR UPDATE"
_SEQNOS = "SELECT seqno FROM tidelake.entry WHERE log = %s ORDER BY seqno"
_SET_ASIDE = """
WITH gone AS (
    DELETE FROM tidelake.entry
    WHERE log = %(log)s AND seqno NOT BETWEEN %(first)s AND %(last)s RETURNING *
)
INSERT INTO tidelake.damaged (log, seqno, data, lake, key)
SELECT log, seqno, data, %(lake)s, %(key)s FROM gone
"""
_SET_HEAD = "UPDATE tidelake.head SET seqno = %(last)s WHERE lake = %(lake)s AND key = %(key)s"
_NOW = "SELECT extract(epoch FROM clock_timestamp()) * 1000"


class PostgresVersionLog:
    """A `VersionLog` in the schema `tidelake` of a PostgreSQL database.

    Args:
        address: the address of the database.
        lake: id of the lake; several lakes may share a database.
        place: url of the objects of the lake, which its row in the database must name.
        clock: measures how long the server says nothing.
    """

    def __init__(self, address: Address, lake: str, place: str, clock: Clock) -> None:
        self._lake, self._place = lake, place
        self._connections = Connections(
            address, clock, lambda connection: schema.check_lake(connection, address, lake, place)
        )

    def check(self) -> None:
        """Check that the database holds the log of this lake; at most one connection and two statements."""
        self._connections.run("open the log", lambda _connection: None, writes=False)

    def now_ms(self) -> int:
        """The clock of the server, in milliseconds since 1970 UTC. One statement."""
        row = self._connections.run("read the clock", lambda one: one.execute(_NOW).fetchone(), writes=False)
        if row is None:
            raise InternalError("the database has not told its time")
        return int(row[0])

    def head(self, key: str) -> Entry | None:
        """The newest entry; see `VersionLog.head`. One statement."""
        check_name(key)
        return self._connections.run(f"read key {key!r}", lambda one: self._head(one, key)[1], writes=False)

    def scan(self, key: str, start: int, limit: int | None = None) -> list[Entry]:
        """Entries from `start` on; see `VersionLog.scan`. One statement."""
        check_limit(check_name(key), limit)
        return self._scanned(key, start, limit=limit)[1]

    def newer(self, key: str, seqno: int, through: int | None = None) -> list[Entry] | None:
        """Entries after `seqno`; see `VersionLog.newer`. One statement."""
        head, entries = self._scanned(check_name(key), seqno + 1, through=through)
        if head is None or head < seqno:
            return None
        wanted = seqno < (head if through is None else min(head, through))
        return entries if not wanted or (entries and entries[0].seqno == seqno + 1) else None

    def compare_and_set(self, key: str, expected: int | None, data: bytes) -> bool:
        """Append iff the head is `expected`; see `VersionLog.compare_and_set`. One statement."""
        check_expected(check_name(key), expected)
        if expected is not None and expected >= SEQNO_MAX:
            return False
        values = {**self._of(key), "data": data, "expected": Int8(expected or 0)}
        statement = _CREATE if expected is None else _APPEND
        added = self._connections.run(
            f"write key {key!r}", lambda one: one.execute(statement, values).rowcount, writes=True
        )
        return added == 1

    def truncate(self, key: str, seqno: int) -> int:
        """Remove entries before `seqno`; see `VersionLog.truncate`. A statement for 1,000 entries."""
        check_name(key)

        def work(connection: Connection) -> int:
            log, newest = self._head(connection, key)
            check_truncation(key, None if newest is None else newest.seqno, seqno)
            return _deleted_before(connection, log, seqno)

        return self._connections.run(f"truncate key {key!r}", work, writes=True)

    def delete(self, key: str) -> bool:
        """Delete the key; see `VersionLog.delete`. Three statements, and one for 1,000 entries.

        SUBTLE: the key goes first, and its entries follow. A reader must not find a key without the entries
        that it begins from. Entries that a killed process has left are deleted by the next call, of any key.
        """
        check_name(key)

        def work(connection: Connection) -> bool:
            self._head(connection, key, is_checked=False)
            is_there = connection.execute(_DELETE, self._of(key)).rowcount == 1
            for (log,) in connection.execute("SELECT log FROM tidelake.deleted").fetchall():
                _deleted_before(connection, log, SEQNO_MAX)
                connection.execute(_FORGET, {"log": Int8(log)})
            return is_there

        return self._connections.run(f"delete key {key!r}", work, writes=True)

    def mend(self, key: str, starts: Collection[int]) -> MendedLog | None:
        """Keep the newest unbroken run of entries; see `VersionLog.mend`. One transaction.

        The server is trusted to return the bytes that it was given, so damage is entries that are missing.
        Entries outside the run are moved into `tidelake.damaged`.
        """
        check_name(key)

        def work(connection: Connection) -> MendedLog | None:
            with connection.transaction():
                return self._mended(connection, key, starts)

        return self._connections.run(f"mend key {key!r}", work, writes=True)

    def ghosts(self) -> list[Ghost]:
        """None: no write lands late; see `VersionLog.ghosts`."""
        return []

    def keys(self, prefix: str = "") -> Iterator[str]:
        """List keys in ascending order; see `VersionLog.keys`. One statement."""
        values = {**self._of(""), "prefix": check_prefix(prefix)}
        rows = self._connections.run(
            "list keys", lambda one: one.execute(_KEYS, values).fetchall(), writes=False
        )
        if not rows:
            raise self._lost()
        return iter([key for (key,) in rows if key is not None])

    def close(self) -> None:
        """Close the connections of this process."""
        self._connections.close()

    def _of(self, key: str) -> dict[str, Any]:
        return {"lake": self._lake, "place": self._place, "key": key}

    def _head(
        self, connection: Connection, key: str, *, is_checked: bool = True
    ) -> tuple[int | None, Entry | None]:
        """Number of the log of a key, and its newest entry; None for both if there is no such key."""
        row: Any = connection.execute(_HEAD, self._of(key), binary=True).fetchone()
        if row is None:
            raise self._lost()
        log, seqno, data = row
        if log is None:
            return None, None
        if data is None and is_checked:
            raise CorruptionError(key, f"entry {seqno} of its log is missing")
        return log, None if data is None else Entry(seqno, data)

    def _scanned(
        self, key: str, start: int, *, limit: int | None = None, through: int | None = None
    ) -> tuple[int | None, list[Entry]]:
        """Seqno of the newest entry, None if there is no such key; and its entries from `start` on."""
        start, through = max(start, 0), SEQNO_MAX if through is None else through
        values = {
            **self._of(key),
            "start": Int8(min(start, SEQNO_MAX)),
            "through": Int8(min(through, SEQNO_MAX)),
            "limit": None if limit is None else Int8(min(limit, SEQNO_MAX)),
        }
        rows = self._connections.run(
            f"read key {key!r}", lambda one: one.execute(_SCAN, values, binary=True).fetchall(), writes=False
        )
        if not rows:
            raise self._lost()
        head: int | None = rows[0][0]
        entries = [Entry(seqno, data) for _, seqno, data in rows if seqno is not None]
        if head is not None:
            # Without any entry up to `through`, these entries were truncated; the newest one never is.
            is_all = len(entries) < limit if limit is not None else bool(entries) or through >= head
            _check_whole(key, start - 1, min(head, through) if is_all else None, entries)
        return head, entries

    def _mended(self, connection: Connection, key: str, starts: Collection[int]) -> MendedLog | None:
        row: Any = connection.execute(_LOCK, self._of(key)).fetchone()
        if row is None:
            return None
        log, head = row
        found = connection.execute(_SEQNOS, (Int8(log),)).fetchall()
        seqnos = [seqno for (seqno,) in found]
        runs = _runs(seqnos)
        if len(runs) == 1 and seqnos[-1] == head:
            return None
        usable = [run for run in runs if run[0] == 0 or any(run[0] - 1 <= at <= run[1] for at in starts)]
        if not usable:
            raise CorruptionError(key, f"no reader can begin in its log: {_present(seqnos)}")
        first, last = usable[-1]
        values = {**self._of(key), "log": Int8(log), "first": Int8(first), "last": Int8(last)}
        connection.execute(_SET_ASIDE, values)
        connection.execute(_SET_HEAD, values)
        reason = f"its log lacks entries before {head}, its newest; {_present(seqnos)}"
        return MendedLog(reason, first, last, head, f"table tidelake.damaged, log={log}")

    def _lost(self) -> NotALake:
        return schema.missing(self._connections.address, self._lake, self._place)


def _check_whole(key: str, before: int, last: int | None, entries: list[Entry]) -> None:
    """Check that no entry is missing between those after `before`, nor up to `last` if that is given."""
    seqnos = [entry.seqno for entry in entries]
    found = seqnos[-1] if seqnos else before
    if any(after != seqno + 1 for seqno, after in pairwise(seqnos)) or (last is not None and found < last):
        raise CorruptionError(key, f"entries of its log are missing; {_present(seqnos)}")


def _runs(seqnos: list[int]) -> list[tuple[int, int]]:
    """First and last seqno of each unbroken run."""
    breaks = [index for index, (before, after) in enumerate(pairwise(seqnos), 1) if after != before + 1]
    edges = [0, *breaks, len(seqnos)]
    return [(seqnos[start], seqnos[end - 1]) for start, end in pairwise(edges) if end > start]


def _present(seqnos: list[int]) -> str:
    runs = ", ".join(f"{first} to {last}" for first, last in _runs(seqnos))
    return f"there are {runs}" if runs else "there is none"


def _deleted_before(connection: Connection, log: int | None, seqno: int) -> int:
    """Delete the entries of a log before `seqno`, the oldest first, and return how many."""
    total = 0
    while True:
        values = {"log": log, "seqno": Int8(max(seqno, 0)), "limit": Int8(DELETES_MAX)}
        deleted = connection.execute(_TRUNCATE, values).rowcount
        total += deleted
        if deleted < DELETES_MAX:
            return total


def open_log(address: Address, lake: str, place: str, clock: Clock) -> PostgresVersionLog:
    """The log of a lake whose objects are at `place`; see `PostgresVersionLog.check` for its errors."""
    log = PostgresVersionLog(address, lake, place, clock)
    log.check()
    return log


def create_log(address: Address, fresh: str, place: str, clock: Clock) -> str:
    """Make the log of a lake, with a fresh id; return the id of the lake. See `schema.create_lake`."""
    connections = Connections(address, clock, lambda _connection: None)
    try:
        return connections.run(
            "make a log", lambda one: schema.create_lake(one, address, fresh, place), writes=True
        )
    finally:
        connections.close()
