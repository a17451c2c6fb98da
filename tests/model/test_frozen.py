"""Frozen values with other fields."""

from dataclasses import replace

import pytest

from tidelake.errors import InternalError
from tidelake.model.frontier import Frontier
from tidelake.model.frozen import with_fields
from tidelake.model.time import TimeDomain
from tidelake.state.core.edits import Edits
from tidelake.state.core.fields import Move
from tidelake.state.core.state import ShardState
from tidelake.state.spine.spine import Spine

START = Frontier((0,))
STATE = ShardState("s", TimeDomain("counter"), 7, 1, START, START, START)


@pytest.mark.parametrize(
    ("value", "fields"),
    [
        (STATE, {}),
        (STATE, {"seqno": 8, "upper": Frontier((3,))}),
        (Edits(), {"since": Move(START, START), "dropped": True}),
        (Spine(), {"next_id": 4}),
    ],
)
def test_the_copy_is_that_of_the_standard_library(value, fields):
    before = repr(value)
    made = with_fields(value, **fields)
    assert made == replace(value, **fields) and type(made) is type(value)
    assert repr(value) == before and (made is not value)


def test_a_field_that_is_not_there_is_refused():
    with pytest.raises(InternalError, match="seqnr"):
        with_fields(STATE, seqnr=8)
