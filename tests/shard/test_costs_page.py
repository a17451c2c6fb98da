"""What the page of costs says is what is counted: requests, round trips, bytes and money."""

import re
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from clocks import MovedClock
from tables import SCHEMA
from tests.doubles.buckets import MemoryBucket
from tests.doubles.roundtrips import FarBucket, RoundTrips
from tidelake.config import Config
from tidelake.env import Env, SystemClock
from tidelake.lake.api.lake import Lake
from tidelake.process import PerProcess
from tidelake.shard.runs import partcaches
from tidelake.store.objects.blobs import ObjectBlobStore
from tidelake.store.objects.log import ObjectVersionLog
from tidelake.store.url import Stores

PAGE = Path(__file__).resolve().parents[2] / "docs" / "costs.md"
# A row of the table: what is done, round trips, puts and lists, gets, KiB, dollars for a million.
ROW = re.compile(r"^\| (.+?) \| (\d+) \| (\d+) \| ([\d,]+) \| ([\d,]+) \| ([\d,.]+) \|$", re.MULTILINE)
PRICE = re.compile(r"^- \$([\d.]+) for 1,000 (puts and lists|gets)", re.MULTILINE)
LARGE = 200_000
POLL_S = 0.5


@dataclass(frozen=True)
class Cost:
    """What an operation costs.

    Attributes:
        trips: round trips.
        puts: requests that put or list.
        gets: requests that get.
        kib: bytes in and out, in KiB.
    """

    trips: int
    puts: int
    gets: int
    kib: float


class Measured:
    """Lakes on one bucket, each as of another process, and the requests of all."""

    def __init__(self, patched, clock=None, delay_s=0.01):
        self.patched = patched
        self.clock = clock or SystemClock()
        self.bucket = MemoryBucket(self.clock)
        self.trips = RoundTrips(SystemClock(), 0)
        self.delay_s = delay_s
        self.costs = {}

    def lake(self, **settings):
        """A lake in a process that knows nothing."""
        self.patched.setattr(partcaches, "_CACHES", PerProcess(partcaches.PartCaches))
        far = FarBucket(self.bucket, self.trips)
        stores = Stores(ObjectBlobStore(far), ObjectVersionLog(far, self.clock, 600.0))
        return Lake("memory://costs", stores, Config(merge_budget_s=0.0, **settings), Env(clock=self.clock))

    def cost(self, name, work):
        """Do some work, and note what it costs."""
        trips = self.trips
        trips.delay_s = self.delay_s
        trips.reset()
        done = work()
        moved = (trips.bytes_in + trips.bytes_out) / 1024
        calls = trips.calls
        self.costs[name] = Cost(trips.count, calls["put"] + calls["list"], calls["get"], moved)
        trips.delay_s = 0
        return done


def table(n, start=0, step=1):
    ids = range(start, start + n * step, step)
    return pa.table({"id": pa.array(ids, pa.int64()), "v": [f"{id_ * 7919 % 1_000_003}" for id_ in ids]})


def keys(*ids):
    return pa.table({"id": pa.array(ids, pa.int64())})


@pytest.fixture(scope="module")
def counted():
    """The costs of all operations of the page."""
    found = {}
    with pytest.MonkeyPatch.context() as patched:
        # Threads that begin late on a busy machine seem to wait for each other: the fewest round trips count.
        most = {name: cost.trips for name, (cost, _) in told().items()}
        for _ in range(20):
            place = Measured(patched)
            operations(place)
            for name, cost in place.costs.items():
                found[name] = replace(cost, trips=min(cost.trips, found.get(name, cost).trips))
            if all(cost.trips <= most.get(name, 0) for name, cost in found.items()):
                break
        found["listen for an hour, no news"] = idle_hour(patched)
    return found


