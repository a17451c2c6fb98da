"""Children that work on one lake, and the parent's books of what they acknowledged."""

import itertools
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import kills_child
from kills_child import CONFIG, FAR, SCHEMA, contents_of, drop_others
from places import Place

import inside
from tidelake.errors import CollectionDropped, CollectionNotFound, HistoryCompacted, LeaseExpired
from tidelake.model import names
from tidelake.model.frontier import Frontier
from tidelake.shard.care.partchecks import named_parts
from tidelake.state.core.invariants import check_state
from tidelake.state.core.state import FIRST
from tidelake.state.life.copying import WRITER as COPY_WRITER
from tidelake.store.local import LocalBlobStore
from tied_process import tied

PATIENCE_S = 200.0
# What the killed leave behind, and others remove.
LEAKS = {
    "old-garbage",
    "leaked-part",
    "leaked-rollup",
    "half-dropped",
    "unfinished-shard",
    "unfinished-fork",
    "unknown-shard",
}


class Child:
    """One process, with a thread that reads what it tells, so that it never waits for us."""

    def __init__(self, place, kind, name):
        self.kind, self.name, self.told = kind, name, []
        command = tied(sys.executable, kills_child.__file__, place.text, kind, name)
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        for line in self._process.stdout:
            if line.endswith("\n"):  # the kill may have cut the last one short
                self.told.append(line.split(maxsplit=3))

    def count(self, word):
        return sum(1 for line in list(self.told) if line[0] == word)

    def await_more(self, word, more=1):
        """Wait until it has told `word` so many times more."""
        wanted, deadline_s = self.count(word) + more, time.monotonic() + PATIENCE_S
        while self.count(word) < wanted:
            assert self._process.poll() is None, f"{self.kind} ended by itself: {self.told[-3:]}"
            assert time.monotonic() < deadline_s, f"{self.kind} tells no {word!r}: {self.told[-3:]}"
            time.sleep(0.002)

    def await_ready(self):
        if not self.count("ready"):
            self.await_more("ready")

    def end(self):
        """Kill it, if it is still there; how it ended."""
        self._process.kill()
        self._reader.join()
        self._process.stdout.close()
        return self._process.wait()

    def kill(self):
        assert self.end() == -9, f"{self.kind} ended by itself: {self.told[-3:]}"


