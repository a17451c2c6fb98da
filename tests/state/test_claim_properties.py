"""Claims under every interleaving: a few runners, and a clock that jumps."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shard_states import F, Shard, part, run
from writes import append

from tidelake.model.batch import Run
from tidelake.state.core.commands import Commit
from tidelake.state.life.holds import advance_since
from tidelake.state.spine.merging import Fit, MergeResult, chosen, digest, request
from tidelake.state.upkeep.claims import record_chunk, taken
from tidelake.state.upkeep.maintenance import apply_merge, claim_merge, collapse_levels
from tidelake.state.write.write import Exactly
from tiers import examples

LEASE_MS = 10
CUTS = (b"a", b"b")


class Runner:
    """What one process remembers: its claim, the recorded chunks that it knows, and its name."""

    def __init__(self, name):
        self.name, self.claim, self.chunks = name, None, {}


class World:
    def __init__(self):
        self.shard, self.now_ms, self.made = Shard(), 10, 0
        self.runners = [Runner(name) for name in "abc"]
        self.reported: set[str] = set()
        for _ in range(3):
            self.append()

    @property
    def state(self):
        return self.shard.state

    def parts(self, count):
        self.made += count
        return tuple(part(f"m{self.made - i}", diff_sum=0) for i in range(count))

    def append(self, *_):
        (upper,) = self.state.upper.elements
        self.made += 1
        runs = tuple(run(f"p{self.made}.{i}", upper, upper, rows=5, diff_sum=0) for i in range(3))
        self.shard.do(append, runs, Exactly(F(upper), F(upper + 1)))
        self.shard.do(collapse_levels)

    def since(self, *_):
        self.shard.do(advance_since, F(max(self.state.upper.elements[0] - 1, 0)))

    def sleep(self, _, by, *__):
        self.now_ms += by * 4

    def window(self, first, last):
        """Some neighbours, and if it is one member perhaps only some of its runs."""
        members = list(self.state.spine)
        first %= len(members)
        window = members[first : first + 1 + last % (len(members) - first)]
        some = len(window) == 1 and len(window[0].batch.runs) > 2 and last % 2
        return request(window, (0, 2) if some else ())

    def claim(self, runner, first, last):
        asked = self.window(first, last)
        live = [
            c for c in self.state.claims.values() if c.runner != runner.name and self.now_ms < c.expires_ms
        ]
        blocked = any(c.id.overlaps(asked.id) for c in live)
        others = taken(self.state, self.now_ms, runner.name)
        assert any(id_.overlaps(asked.id) for id_ in others) is blocked
        before = self.state
        claimed = self.shard.do(
            claim_merge, asked, runner=runner.name, lease_ms=LEASE_MS, cuts=CUTS, now_ms=self.now_ms
        ).result
        assert (claimed.claim is None) is blocked
        if claimed.claim is None:
            assert self.state is before
            return
        old = before.claims.get(claimed.claim.name)
        if old and (old.id, old.positions, old.inputs) == (asked.id, asked.positions, asked.inputs):
            kept = {k: v for k, v in before.chunks.items() if k.partition("/")[0] == old.name}
            assert {claimed.claim.chunk(i): parts for i, parts in claimed.chunks} == kept
            assert (claimed.claim.since, claimed.claim.cuts) == (old.since, old.cuts)
        else:
            assert claimed.chunks == () and claimed.claim.since == self.state.since
        assert self.state.claims[claimed.claim.name] == claimed.claim
        assert claimed.claim.expires_ms == self.now_ms + LEASE_MS
        runner.claim, runner.chunks = claimed.claim, dict(claimed.chunks)
        self.check_orphans(before)

    def record(self, runner, index, count):
        if runner.claim is None:
            return
        index %= len(CUTS) + 1
        before, held = self.state, self.state.claims.get(runner.claim.name)
        parts = self.parts(count % 3)
        outcome = self.shard.do(
            record_chunk, runner.claim, index, parts, lease_ms=LEASE_MS, now_ms=self.now_ms
        )
        mine = held is not None and held.runner == runner.name and held.inputs == runner.claim.inputs
        fresh = runner.claim.chunk(index) not in before.chunks
        if not mine:
            assert outcome.result is False
        if outcome.result and fresh:
            assert isinstance(outcome, Commit)
            runner.chunks[index] = parts
            assert self.state.claims[runner.claim.name].expires_ms >= self.now_ms + LEASE_MS
        else:
            assert self.state is before

    def apply(self, runner, *_):
        """A runner's own result, from known and new chunks, with or without the claim."""
        claim = runner.claim
        if claim is None:
            return
        parts = [p for i in range(len(CUTS) + 1) for p in runner.chunks.get(i) or self.parts(1)]
        self.place(MergeResult(claim.id, claim.positions, claim.inputs, claim.since, Run(tuple(parts))))

    def intrude(self, _, first, last):
        """A result of a process that has claimed nothing."""
        asked = self.window(first, last)
        output = Run(self.parts(1)) if last % 3 else None
        self.place(MergeResult(asked.id, asked.positions, asked.inputs, self.state.since, output))

    def place(self, result):
        before = self.state
        fitting = before.spine.tiling(result.id) is not None and (
            digest(chosen(list(before.spine.range(result.id)), result.positions)) == result.inputs
        )
        applied = self.shard.do(apply_merge, result).result
        if self.state is before:
            assert not fitting or applied is not Fit.NO_MATCH
        else:
            assert fitting and not any(c.id.overlaps(result.id) for c in self.state.claims.values())
        self.check_orphans(before)

    def check_orphans(self, before):
        """Recorded parts that no state names any more are garbage; named parts are not."""
        recorded = {p.name for parts in before.chunks.values() for p in parts}
        named = {p.name for parts in self.state.chunks.values() for p in parts} | set(self.shard.names)
        told = self.shard.garbage & recorded
        assert told == recorded - named
        self.reported |= set(told)

    def check(self):
        assert not self.reported & set(self.shard.names)
        assert not self.reported & {p.name for parts in self.state.chunks.values() for p in parts}


