"""The log in an object store: its costs, and what processes believe that stalled or lost a reply."""

from collections import Counter
from collections.abc import Iterator, Sequence

import pytest

from clocks import MovedClock
from tests.doubles.buckets import MemoryBucket
from tidelake.errors import CorruptionError, OutcomeUnknown, StoreUnavailable
from tidelake.store.clock import StoreClock
from tidelake.store.objects import entrynames
from tidelake.store.objects.clock import store_ms
from tidelake.store.objects.log import ObjectVersionLog
from tidelake.store.protocols import Entry, Ghost

GRACE_S = 600
GRACE_MS = GRACE_S * 1000


class CountingBucket(MemoryBucket):
    """A bucket that counts requests and round trips, and fails as it is told.

    Attributes:
        requests: by kind.
        trips: number of round trips.
        before: called before each request, with its kind.
    """

    def __init__(self, clock: MovedClock) -> None:
        super().__init__(clock)
        self.requests: Counter[str] = Counter()
        self.trips = 0
        self.before = lambda kind: None

    def _told(self, kind: str, count: int = 1) -> None:
        self.before(kind)
        self.requests[kind] += count
        self.trips += 1

    def get_all(self, keys: Sequence[str]) -> list[bytes | None]:
        self._told("get", len(keys))
        return super().get_all(keys)

    def put_new(self, key: str, data: bytes) -> bool:
        self._told("put")
        return super().put_new(key, data)

    def list(self, prefix: str) -> Iterator[list]:
        self._told("list")
        for number, page in enumerate(super().list(prefix)):
            if number:
                self._told("list")
            yield page

    def spent(self) -> dict[str, int]:
        """The requests since the last call."""
        found = dict(self.requests)
        self.requests.clear()
        return found


class Place:
    """A bucket with the clock of its store, and processes whose clocks are an hour off."""

    def __init__(self) -> None:
        self.clock = MovedClock()
        self.bucket = CountingBucket(self.clock)

    def log(self, off_ms: int = 3_600_000) -> ObjectVersionLog:
        clock = MovedClock()
        clock.now_ms = lambda: self.clock.ms + off_ms
        clock.monotonic_s = lambda: (self.clock.ms + off_ms) / 1000
        clock.sleep = self.clock.sleep
        return ObjectVersionLog(self.bucket, clock, GRACE_S)

    def filled(self, count: int) -> ObjectVersionLog:
        log = self.log()
        for n in range(count):
            assert log.compare_and_set("k", n - 1 if n else None, b"%d" % n)
        self.bucket.spent()
        return log

    def later(self, share: float) -> None:
        """Let a share of the grace pass, for all."""
        self.clock.ms += int(share * GRACE_MS)

    def seqnos(self) -> list[int]:
        """The entries that have objects."""
        names = [key for key in self.bucket._objects if "entries" in key]
        return sorted(10**20 - 1 - int(name[-20:]) for name in names)


@pytest.fixture
def place() -> Place:
    return Place()


def entries(first: int, last: int) -> list[Entry]:
    return [Entry(n, b"%d" % n) for n in range(first, last + 1)]


def truncated(place: Place, log: ObjectVersionLog, floor: int) -> None:
    """Truncate, and again after the grace, so that what is below the floor is removed."""
    log.truncate("k", floor)
    place.later(1)
    log.truncate("k", floor + 1)
    assert place.seqnos()[0] == floor


# --- Costs ---


@pytest.mark.promise(
    "There, a tiny append is one put, an idle refresh one get, and the newest entry is found in two "
    "round trips, however long the log is",
    rule="inverted names",
    also=[
        "::test_the_head_of_a_log_is_found_in_two_round_trips_however_long_it_is",
        "lake/test_shared_log.py::test_a_tiny_append_is_one_put_and_an_idle_look_one_get",
    ],
)
def test_a_commit_is_one_put_and_an_idle_refresh_one_get(place: Place) -> None:
    log = place.filled(3)
    for n in range(3, 40):
        place.later(0.3)
        assert log.compare_and_set("k", n - 1, b"%d" % n)
        assert place.bucket.spent() == {"put": 1}
    for _ in range(40):
        place.later(0.3)
        assert log.newer("k", 39) == []
        assert place.bucket.spent() == {"get": 1}


