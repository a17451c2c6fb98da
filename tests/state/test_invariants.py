"""Every rule of a state and of a step can fail, and says its name."""

import ast
import re
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from pyrsistent import pmap, pset
from shard_states import SCHEMA, F, hollow, indexed_again, part, pushed, run

from tidelake.errors import InternalError
from tidelake.model import names
from tidelake.model.batch import HollowBatch, Run
from tidelake.model.bounds import Bounds
from tidelake.model.frontier import Frontier
from tidelake.model.schema import Column, DataType, Schema, SchemaVersion
from tidelake.model.time import TimeDomain
from tidelake.state.core import batchrules, commands, invariants
from tidelake.state.core.agreed import Agreed, Longer
from tidelake.state.core.batchrules import validate
from tidelake.state.core.decisions import Decision, Membership
from tidelake.state.core.edits import Delta, Edits, apply
from tidelake.state.core.erasures import Erasure
from tidelake.state.core.fields import Move
from tidelake.state.core.formats import NEWEST
from tidelake.state.core.garbage import Garbage, Sweep
from tidelake.state.core.invariants import check_state, check_step
from tidelake.state.core.state import Fork, Hold, MergeClaim, Origin, Rollup, WriterRecord
from tidelake.state.spine import fuel
from tidelake.state.spine.bases import Base, Bases
from tidelake.state.spine.spine import FuelingMerge, Member, Spine, SpineBatch, SpineEdit, SpineId
from tidelake.state.spine.staged import Awaited, Staged, Staging

TUPLES = TimeDomain("tuple", 2)


def a_claim(lo, hi, *cuts):
    return MergeClaim(SpineId(lo, hi), (), "", F(0), "runner", 0, cuts)


def replacing_last(member, spine):
    return SpineEdit(spine.next_id, spine.spent, (member.id,), (member,))


def a_state():
    """Three appends, of two rows each; since at 1, and the owner would let it go to 2."""
    state = commands.initial("s", TimeDomain(), SCHEMA, 5)
    for n in range(3):
        step = fuel.push(state.spine, hollow(n, n + 1, run(f"p{n}", n, n, rows=2, diff_sum=2)), F(0), n + 1)
        edits = Edits(upper=Move(F(n), F(n + 1)), spine=step.edit, rollup=Rollup(n, "r", 5, n) if n else None)
        state = apply(state, Delta("s", n + 1, 10, "n", edits.rollup or state.rollup, edits))
    edits = Edits(
        since=Move(F(0), F(1)),
        retained=Move(F(0), F(2)),
        writers={
            "w": WriterRecord(2, 4, "", F(0)),
            "token:t": WriterRecord(0, 0, "", F(0)),
            "token:n": WriterRecord(0, 4, "", F(0)),
        },
        tokens=("token:t",),
        holds={"h": Hold("test", F(1), 0, (3,), 10, 99)},
        forks={"f": Fork(3, 7)},
        claims={"0-2": a_claim(0, 2)},
        chunks={"0-2/0": (part("c"), part("lost"))},
    )
    state = apply(state, Delta("s", 4, 10, "n", state.rollup, edits))
    edits = Edits(
        spine=replacing_last(merged(run("m2", 2, 2, **TWO), lower=2, upper=3, lo=2, hi=3), state.spine),
        chunks={"0-2/0": (part("c"),)},
        sweep=Sweep(2),
        taken={3: ("0d",)},
    )
    return apply(state, Delta("s", 5, 10, "n", state.rollup, edits))


def adding(*runs, lower=3, upper=4, since=F(0), moved=None):
    """An append to that state."""
    step = fuel.push(a_state().spine, hollow(lower, upper, *runs, since=since), F(1), 5)
    return Edits(upper=Move(F(3), F(upper if moved is None else moved)), spine=step.edit)


def replacing(id_, *members):
    """Other members in the place of some, with the spine batches as they are."""
    spine = a_state().spine
    gone = tuple(member.id for member in spine.range(id_))
    return Edits(spine=SpineEdit(spine.next_id, spine.spent, gone, members))


def relevelled(*batches, spine=None):
    """The spine with other spine batches in the place of the ones with the same ids, or of all."""
    spine = spine or a_state().spine
    ids = {batch.id for batch in batches}
    gone = tuple(batch.id for batch in spine.batches if batch.id in ids or len(batches) > 1)
    return Edits(spine=SpineEdit(spine.next_id, spine.spent, batches_gone=gone, batches=batches))


def more_rows(batch):
    return replace(batch, rows=batch.rows + 7)


def moved_boundary():
    """The two spine batches, the first of which ends earlier than its members do."""
    first, second = a_state().spine.batches
    start = replace(first.bounds, upper=F(1))
    return replace(first, bounds=start), replace(second, bounds=replace(second.bounds, lower=F(1)))


def folded_state():
    """A state whose first member and spine batch are folded to 1."""
    before = a_state()
    spine = before.spine
    member = merged(run("m", **TWO), run("n", **TWO), hi=2, upper=2, since=F(1))
    (old, *_) = spine.batches
    held = replace(old, bounds=replace(old.bounds, since=F(1)))
    gone = tuple(member.id for member in spine.range(old.id))
    edit = SpineEdit(spine.next_id, spine.spent, gone, (member,), (old.id,), (held,))
    claims = Edits(spine=edit, claims={"0-2": None}, chunks={"0-2/0": None})
    after = apply(before, Delta("s", 6, 10, "n", before.rollup, claims))
    check_step(before, after, claims)
    check_state(after)
    return replace(after, seqno=5)


def unfolded():
    """Its first spine batch, said to be folded less than its member is."""
    old = folded_state().spine.batches[0]
    return replace(old, bounds=replace(old.bounds, since=F(0)))


def merged(*runs, lower=0, upper=1, lo=0, hi=1, since=F(0)):
    return Member(SpineId(lo, hi), hollow(lower, upper, *runs, since=since))


