"""Transfers between collections by processes that are killed: the total is the same at every time."""

import itertools
import subprocess
import sys
import threading
import time
from contextlib import suppress

import pytest
import tellers_child
from places import Place
from tellers_child import ACCOUNTS, SCHEMA, config_at, row

from tidelake.errors import LeaseExpired
from tied_process import tied
from tiers import rounds

WORKS = ["transfer", "transfer", "transfer", "tend"]
OPENING = 1_000
PATIENCE_S = 200.0


class Teller:
    """One process, and the transfers that it told of."""

    def __init__(self, place, kind, name):
        self.kind, self.name = kind, name
        self.told = []
        self._process = subprocess.Popen(
            tied(sys.executable, tellers_child.__file__, place.text, kind, name),
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        for line in self._process.stdout:
            if line.endswith("\n"):  # the kill may have cut the last one short
                self.told.append(line.split())

    def await_ready(self):
        deadline_s = time.monotonic() + PATIENCE_S
        while not self.told:
            assert self._process.poll() is None and time.monotonic() < deadline_s, self.kind
            time.sleep(0.005)

    def kill(self):
        self._process.kill()
        self._reader.join()
        self._process.stdout.close()
        assert self._process.wait() == -9, f"{self.kind} ended by itself: {self.told[-3:]}"

    def transfers(self):
        return [tuple(line[1:]) for line in list(self.told) if line[0] == "in"]


def amounts(lake, name, at):
    """What an account holds at a time: the amount of each transfer."""
    table = lake.collection(name).snapshot(at).read_all()
    assert set(table["_diff"].to_pylist()) <= {1}
    return dict(zip(table["who"].to_pylist(), table["amount"].to_pylist(), strict=True))


def last_time(lake):
    return min(lake.collection(name).upper.elements[0] for name in ACCOUNTS) - 1


def check_at(lake, at):
    """All accounts together hold at a time what they began with; returns what each holds."""
    found = {name: amounts(lake, name, at) for name in ACCOUNTS}
    assert sum(sum(held.values()) for held in found.values()) == OPENING * len(ACCOUNTS), at
    whole = {}
    for held in found.values():
        for who in held:
            whole[who] = whole.get(who, 0) + 1
    whole.pop("opening")
    assert set(whole.values()) <= {2}, at
    return found


def opened(place):
    return place.open(config_at(place))


def transfer_under_kills(place, places, turns, rng):
    """Transfers by processes that are killed, one in each turn.

    Args:
        place: where the lake is made, and looked at by this process.
        places: how the processes reach it, in turn.
        turns: as many as there are kills.
        rng: says which process is killed, and when.

    Returns:
        Transfers that were acknowledged, looks at all accounts, and kills.
    """
    with opened(place) as lake:
        for name in ACCOUNTS:
            lake.create(name, SCHEMA, key=["who"])
        lake.write({name: row("opening", OPENING) for name in ACCOUNTS})
    places = itertools.cycle(places)
    tellers = [Teller(next(places), kind, f"{kind}{n}") for n, kind in enumerate(WORKS)]
    told, looks, kills = [], 0, 0
    try:
        with opened(place) as lake:
            for _ in turns:
                victim = rng.choice(tellers)
                victim.await_ready()
                time.sleep(rng.random() * 0.3)
                # A part may be collected under a read that has no hold.
                with suppress(LeaseExpired):
                    check_at(lake, rng.randint(0, last_time(lake)))
                    check_at(lake, last_time(lake))
                    looks += 2
                tellers.remove(victim)
                victim.kill()
                told += victim.transfers()
                kills += 1
                tellers.append(Teller(next(places), victim.kind, victim.name))
            deadline_s = time.monotonic() + PATIENCE_S
            while not (told or any(teller.transfers() for teller in tellers)):
                assert time.monotonic() < deadline_s
                time.sleep(0.005)
            while not looks:
                assert time.monotonic() < deadline_s
                with suppress(LeaseExpired):
                    check_at(lake, last_time(lake))
                    looks += 1
    finally:
        for teller in tellers:
            teller.kill()
            told += teller.transfers()
    assert told and looks
    return told, looks, kills


@pytest.mark.full
@pytest.mark.grows
def test_transfers_under_kills_keep_the_total_at_every_time(tmp_path, rng, record_property):
    place = Place.of(tmp_path / "lake")
    told, looks, kills = transfer_under_kills(place, [place], rounds(full=12, soak=1200, least=4), rng)
    with opened(place) as lake:
        check_at_rest(lake, told)
    done = f"{kills} processes killed, {len(told):,} transfers acknowledged"
    record_property("figures", f"{done}, {looks} looks at all accounts")


def check_at_rest(lake, told):
    """Acknowledged writes are in once; maintenance leaves nothing that awaits a decision."""
    last = last_time(lake)
    found = check_at(lake, last)
    for who, amount, source, target, at in told:
        assert int(at) <= last
        assert (found[source][who], found[target][who]) == (-int(amount), int(amount)), who
    for at in range(0, last, max(1, last // 20)):
        check_at(lake, at)
    # A leaked upload goes once a collection of garbage has noted it and it has grown old since.
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        lake.collect()
        for name in ACCOUNTS:
            lake.collection(name).maintain()
            # A process that was killed right before its commit has left a rollup that no state names.
            lake.collection(name).collect(thorough=True)
        awaiting = [one for name in ACCOUNTS for one in lake.collection(name).state().staged.awaiting()]
        left = lake.fsck().left
        if not awaiting and not left:
            break
        assert time.monotonic() < deadline_s, (awaiting, left)
        time.sleep(0.1)
    assert check_at(lake, last) == found
