"""The rules at opening accept what the rules of a step accept: random, stale and mutated commands."""

import importlib
import inspect
import pkgutil
import re
from collections import Counter
from dataclasses import fields, replace
from functools import partial

import pytest
from pyrsistent import pmap
from shard_states import EAGER, SCHEMA, F, indexed_again, part

import tidelake.state
from tidelake.errors import InternalError
from tidelake.model import names
from tidelake.model.batch import HollowBatch, Run
from tidelake.model.bounds import Bounds
from tidelake.model.frontier import Frontier
from tidelake.model.schema import Column, DataType, Schema
from tidelake.model.time import TimeDomain
from tidelake.state.core import codec, commands, owned
from tidelake.state.core.agreed import NAMES, Agreed
from tidelake.state.core.commands import Commit
from tidelake.state.core.decisions import GroupView
from tidelake.state.core.edits import Delta, Edits, apply, stepped
from tidelake.state.core.erasures import Erasure
from tidelake.state.core.formats import FIRST, NEWEST
from tidelake.state.core.invariants import check_state, check_step
from tidelake.state.core.state import Owned, Retention, Rollup
from tidelake.state.core.tokens import DAY_MS
from tidelake.state.group import applying, awaiting, deciding, joining, memberwriters
from tidelake.state.group.deciding import Intent, Share
from tidelake.state.life import agreeing, collecting, dropping, erasing, forking, holds, schemas
from tidelake.state.spine.merging import MergeRequest, MergeResult, request, requests
from tidelake.state.spine.spine import SpineId
from tidelake.state.spine.staged import Awaited
from tidelake.state.upkeep import basing, claims, maintenance, slices
from tidelake.state.write import staging
from tidelake.state.write.idempotency import IdempotencyKey
from tidelake.state.write.staging import Seen, Split
from tidelake.state.write.write import (
    Addition,
    AtCommit,
    Exactly,
    FromUpper,
    OpenTimes,
    UpTo,
    Write,
    already_in,
    commit,
    expected,
)
from tiers import rounds

WIDER = Schema(SCHEMA.key, (Column(1, "v", DataType("string")),))
GROUP = "g"


def commands_of_the_source():
    """The names of all functions that decide what becomes of a state."""
    found = set()
    for info in pkgutil.walk_packages(tidelake.state.__path__, "tidelake.state."):
        module = importlib.import_module(info.name)
        for name, one in inspect.getmembers(module, inspect.isfunction):
            returns = str(inspect.signature(one).return_annotation)
            if (not name.startswith("_") and "Outcome[" in returns) or "Commit[" in returns:
                found.add(f"{one.__module__.rpartition('.')[2]}.{name}")
    return {name for name in found if not name.partition(".")[2].startswith("_")}


def format_of(record):
    """The format that the head of a record tells."""
    return int(record.split(b" ", 2)[1])


