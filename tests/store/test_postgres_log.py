"""The version log in PostgreSQL: the conformance suite, races, faults of the server, and what is refused."""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import postgres_child
import pytest
import servers
import test_log_conformance
import test_store_model
from hypothesis.stateful import run_state_machine_as_test
from proxy import Fault, Faults, Proxy
from servers import PostgresServer
from store_kit import VERSION_LOGS
from test_postgres_address import QUOTED, SECRET, everywhere
from test_store_processes import in_fork

from tidelake.env import SystemClock
from tidelake.errors import (
    Closed,
    CorruptionError,
    FormatTooNew,
    NotALake,
    OutcomeUnknown,
    StoreUnavailable,
    TidelakeError,
)
from tidelake.store.postgres import connections
from tidelake.store.postgres.address import Address
from tidelake.store.postgres.log import PostgresVersionLog, create_log, open_log
from tidelake.store.protocols import Entry, VersionLog
from tiers import rounds

pytestmark = pytest.mark.full

CLOCK = SystemClock()
CHILD = [sys.executable, postgres_child.__file__]


def fresh() -> str:
    return uuid.uuid4().hex


class Made:
    """A log with a lake of its own, and what another process needs to open it."""

    def __init__(self, url: str) -> None:
        self.url, self.place = url, f"memory://{fresh()}"
        self.lake = create_log(Address(url), fresh(), self.place, CLOCK)
        self.opened: list[PostgresVersionLog] = []

    def log(self, url: str = "") -> PostgresVersionLog:
        self.opened.append(PostgresVersionLog(Address(url or self.url), self.lake, self.place, CLOCK))
        return self.opened[-1]

    def child(self, tag: str, count: int, url: str = "") -> "subprocess.Popen[str]":
        command = [*CHILD, url or self.url, self.lake, self.place, tag, str(count)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def execute(self, statement: str) -> None:
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(statement)


@pytest.fixture(scope="module")
def database(postgres: PostgresServer) -> str:
    """The address of one database for the tests of this module: each has a lake of its own there."""
    return postgres.url(postgres.new_database())


@pytest.fixture
def made(database: str) -> Iterator[Made]:
    found = Made(database)
    yield found
    for log in found.opened:
        log.close()


@pytest.fixture
def own(postgres: PostgresServer) -> Iterator[Made]:
    """A lake in a database that the test may ruin."""
    found = Made(postgres.url(postgres.new_database()))
    yield found
    for log in found.opened:
        log.close()


@pytest.fixture
def log(made: Made) -> VersionLog:
    return made.log()


@pytest.fixture
def make_log(database: str) -> Callable[[str], VersionLog]:
    lakes: dict[str, str] = {}

    def make(root: str) -> VersionLog:
        address = Address(database)
        if root not in lakes:
            lakes[root] = create_log(address, fresh(), root, CLOCK)
        return open_log(address, lakes[root], root, CLOCK)

    return make


class TestPostgresLog(test_log_conformance.TestLog):
    """The conformance suite; the fixture `log` of this module comes first."""


def test_what_was_written_is_there_after_closing(
    make_log: Callable[[str], VersionLog], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    test_log_conformance.test_what_was_written_is_there_after_closing(make_log, tmp_path, request)


@pytest.mark.grows
def test_the_log_is_a_dictionary_of_lists(
    make_log: Callable[[str], VersionLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(VERSION_LOGS, "postgres", make_log)
    run_state_machine_as_test(test_store_model.log_machine("postgres"), settings=test_store_model.SETTINGS)


def check_acknowledged(log: VersionLog, lines: list[str], count: int) -> None:
    """Each entry is there once, and where its writer was told; and nothing else."""
    entries = log.scan("race", 0)
    assert [entry.seqno for entry in entries] == list(range(len(entries)))
    assert sorted(lines) == sorted(f"{entry.seqno} {entry.data.decode()}" for entry in entries)
    assert len(set(lines)) == count


class TestRaces:
    @pytest.mark.promise(
        "Of several processes that commit to one key in PostgreSQL one gets each entry; killed "
        "servers, lost connections and lost replies to commits lose and double nothing",
        rule="`store/postgres/log.py`, `store/postgres/failures.py`",
        also=[
            "::test_a_killed_server_loses_and_doubles_nothing",
            "::test_lost_connections_and_answers_lose_and_double_nothing",
            "kills/test_postgres_kills.py::test_processes_and_servers_that_are_killed_lose_and_double_nothing",
        ],
    )
    def test_of_eight_processes_one_gets_each_seqno(self, made: Made) -> None:
        children = [made.child(f"p{number}", 200) for number in range(8)]
        lines = [line for child in children for line in child.communicate(timeout=120)[0].splitlines()]
        assert [child.returncode for child in children] == [0] * 8
        check_acknowledged(made.log(), lines, 1_600)

    def test_a_database_gets_its_tables_once(self, postgres: PostgresServer) -> None:
        url = postgres.url(postgres.new_database())
        places = [f"memory://{number % 4}" for number in range(16)]
        start = threading.Barrier(16)

        def make(place: str) -> str:
            start.wait()
            return create_log(Address(url), fresh(), place, CLOCK)

        with ThreadPoolExecutor(16) as threads:
            ids = dict(zip(range(16), threads.map(make, places), strict=True))
        assert len(set(ids.values())) == 4
        for number, lake in ids.items():
            open_log(Address(url), lake, places[number], CLOCK).close()

    def test_a_key_that_is_deleted_while_others_append_leaves_no_entry(self, own: Made) -> None:
        log, stop = own.log(), threading.Event()
        refused: list[BaseException] = []

        def write(number: int) -> None:
            try:
                while not stop.is_set():
                    postgres_child.append(log, "k", b"%d" % number)
            except BaseException as error:
                refused.append(error)

        threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(30):
            log.delete("k")
            time.sleep(0.01)
        stop.set()
        for thread in threads:
            thread.join()
        log.delete("k")
        assert refused == []
        left = log._connections.run(
            "count", lambda one: one.execute("SELECT count(*) FROM tidelake.entry").fetchone(), writes=False
        )
        assert left == (0,)


class TestFaults:
    def test_a_killed_server_loses_and_doubles_nothing(self) -> None:
        with servers.postgres() as server:
            made = Made(server.url())
            children = [made.child(f"p{number}", 400) for number in range(4)]
            for _ in range(4):
                time.sleep(0.5)
                server.kill()
                server.start()
            lines = [line for child in children for line in child.communicate(timeout=120)[0].splitlines()]
            assert [child.returncode for child in children] == [0] * 4
            log = made.log()
            check_acknowledged(log, lines, 1_600)
            log.close()

    @pytest.mark.grows
    def test_lost_connections_and_answers_lose_and_double_nothing(
        self, made: Made, postgres: PostgresServer
    ) -> None:
        faults = Faults.all_at(
            0.15, (Fault.RESET_BEFORE, Fault.RESET_AFTER, Fault.LOST_REPLY, Fault.SLOW), slow_s=0.01
        )
        lines, total = [], 0
        with Proxy(postgres.port, "postgres", faults=faults, seed=7) as proxy:
            url = made.url.replace(f":{postgres.port}/", f":{proxy.port}/")
            for number in rounds(fast=1, full=3, soak=300, least=2):
                children = [made.child(f"r{number}p{one}", 100, url) for one in range(4)]
                outputs = [child.communicate(timeout=300)[0] for child in children]
                assert [child.returncode for child in children] == [0] * 4
                lines += [line for output in outputs for line in output.splitlines()]
                total += 400
            lost = proxy.made[Fault.LOST_REPLY] + proxy.made[Fault.RESET_AFTER]
        assert lost > 20
        check_acknowledged(made.log(), lines, total)

    def test_a_lost_answer_to_a_commit_is_an_unknown_outcome(
        self, made: Made, postgres: PostgresServer
    ) -> None:
        with Proxy(postgres.port, "postgres") as proxy:
            log = made.log(made.url.replace(f":{postgres.port}/", f":{proxy.port}/"))
            assert log.compare_and_set("k", None, b"first")
            proxy.faults = Faults({Fault.LOST_REPLY: 1.0})
            with pytest.raises(OutcomeUnknown, match="write key 'k'"):
                log.compare_and_set("k", 0, b"second")
            with pytest.raises(StoreUnavailable, match="connect") as caught:
                log.head("k")
            assert caught.value.retryable
            proxy.faults = Faults()
            assert log.newer("k", 0) == [Entry(1, b"second")]

    @pytest.mark.promise(
        "A call to PostgreSQL comes back when the server says nothing, and soon after Ctrl-C",
        rule="`store/postgres/connections.py`",
        also=["::test_ctrl_c_ends_a_call"],
    )
    def test_calls_come_back_when_the_server_says_nothing(
        self, made: Made, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(connections, "SILENCE_S", 0.5)
        with Proxy(postgres.port, "postgres") as proxy:
            log = made.log(made.url.replace(f":{postgres.port}/", f":{proxy.port}/"))
            assert log.compare_and_set("k", None, b"first")
            proxy.faults = Faults({Fault.SILENCE: 1.0})
            began_s = time.monotonic()
            with pytest.raises(OutcomeUnknown, match="said nothing"):
                log.compare_and_set("k", 0, b"second")
            with pytest.raises(StoreUnavailable, match="said nothing"):
                log.head("k")
            with pytest.raises(StoreUnavailable, match="said nothing"):  # nothing was sent
                log.delete("k")
            assert time.monotonic() - began_s < 10
            proxy.faults = Faults()
            assert log.head("k") == Entry(1, b"second")

    @pytest.mark.usefixtures("interruptible")
    def test_ctrl_c_ends_a_call(self, made: Made, postgres: PostgresServer) -> None:
        with Proxy(postgres.port, "postgres") as proxy:
            log = made.log(made.url.replace(f":{postgres.port}/", f":{proxy.port}/"))
            assert log.head("k") is None
            proxy.faults = Faults({Fault.SILENCE: 1.0})
            timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
            timer.start()
            began_s = time.monotonic()
            with pytest.raises(KeyboardInterrupt):
                log.head("k")
            # Long before the call would end by itself.
            assert time.monotonic() - began_s < 10
            timer.join()
            proxy.faults = Faults()
            assert log.head("k") is None

    def test_a_server_that_restarted_is_found_again_at_once(self) -> None:
        with servers.postgres() as server:
            log = Made(server.url()).log()
            assert log.compare_and_set("k", None, b"0")
            server.stop()
            with pytest.raises(StoreUnavailable, match="cannot connect") as caught:
                log.head("k")
            assert caught.value.retryable
            with pytest.raises(StoreUnavailable):  # certainly not done: it was never sent
                log.compare_and_set("k", 0, b"1")
            server.start()
            assert log.compare_and_set("k", 0, b"1")
            server.kill()
            server.start()
            assert log.head("k") == Entry(1, b"1")
            log.close()

    @pytest.mark.parametrize("option", ["", "?target_session_attrs=any"])
    def test_a_standby_is_refused_until_it_is_promoted(self, option: str) -> None:
        import psycopg

        with servers.postgres() as server:
            log = Made(server.url()).log(server.url() + option)
            assert log.compare_and_set("k", None, b"0")
            server.stop()
            (server._folder / "data" / "standby.signal").touch()
            server.start()
            with pytest.raises(StoreUnavailable, match="standby") as caught:
                log.head("k")
            assert caught.value.retryable
            with psycopg.connect(server.url(), autocommit=True) as connection:
                assert connection.execute("SELECT pg_promote()").fetchone() == (True,)
            assert log.compare_and_set("k", 0, b"1")
            log.close()

    def test_a_statement_that_waits_for_too_long_is_given_up(
        self, own: Made, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import psycopg

        monkeypatch.setattr(connections, "STATEMENT_S", 1)
        log = own.log()
        assert log.compare_and_set("k", None, b"0")
        with psycopg.connect(own.url) as other:
            other.execute("SELECT * FROM tidelake.head FOR UPDATE")
            with pytest.raises(StoreUnavailable, match="statement timeout") as caught:
                log.compare_and_set("k", 0, b"1")
            assert caught.value.retryable
        assert log.compare_and_set("k", 0, b"1")


class TestAnotherServer:
    @pytest.fixture
    def calls(self) -> list[Callable[[VersionLog], object]]:
        return [
            lambda log: log.head("k"),
            lambda log: log.scan("k", 0),
            lambda log: log.newer("k", 0),
            lambda log: list(log.keys()),
            lambda log: log.truncate("k", 0),
            lambda log: log.delete("k"),
        ]

    @pytest.mark.promise(
        "Another database, one that was emptied, a copy of the objects, and a second lake in their "
        "place are refused before anything is swept; also by a lake that is open",
        rule="`store/postgres/schema.py`",
        also=[
            "::test_a_database_that_was_emptied_holds_no_dropped_keys",
            "store/test_postgres_lake.py::test_a_copied_prefix_is_refused",
            "store/test_postgres_lake.py::test_a_lake_whose_objects_are_gone_is_not_made_anew",
        ],
    )
    def test_a_fresh_server_in_the_place_of_ours_is_refused(
        self, postgres: PostgresServer, calls: list[Callable[[VersionLog], object]]
    ) -> None:
        with servers.postgres() as other, Proxy(postgres.port, "postgres") as proxy:
            name = postgres.new_database()
            made = Made(postgres.url(name))
            log = made.log(postgres.url(name, proxy.port))
            assert log.compare_and_set("k", None, b"0")
            import psycopg

            with psycopg.connect(other.url(), autocommit=True) as connection:
                connection.execute(f'CREATE DATABASE "{name}"')
            proxy.target = other.port
            log._connections.drop_unused()
            for call in [*calls, lambda log: log.compare_and_set("k", 0, b"1")]:
                with pytest.raises(NotALake, match="no log of the lake"):
                    call(log)
            # Another lake has made the tables there: still not ours.
            Made(other.url(name))
            with pytest.raises(NotALake, match="no log of the lake"):
                log.head("k")
            proxy.target = postgres.port
            assert log.head("k") == Entry(0, b"0")

    @pytest.mark.parametrize("loss", ["TRUNCATE tidelake.lake CASCADE", "DROP SCHEMA tidelake CASCADE"])
    def test_a_database_that_was_emptied_holds_no_dropped_keys(
        self, own: Made, loss: str, calls: list[Callable[[VersionLog], object]]
    ) -> None:
        log = own.log()
        assert log.compare_and_set("k", None, b"0")
        own.execute(loss)
        for call in calls:
            with pytest.raises(TidelakeError) as caught:
                call(log)
            assert isinstance(caught.value, NotALake | StoreUnavailable)
        with contextlib.suppress(TidelakeError):
            assert not log.compare_and_set("k", 0, b"1")
        with contextlib.suppress(TidelakeError):
            assert not log.compare_and_set("new", None, b"1")
        with pytest.raises(NotALake, match="no log of the lake"):
            own.log().check()

    def test_a_copy_elsewhere_is_refused(self, made: Made) -> None:
        for place in ("memory://elsewhere", made.place + "/below"):
            with pytest.raises(NotALake, match="open the original"):
                open_log(Address(made.url), made.lake, place, CLOCK)
        with pytest.raises(NotALake, match="no log of the lake"):
            open_log(Address(made.url), fresh(), made.place, CLOCK)

    def test_a_second_lake_in_the_same_place_is_refused(self, made: Made) -> None:
        # A process that died before the marker was written has left nothing else.
        assert create_log(Address(made.url), fresh(), made.place, CLOCK) == made.lake
        assert made.log().compare_and_set("k", None, b"0")
        with pytest.raises(NotALake, match="are gone"):
            create_log(Address(made.url), fresh(), made.place, CLOCK)

    def test_lakes_of_one_database_do_not_meet(self, database: str) -> None:
        one, two = Made(database).log(), Made(database).log()
        assert one.compare_and_set("k", None, b"one")
        assert two.head("k") is None
        assert two.compare_and_set("k", None, b"two")
        assert one.delete("k")
        assert two.scan("k", 0) == [Entry(0, b"two")]
        one.close()
        two.close()

    def test_tables_of_a_newer_version_are_refused(self, own: Made) -> None:
        own.execute("UPDATE tidelake.schema_version SET version = 2")
        with pytest.raises(FormatTooNew):
            own.log().check()
        with pytest.raises(FormatTooNew):
            create_log(Address(own.url), fresh(), "memory://new", CLOCK)


class TestDamage:
    def test_entries_that_are_missing_are_told_and_mended(self, own: Made) -> None:
        log = own.log()
        for key in ("a", "b"):
            test_log_conformance.fill(log, key, 10)
        own.execute("DELETE FROM tidelake.entry WHERE seqno IN (4, 8, 9) AND log = 1")
        for call in (
            lambda: log.head("a"),
            lambda: log.scan("a", 0),
            lambda: log.scan("a", 2, 3),
            lambda: log.newer("a", 3),
            lambda: log.newer("a", 2, 5),
            lambda: log.truncate("a", 3),
        ):
            with pytest.raises(CorruptionError):
                call()
        assert [entry.seqno for entry in log.scan("a", 5, 3)] == [5, 6, 7]
        assert log.mend("b", []) is None
        assert log.mend("no-such-key", []) is None
        # No state to begin from after the gap: the entries before it are what can be had.
        kept = log.mend("a", [])
        assert kept is not None
        assert (kept.first, kept.head, kept.acknowledged, kept.lost) == (0, 3, 9, (4, 9))
        assert [entry.seqno for entry in log.scan("a", 0)] == [0, 1, 2, 3]
        assert log.compare_and_set("a", 3, b"goes on")
        assert log.mend("a", []) is None
        assert len(log.scan("b", 0)) == 10

    def test_a_repair_keeps_the_newest_run_that_can_be_read(self, own: Made) -> None:
        log = own.log()
        test_log_conformance.fill(log, "a", 10)
        own.execute("DELETE FROM tidelake.entry WHERE seqno IN (4, 9)")
        kept = log.mend("a", [6])
        assert kept is not None
        assert (kept.first, kept.head, kept.lost) == (5, 8, (9, 9))
        assert [entry.seqno for entry in log.scan("a", 0)] == [5, 6, 7, 8]

    def test_a_log_without_any_entry_to_begin_from_is_left_as_it_is(self, own: Made) -> None:
        log = own.log()
        test_log_conformance.fill(log, "a", 4)
        own.execute("DELETE FROM tidelake.entry WHERE seqno = 0")
        own.execute("DELETE FROM tidelake.entry WHERE seqno = 2")
        with pytest.raises(CorruptionError, match="there are 1 to 1, 3 to 3"):
            log.mend("a", [])
        assert [entry.seqno for entry in log.scan("a", 3)] == [3]


def test_truncation_and_deletion_go_in_batches(own: Made) -> None:
    log = own.log()
    assert log.compare_and_set("k", None, b"0")
    own.execute("INSERT INTO tidelake.entry SELECT 1, n, 'x' FROM generate_series(1, 4500) AS n")
    own.execute("UPDATE tidelake.head SET seqno = 4500")
    assert log.truncate("k", 2_500) == 2_500
    assert log.newer("k", 100, 200) is None
    assert log.newer("k", 2_498) is None
    newer = log.newer("k", 2_499, 2_501)
    assert newer is not None
    assert [entry.seqno for entry in newer] == [2_500, 2_501]
    assert log.delete("k")
    assert log.newer("k", 2_499) is None
    assert log.compare_and_set("k", None, b"anew")
    assert log.scan("k", 0) == [Entry(0, b"anew")]


def test_a_key_is_gone_before_its_entries_and_a_killed_deletion_is_finished(
    own: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, other = own.log(), own.log()
    test_log_conformance.fill(log, "k", 10)
    seen = []

    def killed(*_: object) -> int:
        seen.append((other.head("k"), other.scan("k", 0), other.newer("k", 3)))
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("tidelake.store.postgres.log._deleted_before", killed)
        with pytest.raises(KeyboardInterrupt):
            log.delete("k")
    assert seen == [(None, [], None)]

    def count() -> object:
        statement = "SELECT (SELECT count(*) FROM tidelake.entry), (SELECT count(*) FROM tidelake.deleted)"
        return log._connections.run("count", lambda one: one.execute(statement).fetchone(), writes=False)

    assert count() == (10, 1)
    assert not log.delete("another")
    assert count() == (0, 0)


@pytest.mark.promise(
    "No connection to PostgreSQL is used by a fork and its parent", rule="`store/postgres/connections.py`"
)
def test_a_fork_opens_connections_of_its_own(made: Made) -> None:
    log = made.log()
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda number: postgres_child.append(log, "race", b"parent%d" % number), range(40)))
    done = threading.Event()

    def go_on() -> None:
        number = 0
        while not done.is_set():
            postgres_child.append(log, "race", b"goes on %d" % number)
            number += 1

    thread = threading.Thread(target=go_on)
    thread.start()

    def work(tag: int) -> None:
        for number in range(30):
            postgres_child.append(log, "race", b"child%d-%d" % (tag, number))
        log.close()

    pids = [in_fork(lambda tag=tag: work(tag)) for tag in range(4)]  # type: ignore[misc]
    statuses = [os.waitpid(pid, 0)[1] for pid in pids]
    done.set()
    thread.join()
    assert statuses == [0] * 4
    data = [entry.data for entry in log.scan("race", 0)]
    assert len(set(data)) == len(data)
    assert sum(one.startswith(b"child") for one in data) == 120


def test_a_closed_log_says_so(made: Made) -> None:
    log = made.log()
    assert log.head("k") is None
    log.close()
    with pytest.raises(Closed, match="open it again"):
        log.head("k")


def test_many_threads_share_few_connections(made: Made) -> None:
    log = made.log()
    with ThreadPoolExecutor(32) as threads:
        assert list(threads.map(lambda _: log.head("k"), range(500))) == [None] * 500
    assert len(log._connections._idle.get().unused) <= connections.CONNECTIONS_MAX


def test_commits_are_flushed_whatever_the_database_says(own: Made) -> None:
    name = own.url.rpartition("/")[2]
    own.execute(f'ALTER DATABASE "{name}" SET synchronous_commit = off')
    own.execute(f'ALTER DATABASE "{name}" SET default_transaction_isolation = "serializable"')
    settings = own.log()._connections.run(
        "look",
        lambda one: one.execute(
            "SELECT current_setting('synchronous_commit'), current_setting('transaction_isolation')"
        ).fetchone(),
        writes=False,
    )
    assert settings == ("on", "read committed")


def test_a_role_that_may_only_read_reads(own: Made, postgres: PostgresServer) -> None:
    assert own.log().compare_and_set("k", None, b"0")
    role = f"reader{fresh()}"
    own.execute(f"CREATE ROLE {role} LOGIN")
    own.execute(f"GRANT USAGE ON SCHEMA tidelake TO {role}")
    own.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA tidelake TO {role}")
    log = own.log(own.url.replace(f"//{postgres.user}@", f"//{role}@"))
    assert log.head("k") == Entry(0, b"0")
    for write in (
        lambda: log.compare_and_set("k", 0, b"1"),
        lambda: log.compare_and_set("l", None, b"1"),
        lambda: log.delete("k"),
    ):
        with pytest.raises(StoreUnavailable, match="permission denied") as caught:
            write()
        assert not caught.value.retryable


def test_a_role_with_the_rights_of_the_page_does_everything(own: Made, postgres: PostgresServer) -> None:
    role = f"writer{fresh()}"
    own.execute(f"CREATE ROLE {role} LOGIN")
    page = (Path(__file__).parents[2] / "docs" / "postgresql-log.md").read_text(encoding="utf-8")
    grants = [line for line in page.splitlines() if line.startswith("GRANT ")]
    assert len(grants) == 5
    for grant in grants:
        own.execute(grant.replace("TO writer;", f"TO {role}"))
    url = own.url.replace(f"//{postgres.user}@", f"//{role}@")
    log = own.log(url)
    entries = test_log_conformance.fill(log, "k", 5)
    assert log.truncate("k", 2) == 2
    assert log.scan("k", 0) == entries[2:]
    assert log.delete("k")
    test_log_conformance.fill(log, "k", 5)
    own.execute("DELETE FROM tidelake.entry WHERE seqno = 3")
    assert log.mend("k", []) is not None
    Made(url).log().check()


def test_the_clock_is_that_of_the_server(made: Made) -> None:
    before_ms = time.time_ns() // 1_000_000
    assert before_ms - 1 <= made.log().now_ms() <= time.time_ns() // 1_000_000 + 1


def test_no_error_of_a_server_shows_the_password(own: Made, postgres: PostgresServer) -> None:
    at = f"//{postgres.user}:{QUOTED}@"
    url = own.url.replace(f"//{postgres.user}@", at)
    log = own.log(url)
    assert log.compare_and_set("k", None, b"0")
    errors: list[BaseException] = []
    for wrong in (url + "x", url.replace(at, f"//nobody:{QUOTED}@")):
        with pytest.raises(StoreUnavailable, match="does not exist") as caught:
            own.log(wrong).head("k")
        assert not caught.value.retryable
        errors.append(caught.value)
    own.execute("DROP SCHEMA tidelake CASCADE")
    with pytest.raises(TidelakeError) as refused:
        log.head("k")
    for error in [*errors, refused.value]:
        assert SECRET not in everywhere(error)
        assert QUOTED not in everywhere(error)
    address = Address(url)
    assert SECRET not in f"{address} {address!r} {log!r} {vars(log)!r}"
    for thing in (address, log):
        with pytest.raises((TypeError, AttributeError)):
            pickle.dumps(thing)
