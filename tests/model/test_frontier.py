"""The laws of times and frontiers, for ints and for tuples."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelake.errors import UsageError
from tidelake.model import time as times
from tidelake.model.bounds import Bounds
from tidelake.model.frontier import Frontier
from tidelake.model.time import TIME_MAX, TimeDomain
from tidelake.testing import strategies

DOMAINS = [TimeDomain("counter"), TimeDomain("tuple", 2), TimeDomain("tuple", 3)]
domains = st.sampled_from(DOMAINS)


def drawn(data, domain, *kinds):
    makers = {"t": strategies.times, "f": strategies.frontiers}
    return [data.draw(makers[kind](domain)) for kind in kinds]


def every_time(domain, last=7):
    """All times of a small box, to check sets of times by looking at each."""
    span = range(last + 1)
    if domain.unit == "counter":
        return list(span)
    boxes = [()]
    for _ in range(domain.arity):
        boxes = [(*b, x) for b in boxes for x in span]
    return boxes if domain.arity == 2 else boxes[::7]


def test_a_frontier_is_shown_by_its_times():
    assert repr(Frontier.of((4, 0), (0, 5))) == "Frontier([(0, 5), (4, 0)])"


@given(st.data(), domains)
def test_times_form_a_lattice(data, domain):
    a, b, c = drawn(data, domain, "t", "t", "t")
    assert times.less_equal(a, times.join(a, b))
    assert times.less_equal(times.meet(a, b), a)
    assert times.join(a, b) == times.join(b, a)
    assert times.join(a, times.join(b, c)) == times.join(times.join(a, b), c)
    assert times.join(a, times.meet(a, b)) == a == times.meet(a, times.join(a, b))
    assert times.less_equal(a, b) == (times.join(a, b) == b)
    assert times.less_than(a, b) == (times.less_equal(a, b) and a != b)


@given(st.data(), domains)
def test_a_frontier_is_an_antichain_of_the_minimal_elements(data, domain):
    elements = data.draw(st.lists(strategies.times(domain), max_size=6))
    frontier = Frontier.of_all(elements)
    assert not any(times.less_than(a, b) for a in frontier for b in frontier)
    for t in every_time(domain):
        assert frontier.less_equal(t) == any(times.less_equal(e, t) for e in elements)
        assert frontier.less_than(t) == any(times.less_than(e, t) for e in elements)


@pytest.mark.promise(
    "Frontiers are antichains, and their order, meet and join are those of the sets of times at or "
    "after them",
    rule="`model/frontier.py`",
)
@given(st.data(), domains)
def test_order_join_and_meet_are_those_of_the_sets_of_later_times(data, domain):
    f, g = drawn(data, domain, "f", "f")
    join, meet = f.join(g), f.meet(g)
    # The lattice is decided by the elements themselves, so look at them beside the box.
    probes = {*every_time(domain), *f, *g, *join, *meet}
    for t in probes:
        assert join.less_equal(t) == (f.less_equal(t) and g.less_equal(t))
        assert meet.less_equal(t) == (f.less_equal(t) or g.less_equal(t))
    assert (f <= g) == all(f.less_equal(t) for t in probes if g.less_equal(t))
    assert (f <= g) == (f.join(g) == g) == (f.meet(g) == f)
    assert (f < g) == (f <= g and f != g) == (g > f)
    assert f <= join and meet <= f and (f >= g) == (g <= f)


@given(st.data(), domains)
def test_joins_and_meets_are_associative_distributive_and_absorb(data, domain):
    f, g, h = drawn(data, domain, "f", "f", "f")
    assert f.join(g.join(h)) == f.join(g).join(h)
    assert f.meet(g.meet(h)) == f.meet(g).meet(h)
    assert f.join(f.meet(g)) == f == f.meet(f.join(g))
    assert f.join(g.meet(h)) == f.join(g).meet(f.join(h))
    assert f.join(Frontier()) == Frontier() and f.meet(Frontier()) == f


@given(st.data(), domains)
def test_insert_puts_a_time_at_or_after_and_nothing_needless(data, domain):
    f, t = drawn(data, domain, "f", "t")
    assert f.insert(t) == f.meet(Frontier.of(t))
    assert f.insert(t).less_equal(t)


@pytest.mark.promise(
    "Advancing a time by a frontier cannot be seen from any time at or after that frontier",
    rule="`Frontier.advance`",
)
@given(st.data(), domains)
def test_advancing_is_unseen_from_the_frontier_on_and_the_latest_such(data, domain):
    f, t = drawn(data, domain, "f", "t")
    advanced = f.advance(t)
    beyond = [b for b in every_time(domain) if f.less_equal(b)]
    assert times.less_equal(t, advanced)
    for b in beyond:
        assert times.less_equal(t, b) == times.less_equal(advanced, b)
    assert f.advance(advanced) == advanced
    if not f.closed:
        for later in every_time(domain):
            unseen = all(
                times.less_equal(t, b) == times.less_equal(later, b)
                for b in [*beyond, *(times.join(t, e) for e in f)]
            )
            assert not (unseen and times.less_than(advanced, later))


@given(st.data(), domains)
def test_advance_by_advances_every_element(data, domain):
    f, g = drawn(data, domain, "f", "f")
    assert f.advance_by(g) == Frontier.of_all(g.advance(t) for t in f)


@given(st.data(), domains)
def test_past_is_exactly_what_is_not_at_or_before(data, domain):
    (t,) = drawn(data, domain, "t")
    for s in every_time(domain):
        assert Frontier.past(t).less_equal(s) == (not times.less_equal(s, t))


@given(st.data(), domains)
def test_keeping_times_from_a_frontier_is_sound_and_just_before_is_enough(data, domain):
    since, lower = drawn(data, domain, "f", "f")
    if since.keeps_times_from(lower):
        for t in every_time(domain):
            advanced = since.advance(t)
            assert lower.less_equal(advanced) == lower.less_equal(t)
            assert not lower.less_equal(t) or advanced == t
    if domain.total_order and not lower.closed and lower != Frontier.of(0):
        assert since.keeps_times_from(lower) == (since < lower)
    assert lower.just_before().keeps_times_from(lower)


def test_past_the_last_time_is_closed():
    assert Frontier.past(TIME_MAX).closed
    assert Frontier.past((TIME_MAX, 3)) == Frontier.of((0, 4))


def test_bounds_refuse_a_lower_after_the_upper():
    with pytest.raises(UsageError, match=r"\[3\].*\[2\]"):
        Bounds(Frontier.of(3), Frontier.of(2), Frontier.of(0))
    bounds = Bounds(Frontier.of(2), Frontier.of(5), Frontier.of(0))
    assert [t for t in range(8) if bounds.contains(t)] == [2, 3, 4]


@pytest.mark.parametrize("text", ["counter", "ms", "us", "date", "tuple(1)", "tuple(2)", "tuple(8)"])
def test_a_unit_of_time_reads_back(text):
    assert str(TimeDomain.parse(text)) == text


@pytest.mark.parametrize("text", ["", "seconds", "tuple", "tuple(0)", "tuple(9)", "Counter", 7, None])
def test_an_unknown_unit_of_time_is_refused_with_the_known_ones(text):
    with pytest.raises(UsageError, match=r"tuple\(n\)|n <= 8"):
        TimeDomain.parse(text)


@pytest.mark.parametrize("bad", [-1, 2**63, 1.0, "1", None, True, (1,)])
def test_a_value_that_is_no_time_is_refused(bad):
    with pytest.raises(UsageError, match="not a time of unit counter"):
        TimeDomain("counter").check(bad)


def test_a_tuple_time_needs_all_its_components():
    assert TimeDomain("tuple", 2).check([1, 2]) == (1, 2)
    for bad in ((1,), (1, 2, 3), 1, (1, -2), (1, None)):
        with pytest.raises(UsageError, match="tuple of 2"):
            TimeDomain("tuple", 2).check(bad)


@pytest.mark.parametrize("unit", ["us", "ms", "date"])
def test_a_frontier_of_a_clock_compares_as_any_other(unit):
    plain, later = Frontier.of(3), Frontier.of(4)
    for low in (plain, plain.of_unit(unit)):
        for high in (later, later.of_unit(unit)):
            assert low < high and low <= high and high > low and high >= low
            assert not (high < low or high <= low or low > high or low >= high)
        assert low == plain.of_unit(unit) and low <= plain.of_unit(unit) and low >= plain.of_unit(unit)
        assert not low < plain.of_unit(unit) and not low > plain.of_unit(unit)
