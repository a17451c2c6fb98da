"""A shard that has an owner takes changes of its contents and columns from that owner only."""

import pytest
from shard_states import SCHEMA, F, Shard, run
from writes import append, seal, stage

from tidelake.errors import CollectionIsView
from tidelake.model.schema import Column, DataType, Schema
from tidelake.state.core import owned
from tidelake.state.core.erasures import Erasure
from tidelake.state.core.state import Owned
from tidelake.state.group import joining
from tidelake.state.life import erasing, forking, schemas
from tidelake.state.write.write import Exactly

VIEW = Owned("view s", "{}")


def owned_shard(since=0):
    shard = Shard()
    shard.state = owned.with_owner(shard.state, VIEW, F(since))
    return shard


@pytest.mark.promise(
    "A collection that has an owner, as a view has its refresh, takes rows, seals, new columns and "
    "erasures from no other program, and joins no group of others",
    rule="`not_for` in `state/core/owned.py`",
    also=["state/test_owned.py"],
)
def test_only_the_owner_writes_seals_stages_and_joins():
    shard = owned_shard()
    for writes in (
        (append, (run("p", 0, 0),), Exactly(F(0), F(1))),
        (append, (), Exactly(F(0), F(1))),
        (stage, (run("p", 3, 3),), F(0)),
        (seal, F(5)),
    ):
        assert isinstance(shard.refused(*writes), CollectionIsView)
    joins = {"group": "g" * 32, "admitted": 1, "seen": shard.state.seqno}
    assert isinstance(shard.refused(joining.join, **joins), CollectionIsView)
    shard.do(append, (run("p", 0, 0),), Exactly(F(0), F(1)), owner="view s")
    assert shard.state.upper == F(1) and shard.names == ["p"]
    assert shard.do(joining.join, **joins | {"seen": shard.state.seqno}, owner="view s").result is None


def test_its_columns_and_rows_stay_as_its_owner_made_them():
    shard = owned_shard()
    wider = Schema(SCHEMA.key, (Column(1, "v", DataType("string")),))
    assert isinstance(shard.refused(schemas.evolve, wider, ()), CollectionIsView)
    erasure = Erasure("why", 1, 7, (b"key",))
    assert isinstance(shard.refused(erasing.ask, id_="e", erasure=erasure), CollectionIsView)


def test_times_before_its_birth_are_never_read():
    shard = owned_shard(since=4)
    assert shard.state.since == F(4)
    shard.do(append, (run("p", 4, 6),), Exactly(F(0), F(7)), owner="view s")
    assert shard.state.since == F(4)


def test_a_fork_of_it_has_no_owner():
    shard = owned_shard()
    shard.do(append, (run("p", 0, 0),), Exactly(F(0), F(1)), owner="view s")
    assert forking.forked(shard.state, "f" * 32, 9, None).owned is None