class World:
    """A shard that is its own group, and all that was ever asked of it."""

    def __init__(self, rng):
        self.rng = rng
        # A lake of an earlier version, now and then, which may be upgraded.
        format_ = NEWEST - 1 if rng.random() < 0.3 else NEWEST
        agreed = Agreed(garbage_age_ms=10, upload_age_ms=30, token_age_ms=0, format=format_)
        self.state = commands.initial("s", TimeDomain("counter"), SCHEMA, 5, agreed)
        if rng.random() < 0.2:
            self.state = owned.with_owner(self.state, Owned("o", "definition"), F(rng.choice((0, 3))))
        self.now_ms, self.made = 10, 0
        self.asked, self.edits, self.parts, self.splits = [], [Edits()], [], []
        self.counts = Counter()

    # --- What may be asked ---

    def part(self, first, last):
        """A new part, or, now and then, one that was made before, perhaps long ago."""
        rng = self.rng
        if self.parts and rng.random() < 0.15:
            return rng.choice(self.parts)
        self.made += 1
        at = max(0, self.state.seqno - rng.choice((0, 0, 0, 1, 9)))
        inline = b"rows" if rng.random() < 0.4 else None
        rows = rng.randint(1, 4)
        name = names.part("s" if rng.random() < 0.97 else "other", at, f"{self.made:032x}")
        made = part(name, first, last, rows=rows, diff_sum=rng.randint(-rows, rows), inline=inline)
        self.parts.append(made)
        return made

    def runs(self, first, last):
        rng = self.rng
        pairs = [
            sorted((rng.randint(first, last), rng.randint(first, last))) for _ in range(rng.randint(0, 2))
        ]
        made = {one.name: one for one in (self.part(*pair) for pair in pairs)}
        return tuple(Run((one,)) for one in made.values())

    @property
    def at(self):
        """The upper as a number."""
        return next(iter(self.state.upper), 10**6)

    def offered(self, runs):
        return tuple(one for run in runs for one in run.parts) if self.rng.random() < 0.5 else ()

    def claim(self):
        rng = self.rng
        return (
            IdempotencyKey(rng.choice(("a", "b", "token:a")), rng.randint(0, 2), rng.randint(0, 5))
            if rng.random() < 0.3
            else None
        )

    def append(self):
        rng, at = self.rng, self.at
        end = at + rng.randint(0, 3)
        given = Exactly(F(at), F(end)), UpTo(F(max(0, at - 2)), F(end)), FromUpper(F(at), F(end))
        when = rng.choice((*given, AtCommit(at)))
        # What gets its time at the commit was written at the floor of that.
        written = isinstance(when, AtCommit)
        runs = (Run((self.fresh(at, at),)),) if written else self.runs(at, max(at, end - 1))
        seen = Seen(max(0, self.state.seqno - rng.randint(0, 2))) if rng.random() < 0.2 else None
        write = Write(runs, when, self.claim(), seen, self.offered(runs), as_now=rng.random() < 0.2)
        write = replace(write, owner=self.writes_as())
        return partial(commit, write=write)

    def stage(self):
        runs = self.runs(self.at, self.at + 8)
        seal_to = F(self.at + self.rng.randint(0, 4)) if self.rng.random() < 0.3 else None
        offered = self.offered(runs)
        when = OpenTimes(self.checked(runs), seal_to)
        return partial(commit, write=Write(runs, when, self.claim(), offered=offered))

    def writes_as(self):
        """The owner of the shard, mostly, if it has one."""
        return "" if self.state.owned is None or self.rng.random() < 0.2 else self.state.owned.by

    def checked(self, runs):
        """A frontier that no time of some runs is before."""
        return F(min([self.at, *(one.time_lower for run in runs for one in run.parts)]))

    def seal(self):
        return partial(commit, write=Write((), OpenTimes(F(0), F(self.at + self.rng.randint(-1, 4)))))

    def expected(self):
        return partial(expected, write=Write((), Exactly(F(self.at), F(self.at + 1))))

    def already_in(self):
        return partial(already_in, idempotency=IdempotencyKey("a", 0, 0))

    def open_writer(self):
        name = self.rng.choice(("a", "b", "token:a", "token:b"))
        return partial(commands.open_writer, name=name, resume=self.rng.random() < 0.3)

    def forget_tokens(self):
        if self.rng.random() < 0.2:
            self.now_ms += DAY_MS
        return partial(collecting.forget_tokens, names_max=self.rng.randint(1, 3))

    def add_rollup(self):
        seqno = max(0, self.state.seqno - self.rng.randint(0, 3))
        self.made += 1
        return partial(commands.add_rollup, rollup=Rollup(seqno, f"{self.made:032x}", 9, 1))

    def split(self):
        state, rng = self.state, self.rng
        if rng.random() < 0.5 and len(state.staged) > 1:
            chosen = tuple(one.name for one in list(state.staged)[:2])
            upper = state.drained
        else:
            chosen, upper = staging.splits(state), state.upper
        diff = sum(one.diff_sum for one in staging.staged_parts(state, chosen))
        low, high = next(iter(state.drained), 0), next(iter(upper), 0)
        below = (Run((replace(self.fresh(low, high - 1), diff_sum=0),)),) if low < high else ()
        above = (Run((replace(self.fresh(high, high + 6), diff_sum=diff),)),)
        if not chosen:
            below, above = (), ()
        return partial(staging.drain, split=Split(chosen, upper, below, above, self.state.seqno))

    def fresh(self, first, last):
        """A part that was not offered yet."""
        self.made += 1
        name = names.part("s", self.state.seqno, f"{self.made:032x}")
        return part(name, first, max(first, last), inline=b"rows" if self.rng.random() < 0.3 else None)

    def request(self) -> MergeRequest:
        found = list(requests(self.state.spine, EAGER))
        return self.rng.choice(found) if found else MergeRequest(SpineId(0, 1), (), "", 0, 0, 0)

    def merged(self, asked, output):
        inside = self.state.spine.tiling(asked.id) or []
        kept = [one for member in inside for one in member.batch.parts()]
        diff = sum(one.diff_sum for one in kept)
        return replace(output, diff_sum=diff, rows=1), kept

    def apply_merge(self):
        asked = self.request()
        output, kept = self.merged(asked, self.fresh(0, self.at))
        made = Run((output,)) if self.rng.random() < 0.8 else None
        if kept and self.rng.random() < 0.2:
            made = Run(tuple(kept[:1]))
        return partial(
            maintenance.apply_merge,
            result=MergeResult(asked.id, asked.positions, asked.inputs, self.state.since, made),
        )

    def cut_slices(self):
        return partial(slices.cut_slices, least=self.rng.randint(1, 8))

    def cut(self):
        """A slice is cut at any times, asked for as it is or as it was."""
        rng, spine = self.rng, self.state.spine
        held = [one for one in spine.slices if spine.members[one.id.lo].id == one.id]
        if not held:
            return self.cut_slices()
        member = spine.members[rng.choice(held).id.lo]
        times = tuple(sorted({rng.randint(0, self.at) for _ in range(rng.randint(1, 3))}))
        diff = member.batch.diff_sum or 0
        pieces = [None] * (len(times) + 1)
        if member.batch.runs:
            bounds, n = member.batch.bounds, rng.randrange(len(pieces))
            (first, *_) = (*bounds.lower.join(bounds.since), self.at)
            (end, *_) = (*bounds.upper, self.at + 1)
            edges = [first, *times, end]
            piece = self.fresh(edges[n], max(edges[n], edges[n + 1] - 1))
            pieces[n] = Run((replace(piece, diff_sum=diff),))
        inputs = request([member]).inputs
        result = MergeResult(member.id, (), inputs, self.state.since, None, times, tuple(pieces))
        return partial(maintenance.apply_merge, result=result)

    def base(self):
        """The request for a base at any boundary."""
        boundaries = [0, self.state.spine.next_id, *self.state.spine.members]
        return basing.request(self.state, self.rng.choice(boundaries), saves=self.rng.choice((0, 0, 2)))

    def add_base(self):
        asked = self.base()
        if asked is None:
            return self.cut_slices()
        diffs = [batch.diff_sum or 0 for batch in basing.inputs(self.state, asked)]
        made = replace(self.fresh(asked.base, asked.base), diff_sum=sum(diffs), rows=1)
        runs = (Run((made,)),) if asked.sources else ()
        return partial(basing.add_base, made=basing.Made(asked, runs, self.state.seqno))

    def begin_with_base(self):
        return basing.begin_with_base

    def forget_bases(self):
        return partial(basing.forget_bases, his=tuple(base.hi for base in self.state.bases)[-1:])

    def claim_base(self):
        asked = self.base()
        if asked is None:
            return self.claim_merge()
        since = F(asked.base)
        return partial(
            maintenance.claim_merge, request=asked, runner="x", lease_ms=30, cuts=(b"c",), since=since
        )

    def claim_merge(self):
        runner, cuts = self.rng.choice("xy"), self.rng.choice(((), (b"c",), (b"c", b"d")))
        return partial(maintenance.claim_merge, request=self.request(), runner=runner, lease_ms=30, cuts=cuts)

    def some_claim(self):
        held = sorted(self.state.claims.values(), key=lambda claim: claim.id)
        return self.rng.choice(held) if held else None

    def record_chunk(self):
        claim = self.some_claim()
        if claim is None:
            return self.claim_merge()
        index = self.rng.randint(0, len(claim.cuts))
        parts = tuple(self.fresh(0, self.at) for _ in range(self.rng.randint(0, 2)))
        return partial(claims.record_chunk, claim=claim, index=index, parts=parts, lease_ms=30)

    def finish_merge(self):
        """What the chunks of a claim have become takes the place of its inputs."""
        claim = self.some_claim()
        if claim is None:
            return self.claim_merge()
        parts = tuple(one for _, parts in claims.recorded(self.state, claim) for one in parts)
        if claim.base is not None:
            asked = maintenance.begun_merge(self.state, claim)
            if asked is None:
                return partial(claims.release_claim, claim=claim)
            made = basing.Made(asked, (Run(parts),) if parts else (), self.state.seqno)
            return partial(basing.add_base, made=made, claim=claim)
        made = MergeResult(
            claim.id, claim.positions, claim.inputs, claim.since, Run(parts) if parts else None
        )
        return partial(maintenance.apply_merge, result=made, claim=claim)

    def release_claim(self):
        claim = self.some_claim()
        return self.claim_merge() if claim is None else partial(claims.release_claim, claim=claim)

    def end_expired(self):
        return claims.end_expired

    def hand_over(self):
        return partial(claims.hand_over, runner=self.rng.choice("xy"))

    def exert_fuel(self):
        return partial(maintenance.exert_fuel, fuel=self.rng.randint(1, 9))

    def collapse_levels(self):
        return maintenance.collapse_levels

    def open_hold(self):
        return partial(holds.open_hold, hold_id=self.rng.choice("hi"), purpose="test", lease_ms=40)

    def renew_hold(self):
        since = F(self.rng.randint(0, self.at)) if self.rng.random() < 0.5 else None
        return partial(holds.renew_hold, hold_id=self.rng.choice("hi"), since=since)

    def pin_versions(self):
        pins = (self.rng.randint(0, self.state.seqno),)
        return partial(holds.pin_versions, hold_id=self.rng.choice("hi"), purpose="test", pins=pins)

    def unpin_versions(self):
        pins = (self.rng.randint(0, self.state.seqno),)
        return partial(holds.unpin_versions, hold_id=self.rng.choice("hi"), pins=pins)

    def extend_hold(self):
        return partial(holds.extend_hold, hold_id=self.rng.choice("hi"), slack_ms=5)

    def close_hold(self):
        return partial(holds.close_hold, hold_id=self.rng.choice("hi"))

    def end_expired_holds(self):
        return holds.end_expired_holds

    def open_critical(self):
        return partial(holds.open_critical, name="k")

    def compare_and_downgrade_since(self):
        since = F(self.rng.randint(0, self.at))
        more = {"expected_token": "", "token": "", "since": since}
        return partial(holds.compare_and_downgrade_since, name="k", **more)

    def drop_critical(self):
        return partial(holds.drop_critical, name="k")

    def advance_since(self):
        return partial(holds.advance_since, since=F(self.rng.randint(0, self.at)))

    def set_retention(self):
        return partial(holds.set_retention, retention=Retention(self.rng.choice((None, 2, 9))))

    def doom(self):
        return partial(collecting.doom, names_max=3)

    def bury(self):
        return partial(collecting.bury, names=tuple(sorted(self.state.doomed))[:2])

    def raise_floor(self):
        unnamed_max = self.rng.choice((None, self.state.seqno))
        return partial(collecting.raise_floor, unnamed_max=unnamed_max)

    def change_agreed(self):
        values = {self.rng.choice(NAMES): self.rng.randint(0, 40)}
        return partial(agreeing.change, values=values)

    def adopt_agreed(self):
        agreed = self.state.agreed
        later = replace(agreed, revision=agreed.revision + self.rng.randint(-1, 2), garbage_age_ms=7)
        return partial(agreeing.adopt, agreed=later)

    def upgrade(self):
        return agreeing.upgrade

    def told_agreed(self):
        return partial(agreeing.told, revision=self.state.agreed.revision)

    def register_schema(self):
        return partial(schemas.register_schema, schema=SCHEMA)

    def evolve(self):
        rename = {column.name: f"{column.name}x" for column in self.state.schema.key}
        how = {"schema": None, "rename": rename} if self.rng.random() < 0.3 else {"schema": WIDER}
        return partial(schemas.evolve, drop=(), **how)

    def note_fork(self):
        return partial(
            forking.note_fork,
            fork_id=self.rng.choice("fg"),
            seqno=max(0, self.state.seqno - self.rng.randint(0, 2)),
        )

    def forget_fork(self):
        return partial(forking.forget_fork, fork_id=self.rng.choice("fg"))

    def free_fork(self):
        return partial(forking.free_fork, fork_id=self.rng.choice("fg"))

    def let_go(self):
        return partial(forking.let_go, known=self.rng.random() < 0.5)

    def join(self):
        seen, owner = self.state.seqno, self.writes_as()
        return partial(joining.join, group=GROUP, admitted=self.state.joined + 1, seen=seen, owner=owner)

    def withdraw(self):
        return partial(awaiting.withdraw, transactions=frozenset((f"t{self.rng.randint(0, 4)}",)))

    def apply_decided(self):
        state, rng = self.state, self.rng
        leaving = rng.random() < 0.3
        times = {f"t{n}": rng.choice((None, self.at + 3)) for n in range(2)}
        upper = F(self.at + rng.randint(0, 5))
        view = GroupView(GROUP, 10**6, upper, state.joined, leaving, times)
        return partial(applying.apply_decided, view=view, leave={} if leaving else None)

    def catch_up(self):
        return partial(applying.catch_up, view=self.apply_decided().keywords["view"])

    def admit(self):
        return partial(joining.admit, members=self.rng.choice((("m",), ("n",), ("m", "n"))))

    def retire(self):
        return partial(joining.retire, member="m", admitted=self.admitted("m"))

    def admitted(self, member):
        known = self.state.memberships.get(member)
        return 0 if known is None else known.admitted

    def forget(self):
        gone = frozenset(sorted(self.state.decisions)[:1])
        return partial(deciding.forget, decisions=gone, members={"m": self.admitted("m")})

    def refuse(self):
        return partial(deciding.refuse, transaction=f"d{self.rng.randint(0, 9)}")

    def expire(self):
        return partial(deciding.expire, before=self.rng.randint(0, self.state.seqno))

    def decide(self):
        rng, at, claim = self.rng, self.at, self.claim()
        times = (rng.choice((0, at)), at + rng.randint(0, 3)) if rng.random() < 0.7 else None
        lower = rng.choice((None, None, self.state.upper))
        seal = rng.choice((None, F(at + rng.randint(0, 3))))
        applied = frozenset(sorted(self.state.decisions)[:1])
        share = Share(
            self.admitted("n"), F(rng.randint(0, 3)), times, lower, seal, rng.random() < 0.5, applied=applied
        )
        wanted = Intent(
            f"d{rng.randint(0, 9)}",
            self.state.seqno,
            {"n": share},
            own_times=rng.random() < 0.5,
            least=rng.choice((None, at)),
            alone=rng.random() < 0.5,
            number=None if claim is None else replace(claim, member=rng.choice(("", "n"))),
        )
        return partial(deciding.decide, wanted=wanted)

    def park(self):
        state, at = self.state, self.at
        view = GroupView(GROUP, 10**6, F(at), state.joined)
        end = at + self.rng.randint(1, 5)
        floats = at if self.rng.random() < 0.3 else None
        # Rows that wait for their time have one.
        last = end - 1 if floats is None else at
        runs = self.runs(at, last) or (Run((self.fresh(at, last),)),)
        bounds = Bounds(F(at), F(end), state.minimum)
        found = Addition(HollowBatch(bounds, runs), stays_open=self.rng.random() < 0.5, floats=floats)
        awaited = Awaited(f"t{self.rng.randint(0, 4)}", state.seqno, 0)
        more = {
            "checked": self.checked(runs),
            "given_up": frozenset((f"t{self.rng.randint(0, 4)}",)),
            "owner": self.writes_as(),
        }
        return partial(awaiting.park, view=view, awaited=awaited, found=found, **more)

    def open_member_writer(self):
        upper = F(self.rng.randint(0, 5))
        known = {"member": "n", "joined": self.admitted("n"), "record": None, "upper": upper}
        return partial(memberwriters.open_member_writer, **known, name=self.rng.choice(("a", "b", "token:a")))

    def confirm(self):
        return dropping.confirm

    def abandon(self):
        return partial(dropping.abandon, before_ms=0)

    def ask_erasure(self):
        erasure = Erasure("asked for", 1, self.now_ms, (b"\x80",))
        return partial(erasing.ask, id_=f"e{self.rng.randint(0, 9)}", erasure=erasure)

    def erase(self):
        """Some runs lose a part, or have one of fewer rows instead; what was made may be late."""
        state, rng, runs = self.state, self.rng, {}
        for _, run in erasing.runs_of(state):
            parts = run.parts
            if rng.random() < 0.3:
                fresh = replace(self.fresh(*parts[0].seen_times), rows=1, inline=parts[0].inline)
                parts = rng.choice(((), (fresh,)))
            runs[erasing.names_of(run)] = parts
        changes = any(tuple(one.name for one in parts) != old for old, parts in runs.items())
        bases = {erasing.names_of(run): changes for base in state.bases for run in base.runs}
        ids = tuple(erasing.pending(state))
        return partial(erasing.erase, made=erasing.ErasedRuns(ids, runs, bases, frozenset(state.forks)))

    def note_gone(self):
        return partial(erasing.note_gone, before=self.state.seqno)

    def drop_shard(self):
        return partial(dropping.drop_shard, force=True)

    # --- What becomes of it ---

    def command(self):
        """A new command, or one that was asked for before."""
        if self.asked and self.rng.random() < 0.2:
            return self.rng.choice(self.asked)
        kind = self.rng.choice(OFTEN if self.rng.random() < 0.6 else RARE)
        asked = getattr(self, kind)()
        self.asked.append(asked)
        return asked

    def step(self):
        self.now_ms += self.rng.choice((0, 1, 5, 20))
        command = self.command()
        outcome = command(self.state, self.now_ms)
        self.counts[f"{_function(command).__module__.rpartition('.')[2]}.{_function(command).__name__}"] += 1
        if not isinstance(outcome, Commit):
            return
        edits = holds.settle(self.state, outcome.edits, self.now_ms)
        for _ in range(3):
            self.mutant(edits)
        self.edits.append(edits)
        after = apply(self.state, self.delta(edits))
        try:
            check_step(self.state, after, edits)
        except InternalError as error:
            # No command makes a step that breaks a rule, if what it is told is true. What a group decided is
            # made up here, and so are some sums and names.
            lies = "(merge|base|drain)-keeps-diffs|borrowed-from-origin"
            lie = re.search(f"rule ({lies}) ", str(error))
            if lie or _function(command) in MADE_UP:
                return
            raise
        after = self.taken(edits)
        codec.check_format(self.state, after, edits)
        if not (after.dropped and self.rng.random() < 0.97):
            self.state = after

    def delta(self, edits):
        base = edits.rollup or self.state.rollup
        return Delta("s", self.state.seqno + 1, max(self.now_ms, self.state.committed_ms), "n", base, edits)

    def taken(self, edits):
        """The state after a step that the rules accept: one that can be stored, and opened again."""
        delta = self.delta(edits)
        after = apply(self.state, delta)
        check_step(self.state, after, edits)
        check_state(after)
        stored, whole = codec.encode_delta(delta), codec.encode_state(after)
        assert apply(self.state, codec.decode_delta(stored, "s")) == after
        assert codec.decode_state(whole, "s") == after
        assert format_of(stored) == format_of(whole) == FIRST
        return after

    def mutant(self, edits):
        """A step that no command made: if the rules of steps let it pass, so do those of states."""
        try:
            strange = mutated(self.rng, edits, self.rng.choice(self.edits), self.parts)
            delta = self.delta(strange)
            # What has values of other types is no step.
            codec.decode_delta(codec.encode_delta(delta), "s")
            after = apply(self.state, delta)
            check_step(self.state, after, strange)
        except Exception:
            self.counts["refused"] += 1
            return
        self.counts["accepted"] += 1
        check_state(after)
        assert indexed_again(after) == after
        assert codec.decode_state(codec.encode_state(after), "s") == after