def test_a_process_that_was_away_for_long_needs_one_listing_more(place: Place) -> None:
    log = place.filled(3)
    place.later(10)
    assert log.newer("k", 2) == []
    assert place.bucket.spent() == {"get": 1, "list": 1}
    place.later(10)
    assert log.compare_and_set("k", 2, b"3")
    assert place.bucket.spent() == {"list": 1, "put": 1}


@pytest.mark.parametrize("count", [10, 3_000])
def test_the_head_of_a_log_is_found_in_two_round_trips_however_long_it_is(place: Place, count: int) -> None:
    place.filled(count)
    reader = place.log()
    trips = place.bucket.trips
    assert reader.head("k") == Entry(count - 1, b"%d" % (count - 1))
    assert place.bucket.trips - trips == 2
    # The newest entries came with the head, for the reader that goes on from one of them; once.
    assert reader.newer("k", count - 9, count - 1) == entries(count - 8, count - 1)
    assert place.bucket.trips - trips == 2
    assert reader.newer("k", count - 9, count - 1) == entries(count - 8, count - 1)
    assert place.bucket.trips - trips == 3
    assert place.bucket.spent() == {"list": 1, "get": min(count, 32) + 8}


@pytest.mark.parametrize(
    ("behind", "trips", "gets"), [(1, 2, 3), (2, 2, 3), (3, 3, 7), (7, 5, 7), (90, 5, 90)]
)
def test_a_reader_that_is_behind_gets_several_entries_at_once(
    place: Place, behind: int, trips: int, gets: int
) -> None:
    place.filled(100)
    reader = place.log()
    reader.head("k")
    place.bucket.spent()
    before = place.bucket.trips
    assert reader.newer("k", 99 - behind) == entries(100 - behind, 99)
    assert place.bucket.trips - before <= trips
    assert place.bucket.spent()["get"] <= gets


def test_the_loser_of_a_race_pays_a_put_and_a_get(place: Place) -> None:
    first = place.filled(3)
    second = place.log()
    second.head("k")
    assert first.compare_and_set("k", 2, b"won")
    place.bucket.spent()
    assert not second.compare_and_set("k", 2, b"lost")
    assert place.bucket.spent() == {"put": 1, "get": 1}


def test_a_process_remembers_some_keys_only(place: Place) -> None:
    log = ObjectVersionLog(place.bucket, place.clock, GRACE_S, looks_max=10)
    for n in range(100):
        assert log.compare_and_set(f"k{n}", None, b"0")
        assert len(log._looks) <= 10
    assert all(log.newer(f"k{n}", 0) == [] for n in range(100))


# --- What stalls ---


def test_removed_entries_stay_for_the_grace_so_that_a_reader_can_go_on(place: Place) -> None:
    log = place.filled(10)
    reader = place.log()
    assert reader.head("k") == Entry(9, b"9")
    place.later(0.4)
    assert log.truncate("k", 8) == 0
    assert reader.newer("k", 2, 9) == entries(3, 9)
    assert place.log().scan("k", 0) == entries(8, 9)
    place.later(0.9)
    assert log.truncate("k", 9) == 0
    place.later(0.2)
    assert log.compare_and_set("k", 9, b"10")
    assert log.truncate("k", 10) == 8
    assert place.seqnos() == [8, 9, 10]


