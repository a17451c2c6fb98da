"""What a user asks of a read, and which columns must be read for it."""

import pytest

from tidelake.errors import UsageError
from tidelake.model.predicate import all_of, leaf
from tidelake.model.schema import Column, DataType, Schema
from tidelake.model.selection import ReadOptions, Selection

INT = DataType("int64")
ID, A, B = Column(0, "id", INT), Column(4, "a", INT), Column(2, "b", INT)
SCHEMA = Schema((ID,), (A, B))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"columns": "id"}, "not a list of column names"),
        ({"columns": [1]}, "not a list of column names"),
        ({"columns": 3}, "not a list of column names"),
        ({"where": b"a > 1"}, "not SQL text"),
        ({"timeout_s": -0.5}, "not negative"),
        ({"timeout_s": "1"}, "not negative"),
    ],
)
def test_arguments_of_the_wrong_type_are_refused(wrong, said):
    with pytest.raises(UsageError, match=said):
        ReadOptions(**wrong)


def test_equal_options_are_equal_whatever_holds_the_columns():
    assert ReadOptions(["a", "b"]) == ReadOptions(("a", "b"))
    assert hash(ReadOptions(["a"], timeout_s=1)) == hash(ReadOptions(("a",), timeout_s=1))


@pytest.mark.parametrize(
    ("selection", "needed"),
    [
        (Selection(), [ID, A, B]),
        (Selection(("b", "id")), [ID, B]),
        (Selection(()), []),
        (Selection((), leaf(4, [(b"a", b"b")])), [A]),
        (Selection(("b",), all_of([leaf(0, [(b"a", b"b")]), leaf(2, [(b"a", b"b")])])), [ID, B]),
    ],
)
def test_columns_that_are_shown_or_in_the_condition_are_needed(selection, needed):
    assert selection.needs(SCHEMA) == needed
