"""Which errors are tried again, for how long, and what comes out at the end."""

import errno
import pickle
import random
from collections.abc import Callable

import pytest

from clocks import RecordingClock
from tests.doubles.faults import Fault, FaultPlan, FaultyBlobStore, FaultyVersionLog, SimulatedCrash
from tidelake.env import Counters, Env, RandomIds, SystemClock
from tidelake.errors import BlobExists, OutcomeUnknown, StoreUnavailable, UsageError
from tidelake.store.disk import unavailable
from tidelake.store.layers import BlobLayer, LogLayer
from tidelake.store.memory import MemoryBlobStore, MemoryVersionLog
from tidelake.store.protocols import BlobStore, Entry, VersionLog
from tidelake.store.retrying import PAUSE_S_MAX, PAUSE_S_MIN, Retry, draw_from
from tidelake.store.url import Stores, all_layers

BOTH = {Fault.UNAVAILABLE: 0.5, Fault.UNKNOWN_BEFORE: 0.5}


def draw() -> float:
    return 0.5


def blobs_over(clock: RecordingClock, *script: Fault) -> tuple[BlobStore, MemoryBlobStore, FaultPlan]:
    inner, plan = MemoryBlobStore(SystemClock()), FaultPlan(script=script)
    return BlobLayer(FaultyBlobStore(inner, plan), Retry(clock, 30.0, draw).layer), inner, plan


def log_over(clock: RecordingClock, *script: Fault) -> tuple[VersionLog, MemoryVersionLog, FaultPlan]:
    inner, plan = MemoryVersionLog(), FaultPlan(script=script)
    return LogLayer(FaultyVersionLog(inner, plan), Retry(clock, 30.0, draw).layer), inner, plan


@pytest.mark.promise(
    "Retries end at a deadline, and do not begin where they cannot help",
    rule="`Retry`",
    also=["::test_a_full_disk_is_not_tried_again"],
)
def test_pauses_double_are_jittered_and_end_at_the_deadline(clock: RecordingClock) -> None:
    retry = Retry(clock, 30.0, draw_from(RandomIds()))
    attempts = 0

    def fail() -> None:
        nonlocal attempts
        attempts += 1
        raise StoreUnavailable(f"attempt {attempts}")

    start_s = clock.monotonic_s()
    with pytest.raises(StoreUnavailable) as caught:
        retry.read(fail)
    assert str(caught.value) == f"attempt {attempts}"
    assert attempts == len(clock.pauses) + 1
    assert 20 < clock.monotonic_s() - start_s < 30
    for number, pause_s in enumerate(clock.pauses):
        assert 0 <= pause_s < min(PAUSE_S_MAX, PAUSE_S_MIN * 2**number)
    assert len(set(clock.pauses)) > 10


def test_without_a_deadline_there_is_one_attempt(clock: RecordingClock) -> None:
    faulty = FaultyBlobStore(MemoryBlobStore(SystemClock()), FaultPlan(rates=BOTH))
    store = BlobLayer(faulty, Retry(clock, 0.0, draw).layer)
    with pytest.raises((StoreUnavailable, OutcomeUnknown)):
        store.put("a", b"")
    assert clock.pauses == []


def test_a_full_disk_is_not_tried_again(clock: RecordingClock) -> None:
    full = unavailable("write object", "a", OSError(errno.ENOSPC, "No space left on device"))

    def fail() -> None:
        raise full

    with pytest.raises(StoreUnavailable, match=r"'a': no space left on device; free space") as caught:
        Retry(clock, 30.0, draw).write(fail)
    assert clock.pauses == []
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.retryable, str(again)) == (False, str(full))
    assert StoreUnavailable("x").retryable