def operations(place):
    small = place.lake().create("small", SCHEMA, key=["id"])
    small.append(table(20_000))
    large = place.lake(part_target_bytes=2**28).create("large", SCHEMA, key=["id"])
    large.append(table(LARGE))
    runs = place.lake().create("runs", SCHEMA, key=["id"])
    for n in range(5):
        runs.append(table(5_000, n, 5))

    lake = place.lake()
    c = place.cost("open a lake and a collection", lambda: lake.collection("small"))
    place.cost("snapshot of a small collection, cold", lambda: c.snapshot().read_all())
    place.cost("snapshot of a small collection, warm", lambda: c.snapshot().read_all())
    lake = place.lake()
    lake.collection("large")
    place.cost(
        "open a small collection of an open lake, and its snapshot",
        lambda: lake.collection("small").snapshot().read_all(),
    )
    c = place.lake().collection("runs")
    place.cost("snapshot of five parts in five runs, cold", lambda: c.snapshot().read_all())
    for name, of in (("a large part", "large"), ("five runs", "runs")):
        look = partial(place.lake().collection(of).lookup, keys(70))
        place.cost(f"look-up of a key in {name}, cold", look)
        place.cost(f"look-up of a key in {name}, warm", look)

    c = place.lake().collection("runs")
    other = place.lake().collection("runs")
    place.cost("refresh: nothing is new", other.state)
    place.cost("tiny append", lambda: c.append(table(1)))
    place.cost("refresh: one entry is new", other.state)
    place.cost("append of a part", lambda: c.append(table(5_000)))
    place.cost("merge of six parts and a tiny append", c.merge)


def idle_hour(patched):
    """Of a listener, in the time of a clock that only its pauses move."""
    place = Measured(patched, MovedClock(), 0)
    c = place.lake(poll_interval_s=POLL_S).create("c", SCHEMA, key=["id"])
    c.append(table(10))
    steps = c.listen(c.last_time(), timeout_s=3600)
    place.cost("hour", lambda: list(steps))
    return replace(place.costs["hour"], trips=0)


def told():
    """The table of the page: name -> cost and dollars for a thousand times."""
    rows = ROW.findall(PAGE.read_text(encoding="utf-8"))
    plain = [[cell.replace(",", "") for cell in cells] for _, *cells in rows]
    return {
        name: (Cost(int(trips), int(puts), int(gets), float(kib)), dollars)
        for (name, *_), (trips, puts, gets, kib, dollars) in zip(rows, plain, strict=True)
    }


def test_the_page_tells_what_is_counted(counted):
    table_ = told()
    assert list(table_) == list(counted)
    for name, (cost, _) in table_.items():
        found = counted[name]
        assert (found.puts, found.gets) == (cost.puts, cost.gets), name
        # Bytes depend on how well rows are compressed.
        assert 0.7 * cost.kib - 2 <= found.kib <= cost.kib + 1, name
        assert found.trips <= cost.trips, name


def test_the_page_tells_the_price_of_what_is_counted():
    prices = {kind: float(price) for price, kind in PRICE.findall(PAGE.read_text(encoding="utf-8"))}
    assert len(prices) == 2
    for name, (cost, dollars) in told().items():
        price = cost.puts * prices["puts and lists"] + cost.gets * prices["gets"]
        assert dollars == f"{price:.4f}", name


def test_the_limits_of_the_design_are_kept(counted):
    assert counted["open a lake and a collection"].trips <= 4
    assert counted["open a small collection of an open lake, and its snapshot"].trips <= 5
    for name, cost in counted.items():
        if name.startswith("look-up"):
            assert cost.trips <= (4 if name.endswith("cold") else 1)
    assert counted["tiny append"] == replace(counted["tiny append"], trips=1, puts=1, gets=0)
    assert counted["refresh: nothing is new"] == replace(counted["refresh: nothing is new"], puts=0, gets=1)
    hour = counted["listen for an hour, no news"]
    # One get a poll, and a hold at the beginning and the end.
    assert hour.gets <= 3600 / POLL_S + 20 and hour.puts <= 2
