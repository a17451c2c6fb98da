"""The connections of this process to one database: a bounded number, and none across a fork.

Owns opening, checking, lending and closing them, and how long to wait for an answer. Must not know the
tables.

INVARIANT: a connection is lent to one thread at a time. After any error it is closed, so that none is lent
that is in a transaction, or in the middle of an answer.

SUBTLE: the driver itself waits for an answer without end, and after a Ctrl-C it waits for the server to
cancel. Behind a proxy whose server is gone, neither comes back. So each wait here ends after a silence, and a
Ctrl-C closes the connection at once. The server may still carry out the statement, as with every lost answer.
"""

import select
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import psycopg
from psycopg import waiting
from psycopg.abc import PQGen
from psycopg.rows import TupleRow

from tidelake.env import Clock
from tidelake.errors import Closed, StoreUnavailable
from tidelake.process import PerProcess
from tidelake.store.postgres.address import SILENCE_S, STATEMENT_S, Address
from tidelake.store.postgres.failures import failed, not_connected

CONNECTIONS_MAX = 8
IDLE_S_MAX = 60.0

T = TypeVar("T")

_LOOK_S = 0.1  # how often a wait looks whether it was interrupted

# What a session must not take from the settings of its role or database. A commit that is acknowledged must
# be on disk, so `off` becomes `on`; the other values are the choice of who runs the server.
_SETTINGS = """
SELECT pg_is_in_recovery(), getdatabaseencoding() = 'SQL_ASCII',
       set_config('statement_timeout', %s, false),
       set_config('idle_in_transaction_session_timeout', %s, false),
       set_config('default_transaction_isolation', 'read committed', false),
       set_config('synchronous_commit',
                  CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on'
                  ELSE current_setting('synchronous_commit') END, false)
"""


class Connection(psycopg.Connection[TupleRow]):
    """A connection whose waits end: see the head of this module."""

    clock: Clock

    def wait(self, gen: PQGen[T], interval: float = _LOOK_S, timeout: float | None = None) -> T:
        """Wait for an answer of the server. Closes the connection if it is interrupted or takes too long."""
        try:
            return waiting.wait(_watched(gen, self.clock), self.pgconn.socket, interval, timeout)
        except BaseException as error:
            if isinstance(error, SilentServer) or not isinstance(error, psycopg.Error):
                self.pgconn.finish()
            raise


class SilentServer(psycopg.OperationalError):
    """The server has said nothing for too long."""


def _watched(gen: PQGen[T], clock: Clock) -> PQGen[T]:
    """Pass a generator of the driver through, and end it if nothing comes for `SILENCE_S`."""
    heard_s = clock.monotonic_s()
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            now_s = clock.monotonic_s()
            if ready:
                heard_s = now_s
            elif now_s - heard_s > SILENCE_S:
                raise SilentServer(f"the server has said nothing for {SILENCE_S:g} s")
            wanted = gen.send(ready)
    except StopIteration as done:
        result: T = done.value
        return result


class _Idle:
    """The connections of one process that are not in use, and how many it may have."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.permits = threading.BoundedSemaphore(CONNECTIONS_MAX)
        self.unused: list[tuple[Connection, float]] = []


class Connections:
    """Lends connections. Thread-safe; each process opens its own."""

    def __init__(self, address: Address, clock: Clock, check: Callable[[Connection], None]) -> None:
        """Open nothing yet."""
        self.address = address
        self._clock = clock
        self._check = check
        self._idle = PerProcess(_Idle)
        self._closed = False

    def run(self, action: str, work: Callable[[Connection], T], *, writes: bool) -> T:
        """Do one statement or transaction on a connection, and translate the errors of the driver."""
        idle = self._idle.get()
        with idle.permits:
            connection = self._unused(idle) or self._opened()
            try:
                result = work(connection)
            except psycopg.Error as error:
                _discard(connection)
                problem = failed(self.address, action, error, writes=writes)
            except BaseException:
                _discard(connection)
                raise
            else:
                with idle.lock:
                    idle.unused.append((connection, self._clock.monotonic_s()))
                if self._closed:
                    self.drop_unused()
                return result
        # Raised here, and not above, so that the error of the driver is not its context: it may hold secrets.
        self.drop_unused()
        raise problem

    def drop_unused(self) -> None:
        """Close the connections of this process that are not in use."""
        idle = self._idle.get()
        with idle.lock:
            unused, idle.unused = idle.unused, []
        for connection, _ in unused:
            _discard(connection)

    def close(self) -> None:
        """Close all; those in use are closed when they come back. May be repeated."""
        self._closed = True
        self.drop_unused()

    def _unused(self, idle: _Idle) -> Connection | None:
        while True:
            if self._closed:
                raise Closed("the version log was closed; open it again")
            with idle.lock:
                if not idle.unused:
                    return None
                connection, since_s = idle.unused.pop()
            if self._clock.monotonic_s() - since_s < IDLE_S_MAX and _is_quiet(connection):
                return connection
            _discard(connection)

    def _opened(self) -> Connection:
        problem: Exception | None = None
        try:
            connection = Connection.connect(**self.address.parameters, autocommit=True)
        except psycopg.Error as error:
            problem = not_connected(self.address, error)
        if problem is not None:
            raise problem
        connection.clock = self._clock
        try:
            self._prepare(connection)
            self._check(connection)
        except psycopg.Error as error:
            _discard(connection)
            problem = failed(self.address, "begin to work", error, writes=False)
        except BaseException:
            _discard(connection)
            raise
        if problem is not None:
            raise problem
        return connection

    def _prepare(self, connection: Connection) -> None:
        timeout = f"{STATEMENT_S}s"
        found: Any = connection.execute(_SETTINGS, (timeout, timeout)).fetchone()
        if found[0]:
            raise StoreUnavailable(
                f"the server at {self.address} is a standby, which may lack the newest commits: give the "
                "address of the primary, or wait until the standby is promoted"
            )
        if found[1]:
            raise StoreUnavailable(
                f"the database at {self.address} has the encoding SQL_ASCII, with which it does not check "
                "texts: make one with CREATE DATABASE … TEMPLATE template0 ENCODING 'UTF8'",
                retryable=False,
            )


def _is_quiet(connection: Connection) -> bool:
    """Whether nothing has come since the last answer; a server that ended a connection has said so."""
    try:
        poll = select.poll()
        poll.register(connection.pgconn.socket, select.POLLIN)
        return not poll.poll(0)
    except (psycopg.Error, OSError):
        return False


def _discard(connection: Connection) -> None:
    with suppress(psycopg.Error):
        connection.close()