@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.UNKNOWN_BEFORE, Fault.UNKNOWN_AFTER])
def test_reads_are_repeated_after_either_error(clock: RecordingClock, fault: Fault) -> None:
    blobs, inner, plan = blobs_over(clock, *[fault] * 8)
    inner.put("a", b"0123")
    assert blobs.get("a", 1) == b"123"
    assert plan.total() == len(clock.pauses) == 8

    log, inner_log, plan = log_over(clock, fault, Fault.NONE, fault, Fault.NONE, fault, Fault.NONE, fault)
    inner_log.compare_and_set("k", None, b"x")
    assert log.head("k") == Entry(0, b"x")
    assert log.scan("k", 0) == [Entry(0, b"x")]
    assert log.truncate("k", 0) == 0
    assert list(log.keys()) == ["k"]
    assert plan.total() == 4


@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.UNKNOWN_BEFORE, Fault.UNKNOWN_AFTER])
def test_reads_of_an_opened_object_are_repeated_in_place(clock: RecordingClock, fault: Fault) -> None:
    blobs, inner, plan = blobs_over(clock, fault, Fault.NONE, fault, fault, Fault.NONE, fault)
    inner.put("a", b"0123456789")
    with blobs.open("a") as file:
        assert file.read(4) == b"0123"
        assert file.read() == b"456789"
    assert plan.total() == 4


def test_a_listing_goes_on_after_an_error_half_way(clock: RecordingClock) -> None:
    for fault in (Fault.UNAVAILABLE, Fault.UNKNOWN_BEFORE, Fault.UNKNOWN_AFTER):
        blobs, inner, plan = blobs_over(clock, fault, fault, fault)
        for number in range(9):
            inner.put(f"p/{number}", b"")
        assert [info.name for info in blobs.list("p/")] == [f"p/{number}" for number in range(9)]
        assert plan.total() == 3


@pytest.mark.promise(
    "A put that finds its own bytes under the name succeeds, also if the store refuses what has "
    "landed (409, 412); an object of other bytes is not taken for its own",
    rule="`Retry.layer`, `ObjectBlobStore.put`",
    also=[
        "::test_a_put_of_unknown_outcome_does_not_claim_what_another_wrote",
        "::test_an_object_of_the_same_bytes_is_that_of_a_refused_put",
        "store/objects/test_object_blobs.py::test_a_put_that_landed_and_was_refused_has_succeeded",
    ],
)
def test_a_put_of_unknown_outcome_ends_as_its_own_success(clock: RecordingClock) -> None:
    blobs, inner, _ = blobs_over(clock, Fault.UNKNOWN_AFTER, Fault.UNAVAILABLE)
    blobs.put("a", b"mine")
    assert inner.get("a") == b"mine"


def test_a_put_of_unknown_outcome_does_not_claim_what_another_wrote(clock: RecordingClock) -> None:
    blobs, inner, _ = blobs_over(clock, Fault.UNKNOWN_BEFORE)
    inner.put("a", b"theirs")
    with pytest.raises(BlobExists):
        blobs.put("a", b"mine")
    assert inner.get("a") == b"theirs"


def test_an_object_of_the_same_bytes_is_that_of_a_refused_put(clock: RecordingClock) -> None:
    blobs, inner, _ = blobs_over(clock, Fault.UNAVAILABLE)
    inner.put("a", b"same")
    blobs.put("a", b"same")
    with pytest.raises(BlobExists):
        blobs.put("a", b"other")
    assert inner.get("a") == b"same"


@pytest.mark.promise(
    'A call that had an attempt of unknown outcome never reports "certainly not"', rule="`Retry`"
)
def test_a_call_with_an_unknown_attempt_never_ends_as_certain(clock: RecordingClock) -> None:
    for operation in ("put", "delete"):
        plan = FaultPlan(script=[Fault.UNKNOWN_AFTER], rates={Fault.UNAVAILABLE: 1})
        faulty = FaultyBlobStore(MemoryBlobStore(SystemClock()), plan)
        store = BlobLayer(faulty, Retry(clock, 5.0, draw).layer)
        with pytest.raises(OutcomeUnknown, match="earlier attempt") as caught:
            getattr(store, operation)(*(("a", b"x") if operation == "put" else ("a",)))
        assert isinstance(caught.value.__cause__, StoreUnavailable)


