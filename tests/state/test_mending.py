"""Mending a state that breaks any rule gives one that keeps all rules, with all that can be kept."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyrsistent import pmap
from shard_states import F, hollow, part, run
from test_invariants import GOOD, STATES, a_state, folded, merged, spine, waiting, with_

from tidelake.errors import InternalError
from tidelake.model.batch import Run
from tidelake.state.core.invariants import check_state
from tidelake.state.core.state import CriticalHold
from tidelake.state.life.mending import all_parts, mended, not_ours
from tidelake.state.spine.spine import SpineId
from tidelake.state.spine.staged import Staging
from tiers import examples

# Nothing can be built where there is no schema.
MENDABLE = [(rule, broken) for rule, broken in STATES if broken(a_state()).schemas]
# A state of tuples, into which numbers do not fit.
TUPLES = "rewrite-total-order"
SPINES = [
    ("levels", spine((1, 0, 2), (3, 2, 3))),
    ("two merges at one level", spine((1, 0, 1), (1, 1, 2), (1, 2, 3), merges=[(0, 3)])),
    ("a hole in the ids", spine((2, 0, 1), (1, 2, 3), members=GOOD and list(GOOD)[:3])),
    ("no members below a batch", spine((2, 0, 2), members=[merged(hi=3, upper=2)], next_id=2)),
    ("rows", replace(GOOD, batches=(replace(GOOD.batches[0], rows=9), *GOOD.batches[1:]))),
    ("bounds", spine((2, 0, 1), members=[merged(run("q"), upper=2)])),
    ("a later member", spine((2, 0, 1), members=[merged(run("q"), since=F(1))])),
    ("outside of the ids", replace(GOOD, members=GOOD.members.set(9, merged(lo=9, hi=10)))),
    ("folded", folded(GOOD, F(8))),
]


def mend(state, **kwargs):
    made = mended(state, **kwargs)
    check_state(made.state)
    assert made.state.seqno == state.seqno
    return made


def kept_names(made):
    return {part.name for part in all_parts(made.state)}


def test_a_state_that_keeps_the_rules_keeps_all_its_parts():
    for state in (a_state(), waiting()):
        made = mend(state)
        assert made.aside == () and kept_names(made) == {part.name for part in all_parts(state)}
        assert (made.state.upper, made.state.since, made.state.writers) == (
            state.upper,
            state.since,
            state.writers,
        )


@pytest.mark.parametrize(("rule", "broken"), MENDABLE)
def test_each_rule_can_be_mended(rule, broken):
    state = broken(a_state())
    with pytest.raises(InternalError, match=f"rule {rule} "):
        check_state(state)
    made = mend(state)
    aside = {one.part.name for one in made.aside if one.part is not None}
    # What is not kept is told, and nothing else is missing.
    before = {part.name for part in all_parts(state)}
    if state.dropped:
        assert before <= made.state.garbage.keys()
        return
    assert kept_names(made) | aside == before
    of_tuples = ("rewrite-total-order", "base-total-order")  # These states have one part, `p`.
    assert {"p0", "p1", "m2"} <= kept_names(made) or rule in of_tuples


@pytest.mark.parametrize(("what", "broken"), SPINES, ids=[what for what, _ in SPINES])
def test_each_rule_of_a_spine_can_be_mended(what, broken):
    state = replace(
        a_state(), spine=broken, claims=pmap(), chunks=pmap(), upper=F(4), garbage=pmap(), holds=pmap()
    )
    with pytest.raises(InternalError):
        check_state(state)
    made = mend(state)
    assert kept_names(made) == {part.name for part in all_parts(state)}


@settings(max_examples=examples(100))
@given(st.lists(st.sampled_from([one for one in MENDABLE if one[0] != TUPLES]), min_size=1, max_size=5))
def test_any_rules_together_can_be_mended(several):
    state = a_state()
    for _, broken in several:
        state = broken(state)
    made = mend(state)
    aside = {one.part.name for one in made.aside if one.part is not None}
    assert kept_names(made) | aside == {part.name for part in all_parts(state)} or state.dropped
    assert mend(made.state).aside == ()


def test_of_a_part_that_is_named_twice_the_first_one_stays():
    made = mend(with_(hollow(3, 4, run("p0", 3, 3), run("q", 3, 3, rows=2))))
    [aside] = made.aside
    assert (aside.rule, aside.part.name, aside.rows, aside.doubled) == ("part-named-once", "p0", 0, True)
    assert kept_names(made) == {"p0", "p1", "m2", "q"} and made.state.upper == F(4)


def test_parts_that_are_gone_are_set_aside_and_their_times_stay_closed():
    made = mend(a_state(), lost=frozenset({"p1"}))
    [aside] = made.aside
    assert (aside.rule, aside.rows) == ("part-missing", 2) and "times 1 to 1" in aside.what
    assert kept_names(made) == {"p0", "m2"} and made.state.upper == F(3)


def test_batches_that_overlap_become_one_and_in_a_hole_there_is_nothing():
    good = a_state()
    members = [
        merged(run("a"), lower=0, upper=2),
        merged(run("b", 1, 1), lower=1, upper=3, lo=1, hi=2),
        merged(run("c", 5, 5), lower=5, upper=6, lo=2, hi=3),
    ]
    broken = replace(good, upper=F(6), spine=spine((2, 0, 3), members=members), claims=pmap(), chunks=pmap())
    made = mend(broken)
    found = [
        (str(member.batch.bounds), [p.name for p in member.batch.parts()]) for member in made.state.spine
    ]
    assert found == [
        ("[[0], [3]) since [0]", ["a", "b"]),
        ("[[3], [5]) since [0]", []),
        ("[[5], [6]) since [0]", ["c"]),
    ]
    assert [one.rule for one in made.aside] == ["batches-tile"]


def test_since_goes_back_to_a_hold_if_nothing_was_folded_and_else_the_hold_goes():
    state = replace(a_state(), since=F(2))
    made = mend(state)
    assert made.state.since == F(1) and made.state.holds == state.holds and made.aside == ()
    held = state.critical.set("k", CriticalHold(F(0), "t", 0))
    member = replace(next(iter(state.spine)), batch=hollow(0, 1, run("p0", rows=2), since=F(2)))
    folded_ = replace(state.spine, members=state.spine.members.set(0, member))
    made = mend(replace(state, spine=folded_, critical=held))
    assert made.state.since == F(2) and not made.state.holds
    assert made.state.critical["k"].since == F(2)
    assert [one.rule for one in made.aside] == ["holds-keep-since"] * 2


def test_what_another_shard_keeps_is_copied_or_set_aside():
    foreign = "other/parts/0000000000000003-0a.parquet"
    state = with_(hollow(3, 4, run(foreign, 3, 3)))
    assert [one.name for one in not_ours(state)] == [foreign]
    assert [one.rule for one in mend(state).aside] == ["borrowed-from-origin"]
    made = mend(state, own={foreign: "s/parts/0000000000000005-0b.parquet"})
    assert made.aside == () and "s/parts/0000000000000005-0b.parquet" in kept_names(made)


def test_what_may_be_deleted_at_any_moment_is_copied_or_set_aside():
    good = a_state()
    state = replace(good, doomed=good.doomed.set("p1", good.garbage["lost"]))
    assert [one.name for one in not_ours(state)] == ["p1"]
    assert [one.part.name for one in mend(state).aside] == ["p1"]
    made = mend(state, own={"p1": "copy"})
    assert made.aside == () and "copy" in kept_names(made) and "p1" in made.state.doomed


def test_staged_rows_at_times_that_are_drained_are_set_aside():
    staged = waiting().staged.batches["s"]
    batch = hollow(0, 9, run("t", 1, 7, rows=3))
    state = replace(waiting(), staged=Staging.of({"s": staged, "t": replace(staged, batch=batch)}))
    made = mend(state)
    assert [(one.rule, one.rows) for one in made.aside] == [("staged-is-open", 3)]
    assert "s" in made.state.staged.batches


def test_a_run_without_parts_goes_without_a_word():
    made = mend(with_(hollow(3, 4, Run(()), Run((part("q", 3, 3),)))))
    assert made.aside == () and "q" in kept_names(made)
    assert SpineId(0, made.state.spine.next_id)