@pytest.mark.promise(
    "In the [log in an object store](object-log.md) a commit is acknowledged only if it is the "
    "entry of its seqno, however long its process stalled; no refresh misses an entry, or applies "
    "an object that was put again",
    rule=(
        "removed entries stay for a grace; the floor is read after what may be older than half of it "
        "(`store/objects/log.py`)"
    ),
    also=[
        "::test_a_stalled_reader_does_not_apply_a_ghost_nor_believe_that_nothing_is_new",
        "simulation/test_logs.py::test_no_seed_finds_a_wrong_answer_of_a_log",
        "simulation/test_logs.py::test_a_bug_of_the_log_is_found_within_200_seeds",
    ],
)
def test_a_stalled_writer_does_not_win_a_seqno_that_was_removed(place: Place) -> None:
    log, stalled = place.filled(10), place.log()
    stalled.head("k")
    assert stalled.newer("k", 2, 3) == entries(3, 3)
    place.bucket.before = lambda kind: [] if kind != "put" else wake()

    def wake() -> None:
        place.bucket.before = lambda kind: None
        for n in range(10, 20):
            assert log.compare_and_set("k", n - 1, b"%d" % n)
        truncated(place, log, 15)

    with pytest.raises(OutcomeUnknown, match="below the floor"):
        stalled.compare_and_set("k", 9, b"ghost")
    assert place.seqnos()[0] == 10  # the ghost
    assert place.log().head("k") == log.head("k") == Entry(19, b"19")
    assert place.log().scan("k", 0) == entries(16, 19)
    assert stalled.newer("k", 9) is None
    assert not stalled.compare_and_set("k", 10, b"on top of the ghost")


def test_a_stalled_reader_does_not_apply_a_ghost_nor_believe_that_nothing_is_new(place: Place) -> None:
    log, stalled = place.filled(10), place.log()
    stalled.head("k")
    for n in range(10, 20):
        assert log.compare_and_set("k", n - 1, b"%d" % n)
    truncated(place, log, 15)
    look = stalled._look("k")
    assert stalled.newer("k", 9) is None
    stalled._looks["k"] = look
    place.bucket.put(entrynames.entry("k", 10), b"ghost")
    assert stalled.newer("k", 9) is None


def test_a_process_whose_clock_stood_still_is_judged_by_the_other_one(place: Place) -> None:
    log = place.filled(10)
    for frozen in ("monotonic_s", "now_ms"):
        stalled = place.log()
        setattr(stalled._clock, frozen, lambda now=getattr(stalled._clock, frozen)(): now)
        head = stalled.head("k").seqno
        for n in range(head + 1, head + 6):
            assert log.compare_and_set("k", n - 1, b"%d" % n)
        truncated(place, log, head + 3)
        assert stalled.newer("k", head) is None


@pytest.mark.promise(
    "There, ages are told by the clock of the store; a suspension is counted by one clock of a "
    "process at least",
    rule="`store/clock.py`, `ObjectVersionLog._since`",
    also=["::test_a_process_whose_clock_stood_still_is_judged_by_the_other_one"],
)
def test_the_age_of_a_floor_is_told_by_the_store(place: Place) -> None:
    log = place.filled(10)
    log.truncate("k", 5)
    ahead = place.log(off_ms=10 * GRACE_MS)
    assert ahead.truncate("k", 6) == 0
    assert place.seqnos() == [*range(10)]


def test_an_idle_writer_is_told_that_it_lost_and_not_that_the_outcome_is_unknown(place: Place) -> None:
    log, idle = place.filled(10), place.log()
    idle.head("k")
    for n in range(10, 20):
        assert log.compare_and_set("k", n - 1, b"%d" % n)
    truncated(place, log, 15)
    assert not idle.compare_and_set("k", 9, b"late")
    assert 10 not in place.seqnos()


# --- Answers that do not come ---


@pytest.mark.promise(
    "There, a put that is refused, or whose reply is lost, decides nothing",
    rule="`ObjectVersionLog._judged`, `History._decided`",
    also=[
        "::test_a_put_whose_own_object_refuses_it_has_won",
        "::test_after_a_put_no_error_says_that_nothing_happened",
    ],
)
def test_a_put_that_is_refused_though_nothing_is_there_is_made_again(place: Place) -> None:
    log = place.filled(3)
    whole, refused = place.bucket.put_new, iter([True, True, False])
    place.bucket.put_new = lambda key, data: False if next(refused) else whole(key, data)
    assert log.compare_and_set("k", 2, b"3")
    place.bucket.put_new = lambda key, data: False
    with pytest.raises(OutcomeUnknown, match="refused"):
        log.compare_and_set("k", 3, b"4")


