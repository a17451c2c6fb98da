"""Processes that work on one lake in an object store, through a proxy that makes faults; some are killed."""

import time
from dataclasses import replace

import pytest
from crew import Crew
from places import Place
from tellers_child import config_at
from test_bank_kills import check_at_rest, opened, transfer_under_kills

from tests.store.proxy import QUICK, Faults, Proxy
from tiers import rounds

CREW = [
    *(("append", name) for name in "ab"),
    *((kind, kind) for kind in ("maintain", "collect", "drop", "fork")),
]
AHEAD_S = (0.0, 3600.0)
"""The clocks of the children are an hour apart."""


def faults_at(rate):
    """Faults on a share of the requests; puts are held back for longer than the grace of the log."""
    return Faults.all_at(rate, QUICK, hold_s=3.0, slow_s=0.1, drip_s=0.1)


def places(server, proxy, bucket):
    """A lake as this process reaches it, and as children do: through the proxy, with clocks of their own."""
    place = Place(f"s3://{bucket}/lake", server.options())
    through = replace(place, options=server.options(proxy.endpoint))
    return place, [replace(through, ahead_s=ahead_s) for ahead_s in AHEAD_S]


@pytest.mark.full
@pytest.mark.grows
def test_processes_behind_faults_lose_and_double_nothing(versitygw, rng, record_property):
    bucket = versitygw.new_bucket()
    with Proxy(versitygw.port, faults=faults_at(0.1), seed=rng.getrandbits(32)) as proxy:
        place, through = places(versitygw, proxy, bucket)
        with Crew(place, CREW, through) as crew:
            for number in rounds(full=30, soak=1200, least=2):
                for child in crew.children:
                    child.await_ready()
                time.sleep(rng.random() * 3)
                victim = rng.choice(crew.children)
                crew.kill(victim)
                crew.succeed(victim)
                if number % 3 == 2:  # the server stops for a while
                    versitygw.kill()
                    time.sleep(rng.random())
                    versitygw.start()
                crew.check()
            for child in crew.children:
                child.await_ready()
            crew.kill_all()
            proxy.deliver()
            crew.check_at_rest()
    assert min(crew.acknowledged.values()) > 0
    record_property("figures", f"{crew.figures()}; {proxy.faults_made:,} faults: {dict(proxy.made)}")


@pytest.mark.full
@pytest.mark.grows
def test_transfers_behind_faults_keep_the_total_at_every_time(versitygw, rng, record_property):
    bucket = versitygw.new_bucket()
    with Proxy(versitygw.port, faults=faults_at(0.1), seed=rng.getrandbits(32)) as proxy:
        place, through = places(versitygw, proxy, bucket)
        turns = rounds(full=15, soak=600, least=4)
        told, looks, kills = transfer_under_kills(place, through, turns, rng)
        proxy.deliver()
        with opened(place) as lake:
            check_at_rest(lake, told, config_at(place))
    done = f"{kills} processes killed, {len(told):,} transfers acknowledged, {looks} looks at all accounts"
    record_property("figures", f"{done}; {proxy.faults_made:,} faults: {dict(proxy.made)}")
