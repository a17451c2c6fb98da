"""The commands of erasures: what was worked out before one is refused after it."""

from dataclasses import replace

from pyrsistent import pmap
from shard_states import F, Shard, part, run
from writes import append, stage

from tidelake.errors import LeaseExpired, UsageError
from tidelake.model import names
from tidelake.model.batch import Run
from tidelake.state.core.erasures import Erasure
from tidelake.state.core.garbage import Garbage
from tidelake.state.core.state import Rollup
from tidelake.state.life import erasing, forking
from tidelake.state.write import staging
from tidelake.state.write.staging import Split
from tidelake.state.write.write import Exactly

ASKED = Erasure("asked for", 1, 7, (b"key",))


def erase(shard, changes):
    """Carry out an erasure by which the runs of these first parts become others; the seqno before."""
    shard.do(erasing.ask, id_="e", erasure=ASKED)
    before, runs = shard.state.seqno, {}
    for _, held in erasing.runs_of(shard.state):
        old = erasing.names_of(held)
        runs[old] = changes.get(old[0], held.parts)
    made = erasing.ErasedRuns(("e",), runs, {}, frozenset(shard.state.forks))
    assert shard.do(erasing.erase, made=made).result is True
    return before


def test_halves_of_a_staged_batch_that_were_made_before_are_not_put_in():
    shard = Shard()
    both = (run("s", 3, 9), run("t", 3, 9, rows=2))
    shard.do(stage, both, F(0))
    before = erase(shard, {"t": (part("u", 3, 9),)})
    # The batch has kept its name, since its first part has stayed.
    assert [one.name for one in shard.state.staged] == ["s"]
    above = (run("both", 3, 9, rows=3, diff_sum=2),)
    late = Split(("s",), F(0), (), above, before)
    assert shard.do(staging.drain, late).result is False
    assert shard.do(staging.drain, replace(late, seqno=shard.state.seqno)).result is True


def test_a_version_from_before_is_not_forked_nor_any_while_rows_wait():
    shard = Shard()
    shard.do(append, (run("p", 0, 0, rows=2),), Exactly(F(0), F(1)))
    shard.do(erasing.ask, id_="x", erasure=ASKED)
    error = shard.refused(forking.note_fork, fork_id="f", seqno=shard.state.seqno)
    assert isinstance(error, UsageError) and "are being erased" in str(error)
    shard = Shard()
    shard.do(append, (run("p", 0, 0, rows=2),), Exactly(F(0), F(1)))
    before = erase(shard, {"p": (part("q", 0, 0),)})
    assert isinstance(shard.refused(forking.note_fork, fork_id="f", seqno=before), LeaseExpired)
    shard.do(forking.note_fork, fork_id="f", seqno=shard.state.seqno)
    assert shard.state.forks["f"].seqno == before + 1


def test_an_erasure_waits_for_what_was_added_meanwhile_and_for_forks():
    shard = Shard()
    shard.do(append, (run("p", 0, 0, rows=2),), Exactly(F(0), F(1)))
    shard.do(forking.note_fork, fork_id="f", seqno=shard.state.seqno)
    shard.do(erasing.ask, id_="e", erasure=ASKED)
    made = erasing.ErasedRuns(("e",), {("p",): (part("q", 0, 0),)}, {}, frozenset("f"))
    assert shard.do(erasing.erase, made=replace(made, forks=())).result is False
    assert shard.do(erasing.erase, made=replace(made, ids=("e", "other"))).result is False
    shard.do(append, (run("r", 1, 1),), Exactly(F(1), F(2)))
    assert shard.do(erasing.erase, made=made).result is False
    more = {**made.runs, ("r",): Run((part("r", 1, 1),)).parts}
    assert shard.do(erasing.erase, made=replace(made, runs=more)).result is True
    assert [one.name for one in shard.state.parts()] == ["q", "r"]


def test_bytes_are_left_while_an_object_or_a_rollup_from_before_is_there():
    shard = Shard()
    state = replace(shard.state, seqno=9, rollup=Rollup(8, "a" * 32, 5, 1))
    done = replace(ASKED, keys=(), seqno=6)
    assert not erasing.keeps_bytes(state, done)
    assert erasing.keeps_bytes(replace(state, rollup=Rollup(5, "a" * 32, 5, 1)), done)
    for name, removed, keeps in (
        ("s/parts/p", 6, True),
        ("s/parts/p", 7, False),
        (names.rollup("s", 5, "b" * 32), 8, True),
        (names.rollup("s", 6, "b" * 32), 8, False),
    ):
        lost = pmap({name: Garbage(1, removed, 5)})
        assert erasing.keeps_bytes(replace(state, garbage=lost), done) == keeps
        assert erasing.keeps_bytes(replace(state, doomed=lost), done) == keeps