TEXT = DataType("string")
WIDER = Schema(SCHEMA.key, (Column(1, "v", TEXT),))
OTHER_KEY = Schema((replace(SCHEMA.key[0], type=TEXT),))
TWO = {"rows": 2, "diff_sum": 2}
FOREIGN = names.part("other", 3, "0a")
STEPS = [
    ("agreed-never-goes-back", Edits(agreed=Agreed(lease_ms=1))),
    ("agreed-never-goes-back", Edits(agreed=Agreed(-1))),
    ("format-never-goes-back", Edits(agreed=Agreed(1, format=NEWEST - 1))),
    ("ages-stay-in-force", Edits(agreed=Agreed(1, garbage_age_ms=1))),
    (
        "ages-stay-in-force",
        Edits(agreed=Agreed(1, upload_age_ms=1, longer={"upload_age_ms": Longer(10**9, 11)})),
    ),
    ("since-never-goes-back", Edits(since=Move(F(1), F(0)))),
    ("upper-never-goes-back", Edits(upper=Move(F(3), F(2)))),
    ("retained-never-goes-back", Edits(retained=Move(F(2), F(1)))),
    ("owner-keeps-since", Edits(since=Move(F(1), F(3)), holds={"h": None})),
    ("holds-keep-since", Edits(since=Move(F(1), F(2)))),
    ("holds-keep-since", Edits(holds={"new": Hold("test", F(0), 0, (), 10, 99)})),
    ("epoch-never-goes-back", Edits(writers={"w": WriterRecord(1, None, "", F(0))})),
    ("sequence-never-goes-back", Edits(writers={"w": WriterRecord(2, 3, "", F(0))})),
    ("drained-up-to-upper", Edits(upper=Move(F(3), F(4)))),
    ("drained-up-to-upper", adding(run("q", 3, 3), moved=5)),
    ("batches-tile", adding(run("q", 3, 3), lower=2)),
    ("batches-tile", replacing(SpineId(0, 2), merged(hi=2, upper=1))),
    ("batches-tile", replacing(SpineId(1, 2), merged(lo=1, hi=2, lower=0, upper=2))),
    ("merge-keeps-diffs", replacing(SpineId(0, 1), merged(run("m", rows=2, diff_sum=5)))),
    ("part-named-once", adding(run("q", 3, 3), run("q", 3, 3))),
    ("batch-folded-to-since", replacing(SpineId(0, 1), merged(run("m", **TWO), since=F(2)))),
    ("times-in-bounds", adding(run("q", 2, 3))),
    ("times-in-bounds", adding(run("q", 3, 4))),
    ("times-in-bounds", adding(run("q", 3, 3, rewrite=4))),
    ("schema-registered", adding(run("q", 3, 3, schema_id=1))),
    ("schemas-numbered", Edits(schemas={1: SchemaVersion(WIDER, 4)})),
    ("schemas-numbered", Edits(schemas={2: SchemaVersion(WIDER, 6)})),
    ("schema-evolves", Edits(schemas={1: SchemaVersion(OTHER_KEY, 6)})),
    ("schema-evolves", Edits(schemas={1: SchemaVersion(WIDER, 6, (("v", "w"),))})),
    ("schema-evolves", Edits(schemas={1: SchemaVersion(replace(WIDER, value=(Column(7, "v", TEXT),)), 6)})),
    ("run-has-parts", adding(Run(()))),
    ("part-has-rows", adding(run("q", 3, 3, rows=0))),
    ("part-has-rows", adding(run("q", 3, 3, size_bytes=0))),
    ("empty-bounds-hold-nothing", adding(run("q", 3, 3, diff_sum=0), upper=3)),
    ("claims-apart", Edits(claims={"1-3": a_claim(1, 3)})),
    ("chunk-of-claim", Edits(chunks={"9-10/0": ()})),
    ("chunk-of-claim", Edits(claims={"0-2": None})),
    ("chunk-of-claim", Edits(chunks={"0-2/1": ()})),
    ("tombstone-holds-nothing", Edits(dropped=True)),
    ("floor-never-goes-back", Edits(sweep=Sweep(1))),
    ("pins-keep-parts", Edits(doomed=("p2",))),
    ("pins-keep-parts", Edits(holds={"h": None}, doomed=("p2",))),
    ("borrowed-from-origin", adding(run(FOREIGN, 3, 3))),
    ("garbage-stays", adding(run("p2", 3, 3))),
    ("garbage-stays", Edits(claims={"0-2": a_claim(0, 2, b"cut")}, chunks={"0-2/1": (part("lost"),)})),
    ("part-named-once", Edits(claims={"2-3": a_claim(2, 3)}, chunks={"2-3/0": (part("c"),)})),
    # What is in already, elsewhere.
    ("part-named-once", adding(run("p0", 3, 3))),
    ("part-named-once", adding(run("c", 3, 3))),
    ("tokens-last", Edits(writers_gone=("w",))),
    ("tokens-last", Edits(writers_gone=("token:t",))),
    ("tokens-known", Edits(tokens=("w",))),
    ("tokens-known", Edits(tokens=("token:u",))),
    ("tokens-known", Edits(tokens=("token:n",))),
    ("uploads-taken-once", adding(run(names.part("s", 3, "0d"), 3, 3))),
    ("uploads-taken-once", Edits(taken={3: ("0d",)})),
    ("uploads-young", adding(run(names.part("s", 1, "0b"), 3, 3))),
    ("uploads-young", adding(run(names.part("s", 1, "0b"), 3, 3, inline=b"rows"))),
    ("rollup-is-past", Edits(rollup=Rollup(99, "r", 1, 1))),
    ("rollup-never-goes-back", Edits(rollup=Rollup(2, "other", 1, 1))),
    ("levels-say-members", relevelled(more_rows(a_state().spine.batches[0]))),
    ("levels-say-members", relevelled(*moved_boundary())),
    ("levels-say-members", replacing(SpineId(0, 1), merged(run("m", **TWO, size_bytes=5), since=F(1)))),
]


def staged(name, first, last, *, lower=3, added=7, **kwargs):
    return Staged(HollowBatch(Bounds(F(lower), Frontier(), F(0)), (run(name, first, last, **kwargs),)), added)


def keyed(*batches):
    return {one.name: one for one in batches}


def waiting():
    """The same state with times up to 5 closed and not drained: what is staged reaches from 3 to 9."""
    state = a_state()
    edits = Edits(upper=Move(F(3), F(5)), staged=keyed(staged("s", 3, 9, added=6, **TWO)))
    after = apply(state, Delta("s", 6, 10, "n", state.rollup, edits))
    check_step(state, after, edits)
    return after


