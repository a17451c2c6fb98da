"""Processes that work on one lake in an object store, through a proxy that makes faults; some are killed."""

import contextlib
import dataclasses
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import pytest
from crew import Crew, check_whole, consistent
from kills_child import FAR, SCHEMA, again, contents_of, table_of
from places import Place
from test_bank_kills import check_at_rest, opened, transfer_under_kills

from tests.store.proxy import QUICK, Fault, Faults, Proxy
from tests.store.servers import S3Server
from tiers import rounds, some

CREW = [
    *(("append", name) for name in "ab"),
    *((kind, kind) for kind in ("maintain", "collect", "drop", "fork")),
]
RATE = 0.1
FAULTS_LEAST = 10_000  # that a soak makes
GRACE_S = 2
AHEAD_S = (0.0, 3600.0)
"""The clocks of the children are an hour apart."""
# Puts are held back for longer than the grace of the log.
FAULTS = Faults.all_at(RATE, QUICK, hold_s=1.5 * GRACE_S, slow_s=0.1, drip_s=0.1)
LOG_FAULTS = Faults.all_at(
    RATE, (Fault.RESET_BEFORE, Fault.RESET_AFTER, Fault.LOST_REPLY, Fault.SLOW), slow_s=0.1
)


@dataclasses.dataclass
class Far:
    """A lake in an object store, behind proxies.

    Attributes:
        server: the object store.
        place: the lake as this process reaches it.
        through: as children do, in turn: through the proxies, with clocks of their own.
        proxies: what makes the faults.
    """

    server: S3Server
    place: Place
    through: list[Place]
    proxies: list[Proxy]

    @property
    def faults(self):
        """How many faults were made."""
        return sum(proxy.faults_made for proxy in self.proxies)

    def arrive(self):
        """Let everything arrive that was held back."""
        for proxy in self.proxies:
            proxy.deliver()

    def figures(self):
        """The faults, for the end of the test run."""
        made = sum((proxy.made for proxy in self.proxies), Counter())
        return f"{self.faults:,} faults: " + ", ".join(f"{n} {name}" for name, n in sorted(made.items()))


LOGS = ("log beside it", "log in PostgreSQL")


@pytest.fixture
def far(request, versitygw, rng, monkeypatch):
    monkeypatch.setattr("tidelake.store.url.GRACE_S", GRACE_S)
    url, seed = f"s3://{versitygw.new_bucket()}/lake", rng.getrandbits(32)
    with contextlib.ExitStack() as stack:
        proxy = stack.enter_context(Proxy(versitygw.port, faults=FAULTS, seed=seed))
        place = Place(url, options=versitygw.options())
        through = replace(place, options=versitygw.options(proxy.endpoint))
        proxies = [proxy]
        if request.param == LOGS[1]:
            postgres = request.getfixturevalue("postgres")
            database = postgres.new_database()
            log = stack.enter_context(Proxy(postgres.port, "postgres", faults=LOG_FAULTS, seed=seed))
            place = replace(place, log=postgres.url(database))
            through = replace(through, log=postgres.url(database, log.port))
            proxies.append(log)
        yield Far(versitygw, place, [replace(through, ahead_s=ahead_s) for ahead_s in AHEAD_S], proxies)


@pytest.mark.full
@pytest.mark.grows
@pytest.mark.parametrize("far", LOGS, indirect=True)
def test_processes_behind_faults_lose_and_double_nothing(far, rng, record_property):
    with Crew(far.place, CREW, far.through) as crew:
        for number in rounds(full=5, soak=600, least=3, soak_until=lambda: far.faults >= FAULTS_LEAST):
            for child in crew.children:
                child.await_ready()
            time.sleep(rng.random() * 3)
            victim = rng.choice(crew.children)
            crew.kill(victim)
            crew.succeed(victim)
            if number % 3 == 2:  # the server stops for a while
                far.server.kill()
                time.sleep(rng.random())
                far.server.start()
            if number % 3 == 1:
                crew.check()
        crew.await_work()
        crew.kill_all()
        far.arrive()
        crew.check_at_rest()
    assert min(crew.acknowledged.values()) > 0
    assert far.faults > 50
    record_property("figures", f"{crew.figures()}; {far.figures()}")


@pytest.mark.parametrize("far", some(LOGS, 2, full=2), indirect=True)
@pytest.mark.full
@pytest.mark.grows
def test_transfers_behind_faults_keep_the_total_at_every_time(far, rng, record_property):
    turns = rounds(full=6, soak=600, least=3)
    told, looks, kills = transfer_under_kills(far.place, far.through, turns, rng)
    far.arrive()
    with opened(far.place) as lake:
        check_at_rest(lake, told)
    done = f"{kills} processes killed, {len(told):,} transfers acknowledged, {looks} looks at all accounts"
    record_property("figures", f"{done}; {far.figures()}")


APPENDS = 4


def test_two_writers_behind_faults_lose_and_double_nothing(s3_server, rng):
    """The smallest of these runs, for the fast tier: two handles in this process, and no kills."""
    url = f"s3://{s3_server.new_bucket()}/lake"
    Place(url, options=s3_server.options()).open(FAR).close()
    faults = replace(FAULTS, slow_s=0.01, drip_s=0.01, hold_s=60)
    with Proxy(s3_server.port, faults=faults, seed=rng.getrandbits(32)) as proxy:
        through = Place(url, options=s3_server.options(proxy.endpoint))

        def write(name, ahead_s):
            with again(lambda: replace(through, ahead_s=ahead_s).open(FAR)) as lake:
                collection = again(lambda: lake.create("c", SCHEMA, key=["id"]))
                writer = again(lambda: collection.writer(name))
                for number in range(APPENDS):
                    again(partial(writer.append, table_of(name, number), sequence=number))

        with ThreadPoolExecutor(2) as threads:
            assert list(threads.map(write, "ab", AHEAD_S)) == [None, None]
        proxy.deliver()
        assert proxy.faults_made
    with Place(url, options=s3_server.options()).open(FAR) as lake:
        _, rows = consistent(lake.collection("c"))
        assert rows == Counter(row for name in "ab" for row in contents_of(name, APPENDS - 1))
        check_whole(lake)