STEPS = st.tuples(
    st.sampled_from(["claim", "claim", "record", "record", "apply", "intrude", "sleep", "append", "since"]),
    st.integers(0, 2),
    st.integers(0, 5),
    st.integers(0, 5),
)


@pytest.mark.promise(
    "Claims keep runners from doing the same work; no result depends on them",
    rule="`claims-apart`, `chunk-of-claim`, `state/upkeep/maintenance.py`",
    also=[
        "state/test_claim_properties.py",
        "state/spine/claims.txt",
        "shard/upkeep/test_maintain.py::test_a_merge_that_is_under_way_is_left_alone_until_its_claim_expires",
        "shard/upkeep/test_maintain.py::test_a_runner_whose_claim_was_taken_over_deletes_what_it_made",
    ],
)
@settings(max_examples=examples(300))
@given(st.lists(STEPS, max_size=40))
def test_claims_are_apart_chunks_survive_and_orphans_are_told(steps):
    world = World()
    for name, runner, a, b in steps:
        # Commands check every rule of the state, `claims-apart` and `part-named-once` among them.
        getattr(world, name)(world.runners[runner], a, b)
        world.check()


def test_a_zombie_that_applies_what_it_recorded_leaves_its_parts_out_of_the_orphans():
    world = World()
    first, second, _ = world.runners
    world.claim(first, 0, 2)
    world.record(first, 0, 1)
    world.now_ms += LEASE_MS
    world.claim(second, 0, 2)
    world.record(second, 1, 1)
    assert second.chunks[0] == first.chunks[0]
    world.apply(first)
    assert world.reported == {second.chunks[1][0].name}
    world.record(second, 2, 1)
    world.apply(second)
    assert first.chunks[0][0].name in world.shard.names