def _function(command):
    return command.func if isinstance(command, partial) else command


MADE_UP = (applying.apply_decided, applying.catch_up, awaiting.park)
OFTEN = [
    "append", "append", "append", "stage", "stage", "seal", "split", "split", "apply_merge", "apply_merge",
    "claim_merge", "record_chunk", "finish_merge", "exert_fuel", "collapse_levels", "doom", "bury",
    "cut_slices", "cut", "add_base", "begin_with_base", "raise_floor", "add_rollup",
    "park", "apply_decided", "advance_since", "open_writer",
]  # fmt: skip
RARE = [
    name
    for name, one in vars(World).items()
    if inspect.isfunction(one) and list(inspect.signature(one).parameters) == ["self"]
    and name not in ("command", "step", "claim", "some_claim", "request", "base", "writes_as")
]  # fmt: skip


def mutated(rng, edits, other, parts):
    """A step with something of another one, or with a value that is somewhat off, or without something."""
    names_ = [one.name for one in fields(Edits)]
    used = [name for name in names_ if getattr(edits, name) != getattr(Edits(), name)] or names_
    name = rng.choice(used)
    kind = rng.randint(0, 3)
    if kind == 0:
        return replace(edits, **{name: getattr(Edits(), name)})
    if kind == 1:
        name = rng.choice(names_)
        return replace(edits, **{name: getattr(other, name)})
    return replace(edits, **{name: bent(rng, getattr(edits, name), parts)})