def drained(*runs, upper=5, **comes):
    """A drain of that state."""
    step = fuel.push(waiting().spine, hollow(3, upper, *runs), F(1), 7)
    return Edits(spine=step.edit, staged={"s": None, **comes})


def shortened(spine):
    """The last spine batch, ending earlier."""
    last, member = spine.batches[-1], list(spine)[-1]
    cut = replace(member.batch, bounds=replace(member.batch.bounds, upper=F(2)))
    batch = replace(last, bounds=replace(last.bounds, upper=F(2)))
    return SpineEdit(
        spine.next_id, spine.spent, (member.id,), (replace(member, batch=cut),), (last.id,), (batch,)
    )


ABOVE = keyed(staged("a", 5, 9, lower=5))
DRAINS = [
    ("drained-never-goes-back", Edits(spine=shortened(waiting().spine))),
    ("drained-up-to-upper", Edits(staged={"s": None, **keyed(staged("t", 5, 9, lower=3, **TWO))})),
    ("drained-up-to-upper", drained(run("b", 3, 4), upper=6, **ABOVE)),
    ("drained-up-to-upper", drained(run("b", 3, 4), upper=4, **ABOVE)),
    ("drain-keeps-diffs", drained(run("b", 3, 4))),
    ("drain-keeps-diffs", drained(run("b", 3, 4, diff_sum=2), **ABOVE)),
    ("drain-keeps-diffs", Edits(staged={"s": None, **keyed(staged("t", 3, 9, **TWO | {"diff_sum": 3}))})),
    ("staged-numbered", Edits(staged=keyed(staged("t", 5, 5, lower=5, added=6)))),
    ("staged-holds-rows", Edits(staged={"t": Staged(hollow(5, 6), 7)})),
    ("staged-is-open", Edits(staged=keyed(staged("t", 2, 7, lower=0)))),
    ("part-named-once", Edits(staged={**keyed(staged("t", 5, 5, lower=5)), "u": staged("t", 5, 5, lower=5)})),
    ("part-has-rows", Edits(staged=keyed(staged("t", 5, 5, lower=5, rows=0)))),
    ("garbage-stays", Edits(staged=keyed(staged("lost", 5, 5, lower=5)))),
    ("part-named-once", Edits(staged=keyed(staged("p0", 5, 5, lower=5)))),
]


def waiting_for_later():
    """Times up to 5 are closed, and what is staged begins at 4: the spine, which ends at 3, may end there."""
    state = a_state()
    edits = Edits(upper=Move(F(3), F(5)), staged=keyed(staged("s", 4, 9, added=6, **TWO)))
    return replace(apply(state, Delta("s", 6, 10, "n", state.rollup, edits)), seqno=5)


def prolonged():
    """The last spine batch, ending later than its members do."""
    last = a_state().spine.batches[-1]
    return replace(last, bounds=replace(last.bounds, upper=F(4)))


MANY = fuel._ROWS_PER_ID  # the rows of a batch that takes one number


def cut_state():
    """The state of one batch that is a slice."""
    state = replace(commands.initial("s", TimeDomain(), SCHEMA, 5), seqno=3, committed_ms=10)
    step = fuel.push(state.spine, hollow(0, 2, run("p", 0, 1, rows=2 * MANY, diff_sum=2 * MANY)), F(0), 4)
    state = apply(state, Delta("s", 4, 10, "n", state.rollup, Edits(upper=Move(F(0), F(2)), spine=step.edit)))
    (batch,) = state.spine.batches
    slices = SpineEdit(
        state.spine.next_id,
        state.spine.spent,
        batches_gone=(batch.id,),
        batches=(replace(batch, level=0),),
    )
    edits = Edits(spine=slices, sliced=state.spine.next_id)
    return apply(state, Delta("s", 5, 10, "n", state.rollup, edits))


def cut_at_one(last):
    """A step that cuts the slice at time 1; the first piece has rows up to a time."""
    (member,) = cut_state().spine
    hi = member.id.hi
    half = {"rows": MANY, "diff_sum": MANY}
    pieces = merged(run("m", 0, last, **half)), merged(run("n", 1, 1, **half), lower=1, upper=2, lo=1, hi=hi)
    batches = tuple(SpineBatch(piece.id, 0, piece.batch.bounds, MANY) for piece in pieces)
    spine = cut_state().spine
    return Edits(spine=SpineEdit(spine.next_id, spine.spent, (member.id,), pieces, (member.id,), batches))


def test_a_slice_is_cut_where_its_times_are():
    before, edits = cut_state(), cut_at_one(0)
    after = apply(before, Delta("s", 6, 11, "n", before.rollup, edits))
    check_step(before, after, edits)
    check_state(after)


def borrower():
    state = a_state()
    edits = adding(run("q", 3, 3))
    held = apply(state, Delta("s", 6, 10, "n", state.rollup, edits))
    (last,) = [member for member in held.spine if member.id.hi == held.spine.next_id]
    foreign = replace(last, batch=replace(last.batch, runs=(run(FOREIGN, 3, 3),)))
    spine = replace(held.spine, members=held.spine.members.set(last.id.lo, foreign))
    return replace(indexed_again(replace(held, spine=spine)), origin=Origin("other", 1), seqno=5)


OTHERS = [
    ("levels-say-members", folded_state(), relevelled(unfolded(), spine=folded_state().spine)),
    ("batches-tile", waiting_for_later(), relevelled(prolonged())),
    ("borrowed-from-origin", borrower(), Edits(let_go=True)),
    ("times-in-bounds", cut_state(), cut_at_one(1)),
]


def sliced_state(*bases):
    """The state whose oldest two batches are a slice, the next one is another, and the levels are empty."""
    before = a_state()
    edits = sliced(
        SpineBatch(SpineId(0, 2), 0, Bounds(F(0), F(2), F(0)), 4),
        SpineBatch(SpineId(2, 3), 0, Bounds(F(2), F(3), F(0)), 2),
        bases=bases,
    )
    after = apply(before, Delta("s", 6, 10, "n", before.rollup, edits))
    check_step(before, after, edits)
    return replace(after, seqno=5)


def sliced(*slices, bases=()):
    """A step of the state without slices that makes these, of all that the levels hold."""
    spine = a_state().spine
    gone = tuple(batch.id for batch in spine.batches)
    edit = SpineEdit(
        spine.next_id,
        spine.spent,
        batches_gone=gone,
        batches=slices,
        merges_gone=tuple(merge.id for merge in spine.merges),
    )
    return Edits(spine=edit, sliced=spine.next_id, bases={base.hi: base for base in bases})