def test_a_put_whose_own_object_refuses_it_has_won(place: Place) -> None:
    log = place.filled(3)
    whole = place.bucket.put_new
    place.bucket.put_new = lambda key, data: whole(key, data) and whole(key, data)  # retried inside
    assert log.compare_and_set("k", 2, b"3")


def test_after_a_put_no_error_says_that_nothing_happened(place: Place) -> None:
    log, other = place.filled(3), place.log()
    other.head("k")

    def fail(kind: str) -> None:
        if kind == "get":
            raise StoreUnavailable("no answer")

    place.bucket.before = fail
    assert log.compare_and_set("k", 2, b"3")
    with pytest.raises(OutcomeUnknown):
        other.compare_and_set("k", 2, b"other")


# --- Drops ---


@pytest.mark.promise(
    "A deleted log is never created again there; a dropped collection leaves it for the grace, and "
    "an interrupted deletion is finished",
    rule="the greatest floor stays",
    also=[
        "lake/test_shared_log.py::test_a_dropped_collection_leaves_its_log_for_the_grace",
        "lake/test_shared_log.py::test_a_deletion_of_a_log_that_was_interrupted_is_finished_by_the_next_collection",
    ],
)
def test_a_key_is_deleted_when_its_newest_entry_is_old_and_never_created_again(place: Place) -> None:
    log, stalled = place.filled(3), place.log()
    stalled.head("k")
    place.later(0.9)
    assert not log.delete("k")
    assert place.log().scan("k", 0) == entries(0, 2)
    place.later(0.1)
    assert log.delete("k") and not log.delete("k")
    assert place.seqnos() == [] and list(log.keys()) == []
    assert log.head("k") is None and log.scan("k", 0) == [] and stalled.newer("k", 1) is None
    assert not log.compare_and_set("k", None, b"again")
    assert not place.log().compare_and_set("k", 2, b"more")
    assert place.seqnos() == []


def test_a_deletion_that_was_interrupted_is_finished_by_the_next_one(place: Place) -> None:
    log = place.filled(3)
    place.later(2)

    def fail(keys: Sequence[str]) -> None:
        raise OutcomeUnknown("no answer")

    whole, place.bucket.delete = place.bucket.delete, fail
    with pytest.raises(OutcomeUnknown):
        log.delete("k")
    place.bucket.delete = whole
    assert list(log.keys()) == ["k"] and log.head("k") is None
    assert not log.delete("k")
    assert list(log.keys()) == [] and place.seqnos() == []


def test_a_reader_that_looked_at_the_floor_just_before_a_deletion_does_not_take_the_end_for_free(
    place: Place,
) -> None:
    log, slow = place.filled(3), place.log()
    slow.head("k")
    place.later(2)
    assert log.compare_and_set("k", 2, b"the end")
    place.later(1)
    assert slow.newer("k", 1, 2) == entries(2, 2)  # its look is young again
    assert log.delete("k")
    assert slow.newer("k", 2) is None
    assert not slow.compare_and_set("k", 2, b"after the end")


# --- Damage ---


def test_a_missing_entry_above_the_floor_is_damage(place: Place) -> None:
    log = place.filled(10)
    place.bucket.delete([entrynames.entry("k", 5)])
    with pytest.raises(CorruptionError, match="k@5"):
        log.scan("k", 0)
    with pytest.raises(CorruptionError, match="k@5"):
        place.log().newer("k", 2, 9)
    assert log.scan("k", 6) == entries(6, 9)
    with pytest.raises(CorruptionError):
        log.mend("k", [3])
    found = log.mend("k", [3, 7, 8])
    assert found is not None and (found.first, found.head, found.lost) == (7, 9, None)
    assert log.scan("k", 0) == entries(7, 9)
    assert log.mend("k", []) is None


