"""Children that work on one lake, and the parent's books of what they acknowledged."""

import subprocess
import sys
import threading
import time
from collections import Counter

import kills_child
from kills_child import CONFIG, SCHEMA, updates_of

import tidelake
from tidelake.errors import HistoryCompacted
from tidelake.model.frontier import Frontier
from tidelake.state.invariants import check_state
from tidelake.testing.oracle import Oracle

PATIENCE_S = 60.0


class Child:
    """One process, with a thread that reads what it tells, so that it never waits for us."""

    def __init__(self, lake, kind, name):
        self.kind, self.name, self.told = kind, name, []
        command = [sys.executable, kills_child.__file__, str(lake), kind, name]
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
    """

    def __init__(self, place, works):
        self.place = place
        self.acknowledged = {name: -1 for kind, name in works if kind == "append"}
        self.kills, self.errors = Counter(), []
        self._oracle = Oracle(Frontier.of(1), Frontier.of(0))
        self._entered = dict.fromkeys(self.acknowledged, -1)
        with tidelake.open(place, config=CONFIG) as lake:
            lake.create("c", SCHEMA, key=["id"])
        self.children = [Child(place, kind, name) for kind, name in works]

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
        self.children.append(Child(self.place, child.kind, child.name))

    def kill_all(self):
        for child in list(self.children):
            self.kill(child)

    def check(self):
        """All that was acknowledged is in once, and nothing else; the state keeps its rules."""
        with tidelake.open(self.place, config=CONFIG) as lake:
            c = lake.collection("c")
            state, found = _consistent(c)
        check_state(state)
        running = {child.name for child in self.children if child.kind == "append"}
        for name, acknowledged in self.acknowledged.items():
            last = state.writers[name].sequence if name in state.writers else None
            last = -1 if last is None else last
            assert acknowledged <= last
            assert name in running or last <= acknowledged + 1
            for number in range(self._entered[name] + 1, last + 1):
                self._oracle.append(
                    [(row, 0, diff) for row, diff in updates_of(name, number)], self._oracle.upper
                )
            self._entered[name] = max(self._entered[name], last)
        assert found == self._oracle.snapshot(0)

    def check_at_rest(self):
        """The same, with nobody at work; then maintenance brings the collection to rest."""
        self.kill_all()
        self.check()
        time.sleep(CONFIG.merge_claim_s)
        with tidelake.open(self.place, config=CONFIG) as lake:
            c = lake.collection("c")
            c.advance_since(c.last_time())
            assert c.maintain().complete
            state = c.state()
            assert state.spine.totals.runs <= 1
            assert not state.claims and not state.chunks
        self.check()

    def figures(self):
        """One line for the end of the test run."""
        kills = ", ".join(f"{count} of {kind}" for kind, count in sorted(self.kills.items()))
        appends = sum(last + 1 for last in self.acknowledged.values())
        return f"{self.kills.total()} processes killed ({kills}); {appends:,} appends acknowledged, none lost"


def _consistent(c):
    """A state, and the contents as of its last time: others may be at work."""
    while True:
        state = c.state()
        if state.upper == Frontier.of(0):
            return state, Counter()
        try:
            read = c.snapshot(state.upper.just_before().elements[0]).read_all()
        except HistoryCompacted:
            continue
        rows = zip(read["id"].to_pylist(), read["v"].to_pylist(), strict=True)
        return state, Counter(dict(zip(rows, read["_diff"].to_pylist(), strict=True)))