def based(hi, *runs, at=None, time=None):
    """A base before an insertion; in this state each has the time of its number."""
    at = hi if at is None else at
    return Base(hi, at, at - 1 if time is None else time, runs, 6)


def adding_base(hi, *runs, **times):
    return Edits(bases={hi: based(hi, *runs, **times)})


FOUR = {"rows": 4, "diff_sum": 4}
BASES = [
    ("base-is-one-run", sliced_state(), adding_base(2, run("b", **TWO), run("d", **TWO))),
    ("base-boundary-stands", sliced_state(), adding_base(2, run("b", **FOUR), at=3)),
    ("base-boundary-stands", sliced_state(), adding_base(4, run("b", rows=6, diff_sum=6), at=3)),
    ("bases-in-order", sliced_state(), adding_base(2, run("b", **FOUR), time=0)),
    ("bases-in-order", sliced_state(based(1, run("b", **TWO), time=3)), adding_base(2, run("d", **FOUR))),
    ("bases-in-order", sliced_state(based(2, run("b", **FOUR))), adding_base(1, run("d", **TWO), time=3)),
    ("base-keeps-diffs", sliced_state(), adding_base(2, run("b", **TWO))),
    ("base-keeps-diffs", sliced_state(based(2, run("b", **FOUR))), adding_base(3, run("d", **FOUR))),
    ("part-named-once", sliced_state(), adding_base(2, run("p0", **FOUR))),
    ("part-named-once", sliced_state(based(2, run("b", **FOUR))), adding(run("b", 3, 3))),
]


def with_unknown_diffs():
    """A state with a base, before which the sum of diffs is not known: its first batch is truncated."""
    state = sliced_state(based(2, run("b", **FOUR)))
    first = state.spine.members[0]
    (whole,) = first.batch.runs
    cut = replace(first, batch=replace(first.batch, runs=(replace(whole, truncated=True),)))
    return replace(state, spine=replace(state.spine, members=state.spine.members.set(0, cut)))


# A merge makes the sum known, and it is not that of the base.
BASES += [
    (
        "base-keeps-diffs",
        with_unknown_diffs(),
        replacing(SpineId(0, 1), merged(run("m", rows=2, diff_sum=1))),
    ),
]
LAST = SpineBatch(SpineId(2, 3), 0, Bounds(F(2), F(3), F(0)), 2)
SLICES = [
    # The first one says fewer rows, another start or another end than its members.
    (SpineBatch(SpineId(0, 2), 0, Bounds(F(0), F(2), F(0)), 3), LAST),
    (SpineBatch(SpineId(0, 2), 0, Bounds(F(1), F(2), F(0)), 4), LAST),
    (SpineBatch(SpineId(0, 2), 0, Bounds(F(0), F(1), F(0)), 4), LAST),
    # It says that it is folded further than `since` of the shard.
    (SpineBatch(SpineId(0, 2), 0, Bounds(F(0), F(2), F(2)), 4), LAST),
]
OTHERS += BASES


def hashed(state):
    """The same state, in which the rows of each part have the hash 7."""

    def of(batch):
        runs = [[replace(p, checksum=p.checksum + f"+{7:016x}") for p in r.parts] for r in batch.runs]
        return replace(batch, runs=tuple(Run(tuple(parts)) for parts in runs))

    members = {lo: replace(member, batch=of(member.batch)) for lo, member in state.spine.members.items()}
    spine = replace(state.spine, members=state.spine.members.update(members))
    batches = {name: replace(one, batch=of(one.batch)) for name, one in state.staged.batches.items()}
    return replace(state, spine=spine, staged=Staging.of(batches))


SWAPPED = [
    ("merge-keeps-rows", hashed(a_state()), replacing(SpineId(0, 1), merged(run("m", **TWO, row_hash=8)))),
    ("base-keeps-rows", hashed(sliced_state()), adding_base(2, run("b", **FOUR, row_hash=15))),
    (
        "drain-keeps-rows",
        replace(hashed(waiting()), seqno=5),
        Edits(staged={"s": None, **keyed(staged("t", 3, 9, added=6, **TWO, row_hash=6))}),
    ),
]
OTHERS += SWAPPED
OTHERS += [("levels-say-members", a_state(), sliced(*wrong)) for wrong in SLICES]
OTHERS += [
    ("levels-say-members", sliced_state(), replacing(SpineId(0, 1), merged(run("m", rows=3, diff_sum=2)))),
    ("levels-say-members", sliced_state(), replacing(SpineId(0, 1), merged(run("m", **TWO), since=F(1)))),
    (
        "levels-say-members",
        sliced_state(),
        replacing(SpineId(0, 3), merged(run("m", rows=6, diff_sum=6), hi=3, upper=3)),
    ),
]


def fewer_in_slice():
    """The sliced state without one of the rows of its first member, whose base stays."""
    spine = sliced_state().spine
    (held, *_) = spine.slices
    less = merged(run("m", rows=1, diff_sum=1))
    rows = replace(held, rows=held.rows - 1)
    edit = SpineEdit(spine.next_id, spine.spent, (less.id,), (less,), (held.id,), (rows,))
    return Edits(spine=edit, claims={"0-2": None}, chunks={"0-2/0": None})


ASKED = Erasure("asked for", 1, 7, (b"key",))
DONE = replace(ASKED, keys=(), seqno=6, erased_ms=11)


def asked(state):
    """The state in which an erasure was asked for, so that the next step may carry it out."""
    return replace(state, seqno=5, erasures=pmap({"e": ASKED}))


def erasing(edits=None):
    return replace(edits or Edits(), erasures={"e": DONE})


def less_folded():
    """The member that was folded to 1, said to be folded less; its rows stay."""
    spine = folded_state().spine
    member = next(iter(spine))
    less = replace(member, batch=replace(member.batch, bounds=replace(member.batch.bounds, since=F(0))))
    return Edits(spine=SpineEdit(spine.next_id, spine.spent, (member.id,), (less,)))