def test_a_log_that_ends_below_its_floor_has_lost_its_newest_entries(place: Place) -> None:
    log = place.filled(10)
    log.truncate("k", 8)
    for seqno in (8, 9):
        place.bucket.delete([entrynames.entry("k", seqno)])
    for call in (lambda: log.head("k"), lambda: log.scan("k", 0), lambda: log.compare_and_set("k", 7, b"8")):
        place.later(1)
        with pytest.raises(CorruptionError, match="the rest is lost"):
            call()


# --- The time of the store ---


def test_the_clock_of_a_store_is_never_ahead_of_it_and_is_asked_once_an_hour(place: Place) -> None:
    local = MovedClock()
    clock = StoreClock(lambda: store_ms(place.bucket), local)
    asked = []
    whole, place.bucket.put = place.bucket.put, lambda key, data: asked.append(key) or whole(key, data)
    place.clock.ms += 7_000_000
    for _ in range(100):
        assert place.clock.ms - 1000 <= clock.now_ms() <= place.clock.ms
        place.clock.ms += 60_000
        local.ms += 60_000
    assert len(asked) == 2


def test_a_clock_that_knows_the_time_survives_a_store_that_is_away(place: Place) -> None:
    clock = StoreClock(lambda: store_ms(place.bucket), place.clock)

    def away(key: str, data: bytes) -> None:
        raise StoreUnavailable("away")

    whole, place.bucket.put = place.bucket.put, away
    with pytest.raises(StoreUnavailable):
        clock.now_ms()
    place.bucket.put = whole
    assert clock.now_ms() == place.clock.ms
    place.bucket.put = away
    place.clock.ms += 4_000_000
    assert clock.now_ms() == place.clock.ms


@pytest.mark.promise(
    "What landed there after its removal has no effect, and a check names it; it goes with a later "
    "truncation, or with a repair where the log was deleted",
    rule="`store/objects/ghosts.py`, `LakeCheck._ghosts`",
    also=[
        "::test_entries_that_a_truncation_has_not_removed_yet_are_no_ghosts",
        "lake/test_far_drops.py::test_fsck_names_what_landed_late_and_a_repair_removes_it_where_the_log_was_deleted",
    ],
)
def test_an_entry_that_is_put_again_is_a_ghost_and_goes_with_a_later_truncation(place: Place) -> None:
    log = place.filled(10)
    truncated(place, log, 5)
    assert log.ghosts() == []
    assert place.bucket.put_new(entrynames.entry("k", 2), b"late")
    assert log.ghosts() == [Ghost("k", 2, False)]
    assert log.head("k").seqno == 9 and 2 not in [one.seqno for one in log.scan("k", 0)]
    truncated(place, log, 7)
    assert log.ghosts() == [] and not place.bucket.get_all([entrynames.entry("k", 2)])[0]


def test_entries_that_a_truncation_has_not_removed_yet_are_no_ghosts(place: Place) -> None:
    log = place.filled(10)
    assert log.truncate("k", 5) == 0
    assert place.bucket.get_all([entrynames.entry("k", 2)]) == [b"2"]
    assert log.ghosts() == []
    # Nor are entries at or above the floor, however young.
    assert log.compare_and_set("k", 9, b"10") and log.ghosts() == []


def test_a_ghost_of_a_deleted_key_stays_until_the_key_is_deleted_again(place: Place) -> None:
    log = place.filled(3)
    place.clock.sleep(2 * GRACE_S)
    assert log.delete("k")
    place.bucket.put_new(entrynames.entry("k", 2), b"late")
    assert log.head("k") is None and list(log.keys()) == []
    assert log.ghosts() == [Ghost("k", 2, True)]
    assert not log.delete("k")
    assert log.ghosts() == [] and list(log.keys()) == []
