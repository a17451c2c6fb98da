"""Processes that work on a lake with its log in PostgreSQL; they, the server and connections are killed."""

import time

import pytest
from crew import Crew
from kills_child import CONFIG, WORKS

import tidelake
from tests.store import servers
from tests.store.proxy import Fault, Faults, Proxy
from tidelake.store.access import LOG_VARIABLE
from tiers import rounds

CREW = [("append", "a"), ("append", "b"), *((kind, kind) for kind in WORKS if kind != "append")]
LOST = (Fault.RESET_BEFORE, Fault.RESET_AFTER, Fault.LOST_REPLY, Fault.SLOW)


@pytest.mark.full
@pytest.mark.grows
def test_processes_and_servers_that_are_killed_lose_and_double_nothing(
    tmp_path, rng, record_property, monkeypatch
):
    faults = Faults.all_at(0.02, LOST, slow_s=0.05)
    with (
        servers.postgres() as server,
        Proxy(server.port, "postgres", faults=faults, seed=rng.random()) as proxy,
    ):
        through = server.url(port=proxy.port)
        monkeypatch.setenv(LOG_VARIABLE, through)
        tidelake.open(tmp_path / "lake", config=CONFIG, log=server.url()).close()
        monkeypatch.setattr("tidelake.store.access._known", {})
        with Crew(tmp_path / "lake", CREW) as crew:
            for number in rounds(full=15, soak=1500, least=8, until=lambda: proxy.faults_made > 20):
                victim = rng.choice(crew.children)
                victim.await_ready()
                time.sleep(rng.random() * 0.2)
                crew.kill(victim)
                crew.succeed(victim)
                if number % 4 == 3:
                    server.kill()
                    time.sleep(rng.random() * 0.2)
                    server.start()
            crew.await_work()
            crew.kill_all()
            proxy.faults = Faults()
            crew.check_at_rest()
        assert min(crew.acknowledged.values()) > 0
        record_property(
            "figures", f"{crew.figures()}; {proxy.faults_made} faults of the connection to the log"
        )