def fewer_rows():
    """The state without one of the rows of its first member."""
    spine = a_state().spine
    less = replacing(SpineId(0, 1), merged(run("m", rows=1, diff_sum=1))).spine
    (held, *_) = spine.batches
    rows = {"batches_gone": (held.id,), "batches": (replace(held, rows=held.rows - 1),)}
    return Edits(spine=replace(less, **rows), claims={"0-2": None}, chunks={"0-2/0": None})


OTHERS += [
    ("erasures-are-final", a_state(), Edits(erasures={"e": replace(ASKED, keys=())})),
    ("erasures-are-final", a_state(), Edits(erasures={"e": DONE})),
    ("erasures-are-final", asked(a_state()), Edits(erasures={"e": replace(DONE, reason="other")})),
    ("erasures-are-final", asked(a_state()), Edits(erasures={"e": replace(DONE, seqno=5)})),
    ("erasures-are-final", asked(a_state()), Edits(erasures={"e": replace(DONE, gone_ms=12)})),
    ("erased-keys-forgotten", asked(a_state()), Edits(erasures={"e": replace(DONE, keys=(b"key",))})),
    ("erasure-only-takes", asked(waiting()), erasing(Edits(upper=Move(F(5), F(6))))),
    ("erasure-only-takes", asked(folded_state()), erasing(less_folded())),
    (
        "erasure-only-takes",
        asked(waiting()),
        erasing(Edits(staged={"s": None, **keyed(staged("t", 3, 9, added=6, rows=3, diff_sum=2))})),
    ),
    ("base-keeps-diffs", asked(sliced_state(based(2, run("b", **FOUR)))), erasing(fewer_in_slice())),
]


def grouped():
    """A state that is a group of "a" and of "b", which leaves, and is itself in another group."""
    awaited = Staged(staged("s", 3, 9).batch, 6, Awaited("t", 1, 0))
    edits = Edits(
        group="g",
        joined=1,
        staged=keyed(awaited),
        memberships={"a": Membership(F(4), 6), "b": Membership(F(5), 6)},
        decisions={"in": Decision(("a", "b"), 2)},
        expired=3,
    )
    before = a_state()
    after = apply(before, Delta("s", 6, 10, "n", before.rollup, edits))
    check_step(before, after, edits)
    leaving = Edits(memberships={"b": Membership(F(5), 6, leaving=True)})
    both = replace(after, seqno=5)
    check_step(both, apply(both, Delta("s", 6, 10, "n", both.rollup, leaving)), leaving)
    return apply(both, Delta("s", 6, 10, "n", both.rollup, leaving))


GROUPS = [
    ("expired-never-goes-back", Edits(expired=2)),
    ("decided-once", Edits(decisions={"in": Decision(("a",), 2)})),
    ("decided-once", Edits(decisions={"in": Decision((), None)})),
    ("members-decide", Edits(decisions={"new": Decision(("a", "stranger"), 3)})),
    ("members-decide", Edits(decisions={"new": Decision(("b",), 3)})),
    ("member-upper-never-goes-back", Edits(memberships={"a": Membership(F(3), 6)})),
    ("members-leave-for-good", Edits(memberships={"a": Membership(F(4), 7)})),
    ("members-leave-for-good", Edits(memberships={"b": Membership(F(5), 6)})),
    ("members-leave-first", Edits(memberships={"a": None})),
    ("members-numbered", Edits(memberships={"c": Membership(F(0), 6)})),
    ("left-behind-nothing", Edits(group="", joined=0)),
]


def test_a_drain_that_keeps_the_rules_is_taken():
    before, edits = waiting(), drained(run("b", 3, 4), **ABOVE)
    after = apply(before, Delta("s", 7, 11, "n", before.rollup, edits))
    check_step(before, after, edits)
    check_state(after)


def test_a_step_that_closes_times_may_bring_rows_beside_those_that_were_staged():
    before = a_state()
    before = apply(
        before, Delta("s", 6, 10, "n", before.rollup, Edits(staged=keyed(staged("s", 3, 4, added=6))))
    )
    step = fuel.push(before.spine, hollow(3, 5, run("q", 3, 3), run("s", 3, 4)), F(1), 7)
    edits = Edits(upper=Move(F(3), F(5)), spine=step.edit, staged={"s": None})
    check_step(before, apply(before, Delta("s", 7, 11, "n", before.rollup, edits)), edits)


