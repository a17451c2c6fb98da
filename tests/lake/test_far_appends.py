"""A collection in an object store that is appended to for long: the last append costs what the first did."""

import statistics

import pytest

from clocks import MovedClock
from tables import SCHEMA, rows
from tests.doubles.buckets import MemoryBucket
from tests.doubles.roundtrips import FarBucket, RoundTrips
from tidelake.config import Config
from tidelake.env import Env, SystemClock
from tidelake.lake.api.lake import Lake
from tidelake.store.objects.blobs import ObjectBlobStore
from tidelake.store.objects.log import ObjectVersionLog
from tidelake.store.url import Stores

GRACE_S = 600.0
PAUSE_S = 0.5  # between appends, so that the log keeps a thousand or two of them


class Costs:
    """Lakes on one bucket, and what their requests are."""

    def __init__(self):
        self.clock = MovedClock()
        self.bucket = MemoryBucket(self.clock)
        self.trips = RoundTrips(SystemClock(), 0)

    def lake(self):
        far = FarBucket(self.bucket, self.trips)
        stores = Stores(ObjectBlobStore(far), ObjectVersionLog(far, self.clock, GRACE_S), clock=self.clock)
        return Lake("memory://appends", stores, Config(), Env(clock=self.clock))

    def of(self, work):
        """The requests of some work, by kind, and its round trips."""
        self.trips.reset()
        work()
        return self.trips.calls.copy(), self.trips.count


def appended(costs, collection, first, count):
    """Round trips and requests of each of some appends."""
    found = []
    for number in range(first, first + count):
        costs.clock.sleep(PAUSE_S)
        calls, trips = costs.of(lambda number=number: collection.append(rows(number)))
        found.append((trips, calls.total(), calls["list"]))
    return found


@pytest.mark.parametrize(
    "appends",
    [
        pytest.param(1_500, marks=pytest.mark.full),
        pytest.param(100_000, marks=[pytest.mark.soak, pytest.mark.timeout(3_600)]),
    ],
)
def test_the_last_append_costs_what_the_first_did(appends, record_property):
    costs = Costs()
    with costs.lake() as lake:
        collection = lake.create("c", SCHEMA, key=["id"])
        share = min(1_000, appends // 3)
        first = appended(costs, collection, 0, share)
        appended(costs, collection, share, appends - 2 * share)
        last = appended(costs, collection, appends - share, share)
        told = []
        for name, number, bound in (("round trips", 0, 1.2), ("requests", 1, 1.2), ("listings", 2, 1.2)):
            before, after = ([append[number] for append in some] for some in (first, last))
            told.append(
                f"{name} p50 {statistics.median(before):g} -> {statistics.median(after):g}, "
                f"mean {statistics.fmean(before):.2f} -> {statistics.fmean(after):.2f}"
            )
            assert statistics.median(after) <= bound * statistics.median(before), told
            assert statistics.fmean(after) <= 1.5 * statistics.fmean(before) + 0.1, told
        entries = sum("/1-entries/" in key for key in costs.bucket._objects)

    def open_anew():
        with costs.lake() as lake:
            assert lake.collection("c").upper.elements == (appends,)

    calls, trips = costs.of(open_anew)
    # A page for the log of each shard that is opened: that of the catalog, and that of the collection.
    assert calls["list"] <= 2 and trips <= 8, (calls, trips)
    told += [f"{entries:,} entries in all logs", f"to open: {dict(calls)} in {trips} round trips"]
    record_property("figures", f"{appends:,} appends: {'; '.join(told)}")