@pytest.mark.promise(
    "The retrying layer does not repeat a compare-and-set of unknown outcome", rule="`Retry.layer`"
)
@pytest.mark.parametrize("fault", [Fault.UNKNOWN_BEFORE, Fault.UNKNOWN_AFTER])
def test_a_compare_and_set_of_unknown_outcome_is_passed_up_at_once(
    clock: RecordingClock, fault: Fault
) -> None:
    log, inner, plan = log_over(clock, Fault.UNAVAILABLE, Fault.UNAVAILABLE, fault)
    with pytest.raises(OutcomeUnknown):
        log.compare_and_set("k", None, b"x")
    assert plan.total() == 3
    assert len(clock.pauses) == 2
    assert (inner.head("k") is not None) == (fault is Fault.UNKNOWN_AFTER)


def test_a_compare_and_set_that_did_not_happen_is_repeated(clock: RecordingClock) -> None:
    log, inner, _ = log_over(clock, *[Fault.UNAVAILABLE] * 5)
    assert log.compare_and_set("k", None, b"x")
    assert inner.head("k") == Entry(0, b"x")


def test_other_errors_are_not_repeated(clock: RecordingClock) -> None:
    log, _, _ = log_over(clock)
    blobs, _, _ = blobs_over(clock)
    calls: list[Callable[[], object]] = [lambda: log.truncate("none", 0), lambda: blobs.get("..")]
    for call in calls:
        with pytest.raises(UsageError):
            call()
    assert clock.pauses == []


def test_a_crash_ends_the_process_until_it_restarts(clock: RecordingClock) -> None:
    for fault, is_there in ((Fault.CRASH_BEFORE, False), (Fault.CRASH_AFTER, True)):
        blobs, inner, plan = blobs_over(clock, fault)
        with pytest.raises(SimulatedCrash):
            blobs.put("a", b"x")
        with pytest.raises(SimulatedCrash):
            blobs.delete("a")
        plan.restart()
        assert [info.name for info in inner.list()] == ["a"] * is_there
        assert blobs.delete("a") is is_there


def test_many_random_faults_lose_and_invent_nothing(clock: RecordingClock) -> None:
    rates = {Fault.UNAVAILABLE: 0.2, Fault.UNKNOWN_BEFORE: 0.2, Fault.UNKNOWN_AFTER: 0.2}
    inner, plan = MemoryBlobStore(SystemClock()), FaultPlan(11, rates)
    store = BlobLayer(FaultyBlobStore(inner, plan), Retry(clock, 1e9, random.Random(5).random).layer)
    for number in range(300):
        store.put(f"p/{number:03}", b"%d" % number)
    assert [info.name for info in store.list()] == [f"p/{number:03}" for number in range(300)]
    assert all(store.get(f"p/{number:03}") == b"%d" % number for number in range(300))
    assert plan.total() > 200


def test_each_attempt_of_a_lake_is_counted_as_one_more_request(clock: RecordingClock) -> None:
    counters, plan = Counters(), FaultPlan(script=[Fault.UNAVAILABLE, Fault.UNAVAILABLE])
    below = Stores(FaultyBlobStore(MemoryBlobStore(clock), plan), FaultyVersionLog(MemoryVersionLog(), plan))
    env = Env(clock, recorder=counters)
    retry = Retry(clock, 30.0, draw, counters)
    stores = all_layers(below, "memory://lake", env, retry, read_only=False)
    stores.blobs.put("a", b"x")
    assert stores.log.head("k") is None
    assert dict(counters.counts) == {
        "blob.put": 3,
        "blob.put.bytes": 1,
        "log.head": 1,
        "store.failed": 2,
        "store.retries": 2,
    }