@pytest.mark.promise("`upper` only moves forward", rule="`upper-never-goes-back`")
@pytest.mark.promise("`since` only moves forward", rule="`since-never-goes-back`")
@pytest.mark.promise(
    "`since` stays at or before every hold",
    rule="`holds-keep-since`",
    also=["::test_each_rule_refuses_the_state_that_breaks_it"],
)
@pytest.mark.promise(
    "`since` stays at or before what the owner allowed, and that only moves forward",
    rule="`owner-keeps-since`, `retained-never-goes-back`",
    also=["::test_each_rule_refuses_the_state_that_breaks_it"],
)
@pytest.mark.promise(
    "The times of an appended batch lie in its bounds (total orders; for tuples the rows are "
    "checked before the upload)",
    rule="`times-in-bounds`",
)
@pytest.mark.promise(
    "Batches tile the time line from the first time to `upper`",
    rule="`batches-tile`, `state/spine/spine.py` (`validate`)",
    also=["state/test_codec.py::test_a_stored_state_that_breaks_a_rule_is_corruption"],
)
@pytest.mark.promise("A batch is folded at most to `since`", rule="`batch-folded-to-since`")
@pytest.mark.promise(
    "A state adds at most one schema, schemas are numbered, and each may follow the one before",
    rule="`schemas-numbered`, `schema-evolves`",
    also=["::test_each_rule_refuses_the_state_that_breaks_it"],
)
@pytest.mark.promise(
    "A step that breaks a rule is not committed, and one that is read back is named",
    rule="`Machine.run` (`check_step`), `shard/care/replay.py`",
    also=["lake/admin/test_fsck.py::test_a_step_that_breaks_a_rule_is_found"],
)
@pytest.mark.promise(
    "A merge keeps the sum of diffs and the hash of rows, where they are known",
    rule="`merge-keeps-diffs`, `merge-keeps-rows`",
)
@pytest.mark.promise(
    "The format of a lake never goes back, and no record of a later one is written before `upgrade`",
    rule="`format-never-goes-back`, `check_format`",
    also=[
        "state/test_fields.py::test_a_field_that_is_declared_is_merged_stored_and_read_back",
        "state/test_formats_allowed.py::test_a_later_field_is_left_out_while_it_has_its_default_and_makes_the_format_later_when_not",
        "state/test_every_step.py::test_whatever_the_rules_of_a_step_accept_the_rules_at_opening_accept",
    ],
)
@pytest.mark.promise(
    "A merge, a drain and a base keep the hash of rows, where it is known: rows that were changed "
    "or swapped are noticed at the commit, though the diffs add up",
    rule="`merge-keeps-rows`, `drain-keeps-rows`, `base-keeps-rows`; `state/core/batchrules.py`",
    also=[
        "state/test_sums.py",
        "lake/admin/test_fsck_bases.py::test_a_base_with_swapped_rows_is_refused_at_its_commit",
    ],
)
@pytest.mark.promise(
    "An erasure is asked for once, keeps its keys only until its rows are out, and its step takes "
    "rows away and changes nothing else",
    rule="`erasures-are-final`, `erased-keys-forgotten`, `erasure-only-takes`",
    also=["::test_an_erasure_that_takes_rows_away_is_taken"],
)
@pytest.mark.promise("A base is one run, or none if the contents were empty", rule="`base-is-one-run`")
@pytest.mark.promise(
    "A base stands at a boundary between two members, or at the head, and its times say so. A step "
    "that removes the boundary removes the base",
    rule="`base-boundary-stands`, `fallen` in `state/spine/bases.py`",
    also=["state/test_every_step.py::test_whatever_the_rules_of_a_step_accept_the_rules_at_opening_accept"],
)
@pytest.mark.promise(
    "Boundaries and times of bases ascend together, so that the last base that a time may begin "
    "with is found by a search",
    rule="`bases-in-order`",
)
@pytest.mark.promise(
    "The diffs of a base and its hash of rows add up to those of the base before and of the updates "
    "between, where they are known",
    rule="`base-keeps-diffs`, `base-keeps-rows`",
)
@pytest.mark.promise(
    "A drain keeps the sum of diffs and the hash of rows, where they are known, and the spine never "
    "gets shorter",
    rule="`drain-keeps-diffs`, `drain-keeps-rows`, `drained-never-goes-back`",
    also=["::test_a_drain_that_keeps_the_rules_is_taken"],
)
@pytest.mark.parametrize(
    ("rule", "before", "edits"),
    [
        *((rule, a_state(), edits) for rule, edits in STEPS),
        *((rule, waiting(), edits) for rule, edits in DRAINS),
        *((rule, grouped(), edits) for rule, edits in GROUPS),
        *OTHERS,
    ],
)
def test_each_rule_refuses_the_step_that_breaks_it(rule, before, edits):
    check_state(before)
    after = apply(before, Delta("s", before.seqno + 1, 11, "n", edits.rollup or before.rollup, edits))
    with pytest.raises(InternalError, match=f"rule {rule} "):
        check_step(before, after, edits)


def test_an_erasure_that_takes_rows_away_is_taken():
    before, edits = asked(a_state()), erasing(fewer_rows())
    after = apply(before, Delta("s", 6, 11, "n", before.rollup, edits))
    check_step(before, after, edits)
    check_state(after)
    assert after.spine.totals.rows == before.spine.totals.rows - 1 and after.erased == 6
    with pytest.raises(InternalError, match="rule merge-keeps-diffs "):
        check_step(before, apply(before, Delta("s", 6, 11, "n", before.rollup, fewer_rows())), fewer_rows())


@pytest.mark.promise(
    "The commit clock never goes back",
    rule="`clock-never-goes-back`, `Machine.run`",
    also=["state/test_commands.py::test_the_clock_of_a_state_never_goes_back_in_a_step"],
)
def test_a_step_into_the_past_is_refused():
    before = a_state()
    after = apply(before, Delta("s", 6, 9, "n", before.rollup, Edits()))
    with pytest.raises(InternalError, match="rule clock-never-goes-back "):
        check_step(before, after, Edits())


def with_(batch):
    """A state with one more member than that above."""
    good = a_state()
    return replace(good, upper=batch.bounds.upper, spine=pushed(good.spine, batch))


def of_tuples(rewrite=None):
    state = commands.initial("s", TUPLES, SCHEMA, 5)
    start, end = state.upper, Frontier.of((1, 0), (0, 1))
    rewritten = run("p", (0, 0), (0, 0), rewrite=rewrite)
    return replace(
        state, upper=end, spine=pushed(Spine(), HollowBatch(Bounds(start, end, start), (rewritten,)))
    )


def with_bases(state, *bases):
    """The state with these bases, which no step has checked."""
    return indexed_again(replace(state, bases=Bases.of(bases)))


