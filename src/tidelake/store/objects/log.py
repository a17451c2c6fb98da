"""A version log in an object store: one object an entry, created by puts that only one writer can win.

Owns the names of its objects, and what a process may believe of their presence and absence. Must not know
which service keeps the objects, nor what the entries mean. `docs/object-log.md` has the whole argument.

    log/<key, with / written as ~>/0-floors/<inverted>    an empty object for each floor that was ever raised
                                   1-entries/<inverted>   an entry
    gone/<key>                                            this key was deleted

An inverted number is 10**20 - 1 less the number, in 20 digits. So one page of a listing begins with the
greatest floor, and goes on with the newest entries, however long the log is.

INVARIANT: an entry is removed at the earliest one grace after a floor above it was raised, and a floor is
raised only above entries that exist. The greatest floor never goes back. So the first object that was put for
a seqno is its entry; one that is put again after its removal is a *ghost*, and lies below the floor.

A process believes what it found for a seqno, object or none, if it knows that the entry was not removed
before: from a *look* that is younger than half of the grace, or from the floor, read after that object.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeVar

from tidelake.env import Clock
from tidelake.errors import CorruptionError, OutcomeUnknown, StoreUnavailable
from tidelake.model.names import is_object
from tidelake.store.names import check_expected, check_limit, check_name, check_prefix, check_truncation
from tidelake.store.objects import entrynames
from tidelake.store.objects.bucket import Bucket, ObjectInfo
from tidelake.store.objects.clock import store_ms
from tidelake.store.objects.entrynames import ENTRIES, FLOORS, GONE, LAST, LOGS, parsed
from tidelake.store.objects.ghosts import ghosts_in
from tidelake.store.protocols import Entry, Ghost, MendedLog

T = TypeVar("T")

_AHEAD = (1, 2, 4)  # how many entries a reader gets at once, before it looks how many there are
_AT_ONCE = 256
_WITH_HEAD = 32  # so many of the newest entries come with the head: who asks for it mostly wants them next
_OPENED_MAX = 16  # keys whose newest entries are remembered until they are asked for
_TRIES = 5
_PAUSE_S = 0.05


@dataclass(frozen=True)
class _Look:
    """What is known of a key: at time `at` no entry from `low` on was below the floor.

    So none of these is removed until one grace after `at`.

    Attributes:
        seen: the greatest seqno that is known to have an entry; -1: none.
    """

    low: int
    seen: int
    at: tuple[float, float]


@dataclass(frozen=True)
class _Survey:
    """What a listing shows of a key.

    Attributes:
        floor: the greatest floor; 0 if none was raised.
        newest: the object of the newest entry; None if there is no object of an entry.
    """

    floor: int
    newest: ObjectInfo | None
    head: int

    @property
    def is_there(self) -> bool:
        """Whether the key exists."""
        return self.newest is not None and self.floor != LAST


_NOTHING = _Survey(0, None, -1)


class ObjectVersionLog:
    """A `VersionLog` in an object store. Safe for threads and processes, on any number of machines.

    Requests: a commit is one put, a refresh that finds nothing is one get. Either needs a listing of one page
    besides, if this process has done nothing with the key for half of the grace.

    Args:
        bucket: the objects of one lake.
        clock: of this process, not of the store. Either of its two clocks must count a suspension.
        grace_s: how long removed entries stay, in seconds; the same for all processes of the lake.
        looks_max: the most keys that are remembered.
    """

    def __init__(self, bucket: Bucket, clock: Clock, grace_s: float, looks_max: int = 10_000) -> None:
        self._bucket = bucket
        self._clock = clock
        self._grace_s = grace_s
        self._looks_max = looks_max
        # SUBTLE: without a lock, which a fork could copy while it is held. Of two looks of different threads
        # either may stay: both are true.
        self._looks: dict[str, _Look] = {}
        # Entries that came with a head, ascending, until `newer` takes them.
        self._opened: dict[str, list[Entry]] = {}

    def head(self, key: str) -> Entry | None:
        """The newest entry; a listing, and gets at once. See `VersionLog.head`.

        The entries before it are read as well, and a call of `newer` that follows takes them.
        """
        check_name(key)
        for _ in range(_TRIES):
            survey = self._survey(key)
            if not survey.is_there:
                return None
            seqnos = range(max(survey.floor, survey.head + 1 - _WITH_HEAD), survey.head + 1)
            found = self._entries(key, seqnos)
            if found[-1] is not None:
                if len(self._opened) >= _OPENED_MAX:
                    self._opened = {}
                came = zip(seqnos, found, strict=True)
                self._opened[key] = [Entry(seqno, data) for seqno, data in came if data is not None]
                return Entry(survey.head, found[-1])
            # The key was deleted since the listing.
        raise CorruptionError(f"{key}@{survey.head}", "it is listed but missing")

    def scan(self, key: str, start: int, limit: int | None = None) -> list[Entry]:
        """Entries from `start` on; a listing, and a get for each. See `VersionLog.scan`.

        Raises:
            CorruptionError: an entry is missing.
        """
        check_limit(check_name(key), limit)
        for _ in range(_TRIES):
            survey = self._survey(key)
            if not survey.is_there:
                return []
            first = max(start, survey.floor)
            most = survey.head + 1 - first
            found = self._all(key, first, first + (most if limit is None else min(limit, most)))
            if found is not None:
                return found
        raise StoreUnavailable(f"cannot read key {key!r}: it was truncated during every attempt to read it")

    def newer(self, key: str, seqno: int, through: int | None = None) -> list[Entry] | None:
        """Entries after `seqno`; one get if there are none. See `VersionLog.newer`.

        Raises:
            CorruptionError: an entry is missing.
        """
        check_name(key)
        first = seqno + 1
        if through is not None:
            return self._all(key, first, through + 1)
        found: list[Entry] = []
        for count in _AHEAD:
            at = self._now()
            here = first + len(found)
            got = self._entries(key, range(here, here + count))
            more = got[: got.index(None)] if None in got else got
            found += [Entry(here + n, data) for n, data in enumerate(more) if data is not None]
            if len(more) < count:
                if not self._stayed(key, first, first + len(found)):
                    return None
                # The next one was not there, and no look can have missed it: it comes after `at`.
                self._remember(key, _Look(first + len(found), first + len(found) - 1, at))
                return found
        if not self._stayed(key, first):
            return None
        survey = self._survey(key)
        if not survey.is_there:
            return None
        rest = self._all(key, first + len(found), survey.head + 1)
        return None if rest is None else found + rest

    def compare_and_set(self, key: str, expected: int | None, data: bytes) -> bool:
        """Append iff the head is `expected`; one put. See `VersionLog.compare_and_set`.

        REQUIRES: no other call for this key has the same data, unless it is another try of this one.

        Raises:
            OutcomeUnknown: as always; also if this process stalled for so long that the entry may have been
                removed since.
        """
        check_expected(check_name(key), expected)
        before = -1 if expected is None else expected
        seqno = before + 1
        look = self._fresh(key, seqno)
        if look is not None and look.seen > before:
            return False
        if look is None or look.seen < before:
            survey = self._survey(key)
            if survey.floor == LAST or survey.head != before:
                return False
        at = self._now()
        is_new = self._bucket.put_new(entrynames.entry(key, seqno), data)
        for attempt in range(_TRIES):
            won = self._judged(key, seqno, data, is_new=is_new)
            if won is not None:
                # An entry that was not there at `at` cannot have been below the floor then.
                known = _Look(seqno, seqno, at) if is_new else self._look(key)
                self._remember(key, replace(known, seen=max(known.seen, seqno)))
                return won
            # Refused, and nothing is there: another put is under way, perhaps an earlier try of this one.
            self._clock.sleep(_PAUSE_S * 2**attempt)
            is_new = self._after_write(lambda: self._bucket.put_new(entrynames.entry(key, seqno), data))
        raise OutcomeUnknown(f"entry {seqno} of {key!r} was refused {_TRIES} times, and is not there")

    def truncate(self, key: str, seqno: int) -> int:
        """Raise the floor; remove what is below one that is older than the grace. See `VersionLog.truncate`.

        A put, two listings, and requests that delete.
        """
        check_name(key)
        survey = self._survey(key)
        check_truncation(key, survey.head if survey.is_there else None, seqno)
        if seqno <= 0:
            return 0
        self._raise_floor(key, seqno)
        return self._after_write(lambda: self._removed(key))

    def delete(self, key: str) -> bool:
        """Delete a key whose newest entry is older than the grace. See `VersionLog.delete`."""
        check_name(key)
        survey = self._survey(key)
        if survey.floor == LAST:
            # Another call was interrupted.
            self._clear(key)
            return False
        if survey.newest is None or store_ms(self._bucket) - survey.newest.modified_ms < self._grace_s * 1000:
            return False
        self._raise_floor(key, LAST)
        self._after_write(lambda: self._clear(key))
        return True

    def mend(self, key: str, starts: Collection[int]) -> MendedLog | None:
        """Raise the floor above missing entries, if a state lies behind them. See `VersionLog.mend`."""
        check_name(key)
        try:
            self.scan(key, 0)
        except CorruptionError as error:
            damage = error
        else:
            return None
        survey = self._survey(key)
        seqnos = range(survey.floor, survey.head + 1)
        found = chain.from_iterable(
            self._entries(key, seqnos[n : n + _AT_ONCE]) for n in range(0, len(seqnos), _AT_ONCE)
        )
        missing = [seqno for seqno, data in zip(seqnos, found, strict=True) if data is None]
        first = min(
            (start for start in starts if missing and missing[-1] < start <= survey.head), default=None
        )
        if first is None:
            raise damage
        self._raise_floor(key, first)
        return MendedLog(damage.reason, first, survey.head, survey.head, entrynames.folder(key))

    def ghosts(self) -> list[Ghost]:
        """Entries that were put again after their removal; a listing of all logs. See `VersionLog.ghosts`."""
        return ghosts_in(self._bucket)

    def keys(self, prefix: str = "") -> Iterator[str]:
        """List keys in ascending order; see `VersionLog.keys`. A listing of all keys that were ever there."""
        check_prefix(prefix)
        gone = {info.key.removeprefix(GONE) for page in self._bucket.list(GONE) for info in page}
        folders = (folder for folder in self._bucket.folders(LOGS) if folder not in gone)
        keys = sorted(folder.replace("~", "/") for folder in folders)
        return iter([key for key in keys if is_object(key) and key.startswith(prefix)])

    def close(self) -> None:
        """Close the bucket."""
        self._bucket.close()

    def _judged(self, key: str, seqno: int, data: bytes, *, is_new: bool) -> bool | None:
        """Whether an entry is in, after its put was answered; None if nothing is there.

        SUBTLE: that the put made the object does not say that it won: the entry may have been removed since
        another writer put it. And that it was refused does not say that it lost: it may be there itself.
        """

        def judge() -> bool | None:
            there = data if is_new else self._entries(key, [seqno])[0]
            if there is not None and not self._stayed(key, seqno):
                raise OutcomeUnknown(
                    f"entry {seqno} of {key!r} may have been in: it is below the floor by now"
                )
            return None if there is None else there == data

        return self._after_write(judge)

    def _after_write(self, work: Callable[[], T]) -> T:
        """Finish a call that has written something. It cannot say any more that it had no effect."""
        try:
            return work()
        except StoreUnavailable as error:
            raise OutcomeUnknown(f"{error}; an earlier request of this call was made") from error

    def _stayed(self, key: str, seqno: int, free: int | None = None) -> bool:
        """Whether no entry from `seqno` on was removed before this call began. At most one listing.

        SUBTLE: call it after the requests whose answers depend on it. And a key is deleted with its newest
        entry, once that is older than the grace: a young look has seen that entry. So if a seqno seems `free`
        up to which entries were seen, the key may have been deleted since the look.
        """
        look = self._fresh(key, seqno)
        is_known = look is not None and (free is None or look.seen < free)
        return is_known or self._survey(key).floor <= seqno

    def _fresh(self, key: str, seqno: int) -> _Look | None:
        """A look that is young enough, and tells of this seqno."""
        look = self._looks.get(key)
        if look is None or seqno < look.low or self._since(look.at) >= self._grace_s / 2:
            return None
        return look

    def _look(self, key: str) -> _Look:
        return self._looks.get(key, _Look(LAST, -1, (float("-inf"), float("-inf"))))

    def _remember(self, key: str, look: _Look) -> None:
        old = self._looks.pop(key, look)
        newest = max(old, look, key=lambda one: one.at)
        self._looks[key] = replace(newest, seen=max(old.seen, look.seen))
        if len(self._looks) > self._looks_max:
            for forgotten in list(self._looks)[: self._looks_max // 2]:
                self._looks.pop(forgotten, None)

    def _now(self) -> tuple[float, float]:
        return self._clock.monotonic_s(), self._clock.now_ms() / 1000

    def _since(self, at: tuple[float, float]) -> float:
        """The longest time in seconds that may have passed: a clock may stand still or be set back."""
        return max(now - then for now, then in zip(self._now(), at, strict=True))

    def _survey(self, key: str) -> _Survey:
        """List the floors and the newest entries of a key. One request, if there are few floors.

        SUBTLE: a listing may miss a floor that was raised while it ran, and also the one before if that was
        removed while it ran. That takes a grace, and such a listing is made again.

        Raises:
            CorruptionError: the newest entries are lost.
        """
        for _ in range(_TRIES):
            at = self._now()
            survey = self._surveyed(key)
            is_slow = self._since(at) > self._grace_s
            is_whole = survey.floor == LAST or survey.head >= survey.floor or survey == _NOTHING
            if is_whole and not is_slow:
                self._remember(key, _Look(survey.floor, survey.head if survey.is_there else -1, at))
                return survey
        if is_slow:
            raise StoreUnavailable(f"listings of {key!r} take longer than the grace of {self._grace_s} s")
        # There was an entry as great as the floor, and only a greater floor removes it.
        message = f"its log ends at entry {survey.head}, but entry {survey.floor} was there: the rest is lost"
        raise CorruptionError(key, message)

    def _surveyed(self, key: str) -> _Survey:
        floor = 0
        for info in self._listed(entrynames.folder(key)):
            kind, seqno = parsed(key, info.key)
            if kind == ENTRIES:
                return _Survey(floor, info, seqno)
            floor = max(floor, seqno)
        return replace(_NOTHING, floor=floor)

    def _listed(self, prefix: str) -> Iterator[ObjectInfo]:
        return chain.from_iterable(self._bucket.list(prefix))

    def _all(self, key: str, first: int, end: int) -> list[Entry] | None:
        """The entries `[first, end)`, which were there; None if one of them is below the floor by now."""
        opened = [entry for entry in self._opened.pop(key, ()) if first <= entry.seqno < end]
        # These were read before the look below, as those that are read now are.
        found: list[Entry] = opened if len(opened) == end - first else []
        for start in range(first + len(found), end, _AT_ONCE):
            seqnos = range(start, min(end, start + _AT_ONCE))
            for seqno, data in zip(seqnos, self._entries(key, seqnos), strict=True):
                if data is None:
                    if self._survey(key).floor > first:
                        return None
                    raise CorruptionError(
                        f"{key}@{seqno}", "this entry is missing, and those around it are there"
                    )
                found.append(Entry(seqno, data))
        return found if self._stayed(key, first) else None

    def _entries(self, key: str, seqnos: Sequence[int]) -> list[bytes | None]:
        return self._bucket.get_all([entrynames.entry(key, seqno) for seqno in seqnos])

    def _raise_floor(self, key: str, seqno: int) -> None:
        """Raise the floor, unless it is as great. SUBTLE: a put may be refused though nothing is there."""
        if self._bucket.put_new(entrynames.floor(key, seqno), b""):
            return
        for attempt in range(_TRIES):
            if self._after_write(lambda: self._survey(key).floor) >= seqno:
                return
            self._clock.sleep(_PAUSE_S * 2**attempt)
            if self._after_write(lambda: self._bucket.put_new(entrynames.floor(key, seqno), b"")):
                return
        raise OutcomeUnknown(f"floor {seqno} of {key!r} was refused {_TRIES} times, and is not there")

    def _removed(self, key: str) -> int:
        """Remove entries below a floor that is older than the grace, and the floors below it."""
        floors = {
            parsed(key, info.key)[1]: info.modified_ms
            for info in self._listed(entrynames.folder(key) + FLOORS)
        }
        # When the newest floor was raised: it cannot be earlier now. All by the clock of the store. A listing
        # that takes longer than the grace may show no floor at all.
        now_ms = max(floors.values(), default=0)
        old = [floor for floor, raised_ms in floors.items() if now_ms - raised_ms >= self._grace_s * 1000]
        safe = max(old, default=0)
        removed = 0
        for page in self._bucket.list(entrynames.folder(key) + ENTRIES):
            names = [info.key for info in page if parsed(key, info.key)[1] < safe]
            self._bucket.delete(names)
            removed += len(names)
        self._bucket.delete([entrynames.floor(key, floor) for floor in floors if floor < safe])
        return removed

    def _clear(self, key: str) -> None:
        """Remove the entries of a deleted key, and note that nothing is left."""
        last = entrynames.floor(key, LAST)
        for page in self._bucket.list(entrynames.folder(key)):
            self._bucket.delete([info.key for info in page if info.key != last])
        self._bucket.put(entrynames.gone(key), b"")