class Crew:
    """The children, of which some are killed and succeeded, and what must be in the collection.

    A context: none of them outlives it.

    Args:
        place: where the lake is, as this process reaches it.
        works: the kind and the name of each child.
        places: how children reach the lake, in turn; default: as this process does.
    """

    def __init__(self, place, works, places=()):
        self.place = Place.of(place)
        self.config = CONFIG if self.place.is_local else FAR
        self._places = itertools.cycle(places or [self.place])
        self.acknowledged = {name: -1 for kind, name in works if kind == "append"}
        self.kills, self.done, self.errors = Counter(), Counter(), []
        with self.place.open(self.config) as lake:
            lake.create("c", SCHEMA, key=["id"])
        self.children = [Child(next(self._places), kind, name) for kind, name in works]

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        for child in self.children:
            child.end()

    def kill(self, child):
        """Kill one, and enter what it had told into the books."""
        self.children.remove(child)
        child.kill()
        self.kills[child.kind] += 1
        self.errors += [line for line in child.told if line[0] == "error"]
        for word, *numbers in child.told:
            self.done[word] += int(numbers[0]) if word == "gone" else 1
        if child.kind == "append":
            self._enter(child)

    def _enter(self, child):
        # An append that was under way when its process was killed may be in without having been told.
        told = self.acknowledged[child.name]
        for word, number, *_ in (line for line in child.told if line[0] != "error"):
            assert int(number) == told + 1 or (word == "ready" and int(number) == told), child.told
            told = int(number)
        self.acknowledged[child.name] = told

    def succeed(self, child):
        """Start a successor of the same kind and name."""
        self.children.append(Child(next(self._places), child.kind, child.name))

    def await_work(self, *words):
        """Wait until each writer has appended twice more, and each of the words was told by a process."""
        for child in self.children:
            child.await_ready()
            if child.kind == "append":
                child.await_more("in", 2)
        deadline_s = time.monotonic() + PATIENCE_S
        while left := [word for word in words if not self._count(word)]:
            assert time.monotonic() < deadline_s, f"no process tells {left}"
            time.sleep(0.01)

    def _count(self, word):
        return self.done[word] + sum(child.count(word) for child in self.children)

    def kill_all(self):
        for child in list(self.children):
            self.kill(child)

    def check(self):
        """All that was acknowledged is in once, and nothing else; nothing is damaged; so are the copies.

        Of the rest there are at most leaks.
        """
        with self.place.open(self.config) as lake:
            last = self._check_contents(lake.collection("c"))
            for name in lake.list():
                if name.startswith("fork "):
                    with suppress(CollectionDropped, CollectionNotFound):
                        self._check_fork(lake.collection(name))
            check_whole(lake)
        running = {child.name for child in self.children if child.kind == "append"}
        for name, acknowledged in self.acknowledged.items():
            assert acknowledged <= last.get(name, -1)
            assert name in running or last.get(name, -1) <= acknowledged + 1
        if self.place.has_copies():
            with self.place.copies.open(self.config) as copies:
                for name in copies.list():
                    with suppress(CollectionDropped, CollectionNotFound):
                        self._check_contents(copies.collection(name))
                check_whole(copies)

    def _check_contents(self, collection):
        """The contents are those of the appends that the state knows; the last one of each writer."""
        state, found = consistent(collection)
        check_state(state)
        known = {name: record.sequence for name, record in state.writers.discard(COPY_WRITER).items()}
        last = {name: sequence for name, sequence in known.items() if sequence is not None}
        assert last.keys() <= self.acknowledged.keys()
        assert found == Counter(row for name in last for row in contents_of(name, last[name]))
        return last

    def _check_fork(self, fork):
        """Its contents are those of some appends of each writer; it knows none of the writers."""
        state, found = consistent(fork)
        check_state(state)
        last = Counter()
        for number, name in found:
            last[name] = max(last[name], number // 1000)
        assert found == Counter(row for name in last for row in contents_of(name, last[name]))

    def check_at_rest(self):
        """The same, with no process at work; then maintenance brings the lake to rest, without any leak."""
        self.kill_all()
        self.check()
        with self.place.open(self.config) as lake:
            drop_others(lake, "drop")
            drop_others(lake, "fork")
            bring_to_rest(lake)
            state = lake.collection("c").state()
            assert state.spine.totals.runs <= 1
            assert not state.claims and not state.chunks and not state.holds and not state.forks
            _check_no_leak(lake, self.place)
        if self.place.has_copies():
            with self.place.copies.open(self.config) as copies:
                bring_to_rest(copies)
                _check_no_leak(copies, self.place.copies)
        self.check()

    def figures(self):
        """One line for the end of the test run."""
        kills = ", ".join(f"{count} of {kind}" for kind, count in sorted(self.kills.items()))
        appends = sum(last + 1 for last in self.acknowledged.values())
        done = self.done
        return (
            f"{self.kills.total()} processes killed ({kills}); {appends:,} appends acknowledged, none lost; "
            f"{done['gone']:,} objects and log entries collected, {done['dropped']:,} collections dropped, "
            f"{done['copied']:,} copies and {done['forked']:,} forks made, nothing leaked"
        )


def consistent(c):
    """A state, and the contents as of its last time: others may be at work."""
    while True:
        state = c.state()
        if state.dropped:
            raise CollectionDropped(c.name)
        if state.upper == Frontier.of(0):
            return state, Counter()
        try:
            read = c.snapshot(state.upper.just_before().elements[0]).read_all()
        except (HistoryCompacted, LeaseExpired):
            continue
        rows = zip(read["id"].to_pylist(), read["v"].to_pylist(), strict=True)
        return state, Counter(dict(zip(rows, read["_diff"].to_pylist(), strict=True)))


def check_whole(lake, leaks=LEAKS):
    # Drops, forks and copies take rows away that never came. What lands late in a log has no effect.
    found = [
        str(one) for one in lake.fsck().findings if one.kind not in {*leaks, "negative-rows", "ghost-entry"}
    ]
    assert not found


def bring_to_rest(lake):
    """Maintain until a check has nothing to tell: the killed left claims, holds and uploads to grow old."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        lake.collect()  # first: what is half dropped is in the list, and cannot be opened
        complete = True
        for name in lake.list():
            c = lake.collection(name)
            # A copy may be of before the first append.
            if c.upper != Frontier.of(0):
                c.advance_since(c.last_time())
            complete &= c.maintain().complete
            c.collect(thorough=True)
        # What landed late in a log stays until a later truncation.
        findings = [one for one in lake.fsck().findings if one.kind != "ghost-entry"]
        left = _beside(lake)
        # A log in an object store goes one grace after its last entry.
        logs = {*inside.stores(lake).log.keys()} - {state.shard_id for state in _states(lake)}
        if complete and not findings and not left and not logs:
            return
        assert time.monotonic() < deadline_s, (complete, findings, left, logs)
        time.sleep(0.1)


def _states(lake):
    return [
        inside.shard(inside.catalog(lake)).state(),
        *(lake.collection(name).state() for name in lake.list()),
    ]


def _beside(lake):
    """Objects that no state names."""
    states = _states(lake)
    named = {part.name for state in states for part in named_parts(state)}
    named |= {
        names.rollup(state.shard_id, state.rollup.seqno, state.rollup.id)
        for state in states
        if state.rollup != FIRST
    }
    return {info.name for info in inside.stores(lake).blobs.list()} - named


def _check_no_leak(lake, place):
    """No file of a store, whatever its name is, but those that the states need; and no other logs."""
    if place.is_local:
        blobs = LocalBlobStore(str(Path(place.url) / "blobs"))
        # What was half written is removed by the next process that writes.
        blobs.put("last", b"")
        blobs.delete("last")
        files = {str(file.relative_to(blobs.root)) for file in Path(blobs.root).rglob("*") if file.is_file()}
        assert files == {info.name for info in blobs.list()}
    assert {*inside.stores(lake).log.keys()} == {state.shard_id for state in _states(lake)}
