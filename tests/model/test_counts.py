"""Tests for `tidelake.model.counts`."""

from dataclasses import dataclass

from tidelake.model.counts import Removals, added


@dataclass(frozen=True)
class Told(Removals):
    name: str


def test_the_numbers_are_summed_and_the_rest_stays():
    one = Told("a", removed=1, absent=2)
    assert one.plus(Told("b", removed=10), Removals(absent=5)) == Told("a", removed=11, absent=7)
    assert one.plus() == one


def test_numbers_lists_and_numbers_by_name_are_added():
    assert (added(1, 2), added(["a"], ["b"]), added({"a": 1}, {"a": 2, "b": 3})) == (
        3,
        ["a", "b"],
        {"a": 3, "b": 3},
    )