def bent(rng, value, parts):
    """A value with one leaf that is off: a number, a frontier, a name, a part; or one item less, or twice."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, SpineId):
        return SpineId(value.lo + rng.choice((-1, 0, 1)), value.hi + rng.choice((-1, 0, 1)))
    if isinstance(value, int):
        return max(0, value + rng.choice((-9, -1, 1, 9)))
    if isinstance(value, Frontier):
        return rng.choice((Frontier(), F(max(0, next(iter(value), 3) + rng.choice((-2, -1, 1, 2))))))
    if isinstance(value, str):
        return (
            rng.choice([one.name for one in parts] or [value])
            if "/" in value
            else value + rng.choice(("x", "0", "/1"))
        )
    if isinstance(value, dict) and value:
        key = rng.choice(list(value))
        kind = rng.randint(0, 3)
        rest = {k: v for k, v in value.items() if k != key}
        if kind == 0:
            return rest
        if kind == 1:
            return {**rest, bent(rng, key, parts): value[key]}
        if kind == 2:
            return {**value, key: None}
        return {**value, key: bent(rng, value[key], parts)}
    if isinstance(value, tuple) and value:
        at = rng.randrange(len(value))
        kind = rng.randint(0, 4)
        if kind == 0:
            return value[:at] + value[at + 1 :]
        if kind == 1:
            return (*value, value[at])
        return (*value[:at], bent(rng, value[at], parts), *value[at + 1 :])
    if hasattr(value, "__dataclass_fields__"):
        if type(value).__name__ == "Part" and rng.random() < 0.5:
            return rng.choice(parts) if parts else value
        one = rng.choice(fields(value)).name
        return replace(value, **{one: bent(rng, getattr(value, one), parts)})
    return value


@pytest.mark.promise(
    "The rules at opening accept every state that the rules of a step accept, also after stale or "
    "repeated commands, and after steps that no command makes",
    rule="`check_step`, `check_state`",
    also=["::test_every_command_is_among_the_random_ones"],
)
@pytest.mark.grows
def test_whatever_the_rules_of_a_step_accept_the_rules_at_opening_accept(rng):
    counts = Counter()
    for _ in rounds(fast=3, full=20, soak=600, least=4):
        world = World(rng)
        for _ in range(120):
            world.step()
        counts += world.counts
    assert counts["accepted"] and counts["refused"]


def test_every_command_is_among_the_random_ones(rng):
    driven = set()
    for kind in {*OFTEN, *RARE}:
        function = _function(getattr(World(rng), kind)())
        driven.add(f"{function.__module__.rpartition('.')[2]}.{function.__name__}")
    world = World(rng)
    world.state = replace(
        world.state,
        claims=world.state.claims.set("0-1", maintenance.MergeClaim(SpineId(0, 1), (), "", F(0), "x", 9, ())),
    )
    for kind in ("record_chunk", "release_claim"):
        driven.add(f"claims.{_function(getattr(world, kind)()).__name__}")
    world = World(rng)
    while "basing.add_base" not in driven:
        world = World(rng) if world.state.dropped else world
        world.step()
        driven.add(f"basing.{_function(world.add_base()).__name__}")
    assert commands_of_the_source() <= driven, commands_of_the_source() - driven


def touched(state, edits):
    """How many values of large maps are looked at while a step is made and checked."""
    looks = Counter()

    class Watched:
        def __init__(self, inner, name):
            self._inner, self._name = inner, name

        def __getattr__(self, name):
            looks[self._name] += 1
            return getattr(self._inner, name)

        def __getitem__(self, key):
            looks[self._name] += 1
            return self._inner[key]

        def __contains__(self, key):
            looks[self._name] += 1
            return key in self._inner

        def __iter__(self):
            raise AssertionError(f"a step goes through all of {self._name}")

        def __len__(self):
            return len(self._inner)

    spine = replace(state.spine, members=Watched(state.spine.members, "members"))
    watched = replace(
        state,
        spine=spine,
        part_names=Watched(state.part_names, "part_names"),
        taken=Watched(state.taken, "taken"),
        garbage=Watched(state.garbage, "garbage"),
        doomed=Watched(state.doomed, "doomed"),
        writers=Watched(state.writers, "writers"),
    )
    after = stepped(watched, edits, 10)
    check_step(watched, after, edits)
    return sum(looks.values())


def large(appends):
    """A state of so many appends of uploads, of which a few parts are garbage."""
    state = commands.initial("s", TimeDomain("counter"), SCHEMA, 5)
    for n in range(appends):
        state = stepped(state, one_more(state, n), 10)
    return state


def with_tokens(count):
    """A state with so many tokens."""
    state = commands.initial("s", TimeDomain("counter"), SCHEMA, 5)
    for n in range(count):
        state = stepped(state, commands.open_writer(state, 10, f"token:{n}").edits, 10)
    return state


def one_more(state, number):
    at = state.upper.elements[0]
    made = part(names.part("s", number, f"{number:032x}"), at, at)
    outcome = commit(state, 10, Write((Run((made,)),), Exactly(F(at), F(at + 1)), offered=(made,)))
    return outcome.edits


@pytest.mark.promise(
    "Checking a step costs as much as the step changes, however many batches, parts and uploads the "
    "state has",
    rule="`check_step`, `state/core/partnames.py`",
)
def test_a_step_costs_what_it_changes():
    """An append to many batches looks at as many names as one to a few, and goes through nothing."""
    small, big = large(64), large(1024)
    assert len(big.part_names) == len(big.taken) == 1024
    assert touched(big, one_more(big, 5000)) <= touched(small, one_more(small, 5000)) + 16


def test_tokens_begin_and_are_forgotten_at_the_same_cost_however_many_there_are():
    small, big = with_tokens(16), with_tokens(1024)
    for command in (
        partial(commands.open_writer, name="token:new"),
        partial(commands.open_writer, name="token:3"),
        partial(collecting.forget_tokens, now_ms=99 * DAY_MS, names_max=8),
    ):
        few, many = (state_and_step(state, command) for state in (small, big))
        assert touched(*many) <= touched(*few) + 16


def state_and_step(state, command):
    state = replace(state, agreed=replace(state.agreed, token_age_ms=0))
    asked = {"now_ms": 10} | command.keywords
    edits = command.func(state, **asked).edits
    # As of a moment at which the tokens are old.
    aged = {day - 99: there for day, there in state.tokens.items()}
    return replace(state, tokens=pmap(aged)), edits
