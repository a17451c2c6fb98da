"""A field of the state is declared once: all else follows from that."""

import json
import subprocess
import sys

import pytest
from shard_states import Shard

from nextversion import next_version
from tidelake.errors import CorruptionError, FormatTooNew
from tidelake.state.core import codec
from tidelake.state.core.edits import Edits
from tidelake.state.core.state import ShardState

CHILD = """
import json, sys
from dataclasses import replace
from shard_states import F, Shard
from tidelake.errors import CorruptionError, InternalError
from tidelake.state.core import codec
from tidelake.state.life import agreeing
from tidelake.state.core.agreed import Agreed
from tidelake.state.core.edits import Delta, Edits, apply
from tidelake.state.core.fields import Move
from tidelake.state.core.invariants import check_state, check_step

def told(call):
    try:
        return call()
    except (CorruptionError, InternalError) as error:
        return str(error)

def step(state, edits):
    delta = Delta("s", state.seqno + 1, 9, "n", state.rollup, edits)
    data = codec.encode_delta(delta)
    assert codec.decode_delta(data, "d") == delta
    after = apply(state, delta)
    check_state(after)
    check_step(state, after, edits)
    whole = codec.encode_state(after)
    assert codec.decode_state(whole, "s") == after
    return after, data, whole

state = replace(Shard().state, shard_id="s", agreed=Agreed(format=1))
usual = step(state, Edits(expired=3))
first, one, whole = step(usual[0], Edits(marks={"a": 1, "b": 2}, size=7))
second, *_ = step(first, Edits(marks={"a": None, "c": 3}, size=0))
records = {"usual delta": usual[1], "usual state": usual[2], "delta": one, "state": whole}
print(json.dumps({
    "records": {name: data.decode() for name, data in records.items()},
    "first": [dict(first.marks), first.size], "second": [dict(second.marks), second.size],
    "unfit": told(lambda: step(second, Edits(marks={"x": None}))),
    "refused": told(lambda: codec.check_format(state, first, Edits(size=1))),
    "taken": told(lambda: codec.check_format(first, replace(first, agreed=Agreed(format=2)), Edits(size=1))),
}))
"""


def said(folder):
    """What a process of these sources does with its fields."""
    paths = ":".join([str(folder), *(one for one in sys.path if one)])
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        env={"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert not done.returncode, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.promise(
    "A field of the state that is declared is merged, stored, read back and checked like any other, "
    "and a version without it reads all records that do not have it",
    rule="`tidelake.state.core.fields`, `_stored` in `state/core/codec.py`",
    also=["::test_what_is_declared_has_one_type_in_a_state_and_another_in_edits"],
)
@pytest.mark.parametrize("format_", [1, 2])
def test_a_field_that_is_declared_is_merged_stored_and_read_back(tmp_path, format_):
    found = said(next_version(tmp_path, format_))
    assert found["first"] == [{"a": 1, "b": 2}, 7] and found["second"] == [{"b": 2, "c": 3}, 0]
    assert "removes 'x', which is not there" in found["unfit"]
    records = {name: data.encode() for name, data in found["records"].items()}
    assert [int(data.split(b" ", 2)[1]) for data in records.values()] == [1, 1, format_, format_]
    assert b'"marks":{"a":1,"b":2},"size":7' in records["delta"] and b'"size":7' in records["state"]
    # The version before reads all that does not have the fields, and nothing that has them.
    assert codec.decode_delta(records["usual delta"], "d").edits == Edits(expired=3)
    assert codec.decode_state(records["usual state"], "s").expired == 3
    later = FormatTooNew if format_ > 1 else CorruptionError
    for name, read in (("delta", codec.decode_delta), ("state", codec.decode_state)):
        with pytest.raises(later):
            read(records[name], name)
    assert (found["refused"] is not None) == (format_ > 1) and found["taken"] is None


def test_what_is_declared_has_one_type_in_a_state_and_another_in_edits():
    state, edits = Shard().state, Edits()
    assert not state.holds and edits.holds == {} and not hasattr(edits, "garbage")
    assert state.retention is not None and edits.retention is None and state.dropped is edits.dropped is False
    with pytest.raises(TypeError, match="since"):
        ShardState(shard_id="s", domain=state.domain, seqno=0, committed_ms=0)
    with pytest.raises(AttributeError, match="cannot assign"):
        edits.holds = {"h": None}