STATES = [
    ("base-total-order", lambda s: with_bases(of_tuples(), based(1, run("b"), at=1))),
    ("base-keeps-diffs", lambda s: with_bases(s, based(1, run("b", rows=2, diff_sum=1)))),
    ("base-boundary-stands", lambda s: with_bases(s, based(1, run("b", **TWO), at=2))),
    ("schema-registered", lambda s: with_bases(s, based(1, run("b", **TWO, schema_id=1)))),
    ("run-has-parts", lambda s: with_bases(s, based(1, Run(())))),
    ("part-named-once", lambda s: with_(hollow(3, 4, run("p0", 3, 3)))),
    ("part-named-once", lambda s: with_(hollow(3, 4, run("c", 3, 3)))),
    ("schema-registered", lambda s: replace(s, schemas=pmap())),
    ("schemas-numbered", lambda s: replace(s, schemas=s.schemas.set(1, SchemaVersion(WIDER, 99)))),
    (
        "schemas-numbered",
        lambda s: replace(s, schemas=pmap({0: replace(s.schemas[0], seqno=1), 1: SchemaVersion(WIDER, 0)})),
    ),
    ("schema-evolves", lambda s: replace(s, schemas=s.schemas.set(1, SchemaVersion(OTHER_KEY, 1)))),
    ("schema-registered", lambda s: with_(hollow(3, 4, run("q", 3, 3, schema_id=1)))),
    ("run-has-parts", lambda s: with_(hollow(3, 4, Run(())))),
    ("part-has-rows", lambda s: with_(hollow(3, 4, run("q", rows=0)))),
    ("empty-bounds-hold-nothing", lambda s: with_(hollow(3, 3, run("q")))),
    ("rewrite-total-order", lambda s: of_tuples(rewrite=(0, 0))),
    ("holds-keep-since", lambda s: replace(s, since=F(2))),
    ("owner-keeps-since", lambda s: replace(s, since=F(3), holds=pmap())),
    ("rollup-is-past", lambda s: replace(s, rollup=Rollup(99, "r", 1, 1))),
    ("doomed-once", lambda s: replace(s, doomed=s.garbage)),
    ("garbage-is-not-named", lambda s: replace(s, garbage=s.garbage.set("p0", Garbage(0, 1, 2)))),
    ("garbage-is-not-named", lambda s: replace(s, doomed=s.doomed.set("c", Garbage(0, 1, 2)))),
    ("tombstone-holds-nothing", lambda s: replace(s, dropped=True)),
    ("borrowed-from-origin", lambda s: with_(hollow(3, 4, run(FOREIGN, 3, 3)))),
    ("borrowed-from-origin", lambda s: replace(s, garbage=s.garbage.set(FOREIGN, Garbage(0, 1, 2)))),
    ("claims-apart", lambda s: replace(s, claims=s.claims.set("1-3", a_claim(1, 3)))),
    ("chunk-of-claim", lambda s: replace(s, claims=pmap())),
    ("drained-up-to-upper", lambda s: replace(s, upper=F(2))),
    ("drained-up-to-upper", lambda s: replace(s, upper=F(4))),
    ("staged-is-open", lambda s: replace(s, staged=Staging.of(keyed(staged("t", 2, 7, lower=0))))),
    ("staged-holds-rows", lambda s: replace(s, staged=Staging.of({"t": Staged(hollow(5, 6), 7)}))),
    ("part-named-once", lambda s: replace(s, staged=Staging.of(keyed(staged("p0", 3, 7))))),
    ("schema-registered", lambda s: replace(s, staged=Staging.of(keyed(staged("t", 3, 7, schema_id=1))))),
    ("names-indexed", lambda s: replace(s, part_names=s.part_names.add("of no part"))),
    ("tokens-known", lambda s: replace(s, tokens=s.tokens.set(7, pset(["token:u"])))),
    ("tokens-known", lambda s: replace(s, tokens=s.tokens.set(7, pset(["token:t"])))),
    ("names-indexed", lambda s: replace(s, part_names=s.part_names.discard("p0"))),
    ("erased-keys-forgotten", lambda s: replace(s, erasures=pmap({"e": replace(ASKED, seqno=3)}))),
]


@pytest.mark.promise(
    "No part is named twice in a state, and a step adds no part that is there already: an index "
    "holds exactly the names of the parts",
    rule="`part-named-once`, `names-indexed`",
    also=["::test_each_rule_refuses_the_step_that_breaks_it"],
)
@pytest.mark.promise(
    "Every part has a registered schema, rows, and a rewrite only in total orders; an empty "
    "interval holds nothing",
    rule=(
        "`schema-registered`, `part-has-rows`, `run-has-parts`, `rewrite-total-order`, "
        "`empty-bounds-hold-nothing`"
    ),
    also=[
        "::test_a_rewrite_of_tuples_is_refused_at_the_append",
        "::test_every_rule_that_the_source_names_is_broken_by_a_test_here",
    ],
)
@pytest.mark.promise(
    "A rollup holds a past state, and only a newer rollup replaces it",
    rule="`rollup-is-past`, `rollup-never-goes-back`",
    also=["::test_each_rule_refuses_the_step_that_breaks_it"],
)
@pytest.mark.promise(
    "The levels of the spine say how many rows, and which bounds, their members have",
    rule="`levels-say-members`, `state/spine/spine.py` (`validate`)",
    also=["::test_each_rule_refuses_the_step_that_breaks_it"],
)
@pytest.mark.promise("Only a totally ordered time has bases", rule="`base-total-order`")
@pytest.mark.parametrize(("rule", "broken"), STATES)
def test_each_rule_refuses_the_state_that_breaks_it(rule, broken):
    with pytest.raises(InternalError, match=f"rule {rule} "):
        check_state(broken(a_state()))


def rewritten_tuples():
    state = commands.initial("s", TUPLES, SCHEMA, 5)
    after = of_tuples(rewrite=(0, 0))
    edit = fuel.push(Spine(), next(iter(after.spine)).batch, state.since, 1).edit
    edits = Edits(upper=Move(state.upper, after.upper), spine=edit)
    return state, apply(state, Delta("s", 1, 10, "n", state.rollup, edits)), edits


def test_a_rewrite_of_tuples_is_refused_at_the_append():
    before, after, edits = rewritten_tuples()
    with pytest.raises(InternalError, match="rule rewrite-total-order "):
        check_step(before, after, edits)


def check_of(kind, module):
    return module.check_state if kind == "state" else module.check_step


def all_cases():
    """What each case has checked, with its rule."""
    for before, found in (
        (a_state(), STEPS),
        (waiting(), DRAINS),
        (grouped(), GROUPS),
        *((state, [(rule, edits)]) for rule, state, edits in OTHERS),
    ):
        seqno = before.seqno + 1
        for rule, edits in found:
            base = edits.rollup or before.rollup
            yield rule, "step", (before, apply(before, Delta("s", seqno, 11, "n", base, edits)), edits)
    for rule, broken in STATES:
        yield rule, "state", (broken(a_state()),)
    before = a_state()
    late = apply(before, Delta("s", 6, 9, "n", before.rollup, Edits()))
    yield "clock-never-goes-back", "step", (before, late, Edits())
    yield "rewrite-total-order", "step", rewritten_tuples()


def refuses(module, rule, kind, case):
    try:
        check_of(kind, module)(*case)
    except Exception as error:
        # Of another module the class is the same, since it is imported.
        return isinstance(error, InternalError) and str(error).startswith(f"rule {rule} ")
    return False


def rules():
    """The source of all rules, as one module."""
    whole = "".join(Path(module.__file__).read_text() for module in (batchrules, invariants))
    return re.sub(r"from tidelake.state.core.batchrules import \([^)]*\)", "", whole)


