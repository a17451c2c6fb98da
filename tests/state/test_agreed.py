"""Settings that all processes go by: what a change means for those who began before it."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from shard_states import Shard, run
from test_garbage import appended, name

from tidelake.state.core.agreed import AGES, AS_MADE, Agreed, Longer
from tidelake.state.core.codec import decode_state, encode_state
from tidelake.state.core.commands import NoOp
from tidelake.state.life import agreeing, collecting
from tiers import examples

SHORT, LONG = 1_000, 50_000


def test_what_becomes_longer_holds_at_once_and_what_becomes_shorter_stays_as_long_as_it_was():
    longer = AS_MADE.changed(10, 1, {"garbage_age_ms": 900_000})
    assert longer.garbage_ms(10) == 900_000 and not longer.longer
    shorter = longer.changed(20, 2, {"garbage_age_ms": 5})
    assert shorter.longer == {"garbage_age_ms": Longer(900_000, 900_020)}
    assert shorter.garbage_ms(900_019) == 900_000 and shorter.garbage_ms(900_020) == 5
    # What is in force counts, not what is written down: shortened again it ends no sooner.
    again = shorter.changed(30, 3, {"garbage_age_ms": 4})
    assert again.longer == {"garbage_age_ms": Longer(900_000, 900_030)}
    assert shorter.changed(30, 3, {"garbage_age_ms": 900_000}).longer == {}
    assert again.upload_ms(0) == AS_MADE.upload_age_ms


@pytest.mark.promise(
    "A changed age cuts short nothing that began before the change",
    rule="`ages-stay-in-force`, `agreed-never-goes-back`",
    also=[
        "state/test_invariants.py::test_each_rule_refuses_the_step_that_breaks_it",
        "lake/catalog/test_settings.py::test_an_upload_that_began_before_the_age_became_shorter_is_safe_for_as_long_as_it_was",
        "lake/catalog/test_settings.py::test_a_read_that_began_before_a_change_ends_as_it_should",
    ],
)
@given(
    st.lists(st.tuples(st.integers(1, 50), st.sampled_from(AGES), st.integers(0, 60)), min_size=1, max_size=8)
)
@hypothesis_settings(max_examples=examples(200), deadline=None)
@pytest.mark.grows
def test_nothing_that_began_under_an_age_ends_before_it(changes):
    """Whatever begins at a moment lasts, at every later moment, for at least the age that is set then."""
    agreed, now_ms, begun = Agreed(0, 0, 30, 30, 0), 0, []
    for number, (pause_ms, which, age_ms) in enumerate(changes):
        for _ in range(pause_ms):
            begun.append((now_ms, agreed.values))
            now_ms += 1
            for then_ms, counted_on in begun:
                for age in AGES:
                    ended = then_ms + agreed.in_force(age, now_ms) <= now_ms
                    assert not ended or then_ms + counted_on[age] <= now_ms
        agreed = agreed.changed(now_ms, number + 1, {which: age_ms})


def test_the_catalog_changes_and_the_others_adopt_what_is_newer():
    catalog, shard = Shard(), Shard()
    agreed = catalog.do(agreeing.change, {"upload_age_ms": LONG, "lease_ms": 7}).result
    assert (agreed.revision, agreed.upload_age_ms, agreed.lease_ms, agreed.told) == (1, LONG, 7, False)
    assert isinstance(catalog.do(agreeing.change, {"lease_ms": 7}), NoOp)
    shard.do(agreeing.adopt, agreed=agreed)
    assert shard.state.agreed.values == agreed.values and shard.state.agreed.told
    newer = catalog.do(agreeing.change, {"upload_age_ms": SHORT}, now_ms=20).result
    shard.do(agreeing.adopt, agreed=newer, now_ms=90)
    # By its own clock and its own ages: it is told later than the catalog.
    assert shard.state.agreed.longer["upload_age_ms"].until_ms > newer.longer["upload_age_ms"].until_ms
    assert isinstance(shard.do(agreeing.adopt, agreed=agreed), NoOp)
    catalog.do(agreeing.told, revision=1)
    assert not catalog.state.agreed.told
    catalog.do(agreeing.told, revision=2)
    assert catalog.state.agreed.told


def test_collectors_go_by_the_state_that_they_change():
    shard = Shard()
    shard.do(agreeing.adopt, agreed=AS_MADE.changed(0, 1, {"upload_age_ms": LONG}))
    appended(shard, run(name(1)))
    shard.do(collecting.raise_floor, unnamed_max=shard.state.seqno, now_ms=1_000)
    (mark,) = shard.state.sweep.marks
    shard.do(
        agreeing.adopt, agreed=shard.state.agreed.changed(2_000, 2, {"upload_age_ms": SHORT}), now_ms=2_000
    )
    shard.do(collecting.raise_floor, unnamed_max=None, now_ms=40_000)
    assert shard.state.sweep.floor == 0
    shard.do(collecting.raise_floor, unnamed_max=None, now_ms=2_000 + AS_MADE.upload_age_ms)
    assert shard.state.sweep.floor == mark[0]


def test_settings_as_they_always_were_are_not_stored():
    shard = Shard()
    shard.state = replace(shard.state, agreed=AS_MADE)
    assert b"agreed" not in encode_state(shard.state)
    shard.do(agreeing.change, {"lease_ms": 7})
    stored = encode_state(shard.state)
    assert b"agreed" in stored and decode_state(stored, "s") == shard.state