def without_each_rule():
    """The rules, each time without one of the places that check something."""
    tree = ast.parse(rules())
    bodies = [body for node in ast.walk(tree) for _, body in ast.iter_fields(node) if isinstance(body, list)]
    for body in bodies:
        for n, place in enumerate(body):
            if not isinstance(place, ast.Expr) or not isinstance(place.value, ast.BoolOp):
                continue
            body[n] = ast.copy_location(ast.Pass(), place)
            mutant = ModuleType("mutant")
            exec(compile(tree, "mutant", "exec"), mutant.__dict__)
            body[n] = place
            yield f"line {place.lineno}: {ast.unparse(place)}", mutant


@pytest.mark.promise(
    "Every place that checks a rule is needed: a test fails without it",
    rule="`state/core/invariants.py`",
    also=["::test_every_rule_that_the_source_names_is_broken_by_a_test_here"],
)
def test_every_place_that_checks_a_rule_is_needed_by_a_test_here():
    """Without it some case would pass, or be refused for another reason."""
    cases = list(all_cases())
    assert all(refuses(invariants, *case) for case in cases)
    needless = [
        place for place, mutant in without_each_rule() if all(refuses(mutant, *case) for case in cases)
    ]
    assert not needless, "\n".join(needless)


def test_every_rule_that_the_source_names_is_broken_by_a_test_here():
    named = set(re.findall(r'"([a-z]+(?:-[a-z]+)+)"', rules()))
    broken = {rule for rule, _ in STEPS + DRAINS + GROUPS + STATES} | {rule for rule, *_ in OTHERS}
    assert named == broken | {"clock-never-goes-back"}


def singles(ids):
    return [Member(SpineId(n, n + 1), hollow(n, n + 1, run(f"p{n}"))) for n in ids]


THREE = singles(range(3))


def spine(*batches, merges=(), members=None, next_id=None, sliced=0):
    """Spine batches `(level, lo, hi)`, a member and a row for each id; those before `sliced` are slices."""
    if members is None:
        members = singles(sorted({n for _, lo, hi in batches for n in range(lo, hi)}))
    made = tuple(SpineBatch(SpineId(lo, hi), k, Bounds(F(lo), F(hi), F(0)), hi - lo) for k, lo, hi in batches)
    under_way = tuple(FuelingMerge(SpineId(lo, hi), F(0), 0) for lo, hi in merges)
    count = len(members) if next_id is None else next_id
    return Spine.of(count, 0, members, made, under_way, sliced=sliced)


GOOD = spine((3, 0, 2), (1, 2, 3), (1, 3, 4), merges=[(2, 4)])
CUT = spine((0, 0, 1), (0, 1, 2), (1, 2, 3), (1, 3, 4), merges=[(2, 4)], sliced=2)


def slice_(n, **fields):
    """The spine with slices, one of which has other bounds or rows."""
    old = CUT.slices[n]
    bounds = replace(old.bounds, **{name: F(at) for name, at in fields.items() if name != "rows"})
    changed = replace(old, bounds=bounds, rows=fields.get("rows", old.rows))
    return replace(CUT, slices=CUT.slices.set(n, changed))


def folded(spine_, since):
    """With the newest spine batch said to be folded further."""
    last = spine_.batches[-1]
    bounds = replace(last.bounds, since=since)
    return replace(spine_, batches=(*spine_.batches[:-1], replace(last, bounds=bounds)))


@pytest.mark.promise(
    "Ids and bounds tile; exactly the full levels have a merge; no batch has a `since` past the shard's",
    rule="`validate`, `validate_levels` in `state/spine/spine.py`, `batches-tile`",
    also=["state/test_spine_properties.py::test_there_are_few_spine_batches_and_a_step_changes_few_entries"],
)
@pytest.mark.parametrize(
    ("message", "broken"),
    [
        ("do not fall from old to new", spine((1, 0, 2), (3, 2, 3))),
        ("do not fall from old to new", spine((3, 0, 1), (1, 1, 2), (3, 2, 3), merges=[(0, 3)])),
        ("holds 3 spine batches", spine((1, 0, 1), (1, 1, 2), (1, 2, 3), merges=[(0, 3)])),
        ("full levels at", spine((1, 0, 1), (1, 1, 2))),
        ("full levels at", spine((2, 0, 1), (1, 1, 2), merges=[(0, 2)])),
        ("full levels at", spine((1, 0, 2), (1, 2, 3), merges=[(0, 2)])),
        ("does not start at id", spine((2, 0, 1), (1, 2, 3), members=THREE)),
        ("the ids end at", spine((2, 0, 2), members=THREE)),
        ("does not start at id", spine((2, 0, 2), (1, 1, 2))),
        ("no members of the spine tile", spine((2, 0, 2), members=[merged(hi=3, upper=2)], next_id=2)),
        (
            "rows, its members have",
            replace(GOOD, batches=(replace(GOOD.batches[0], rows=9), *GOOD.batches[1:])),
        ),
        ("its members differ", spine((2, 0, 1), members=[merged(run("q"), upper=2)])),
        ("a member is later", spine((2, 0, 1), members=[merged(run("q"), since=F(1))])),
        ("the totals", replace(GOOD, totals=replace(GOOD.totals, runs=3))),
        ("outside the ids", replace(GOOD, members=GOOD.members.set(9, merged(lo=9, hi=10)))),
        ("is after the shard's", folded(GOOD, F(8))),
        ("is after the shard's", replace(GOOD, merges=(replace(GOOD.merges[0], since=F(8)),))),
        ("spine batch .* rows, its members have", slice_(0, rows=9)),
        ("spine batch .* its members differ", slice_(1, lower=0)),
        ("slice .* is after the shard's", slice_(0, since=8)),
        ("slice .* does not start at id", replace(CUT, slices=CUT.slices[1:])),
        ("spine batch .* does not start at id 1", replace(CUT, slices=CUT.slices[:1])),
    ],
)
def test_each_rule_of_a_spine_can_fail(message, broken):
    upper = F(broken.next_id)
    if message == "its members differ":
        upper = F(2)
    with pytest.raises(InternalError, match=message):
        validate(broken, F(0), upper, F(1))


def test_a_spine_that_keeps_the_rules_is_valid():
    validate(GOOD, F(0), F(4), F(1))
    validate(CUT, F(0), F(4), F(1))
    with pytest.raises(InternalError, match="batches end at"):
        validate(GOOD, F(0), F(5), F(1))
