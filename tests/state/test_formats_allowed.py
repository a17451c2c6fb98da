"""A lake of an earlier version: what is not written into it, and how it is upgraded."""

from dataclasses import replace

import pytest
from shard_states import F, hollow, run
from sliced_shards import SlicedShard

from tidelake.errors import InternalError
from tidelake.model.schema import SchemaVersion
from tidelake.state import agreeing, basing, schemas, slices
from tidelake.state.agreed import AS_MADE, BEFORE_SLICES, NEWEST, SLICES
from tidelake.state.bases import Unpaid
from tidelake.state.commands import Commit, NoOp, Refused
from tidelake.state.edits import Edits
from tidelake.state.formats import check_format
from tidelake.state.spine import SpineId
from tidelake.state.staged import Staged
from tidelake.state.state import MergeClaim


def earlier():
    """A shard in a lake of an earlier version."""
    shard = SlicedShard()
    shard.state = replace(shard.state, agreed=AS_MADE)
    shard.add(4, 4, 4)
    return shard


def test_a_lake_of_an_earlier_version_gets_slices_and_bases_once_it_is_upgraded():
    shard = earlier()
    assert shard.state.format == BEFORE_SLICES and not slices.may_cut(shard.state, 4)
    assert shard.cut(4) == 0 and basing.request(shard.state, 1) is None
    assert shard.do(agreeing.upgrade).result.format == BEFORE_SLICES
    assert shard.state.format == NEWEST and not shard.state.agreed.told
    assert shard.cut(4) == 3 and basing.request(shard.state, 1) is not None


def test_an_upgrade_keeps_the_settings_and_settings_keep_the_format():
    catalog, shard = earlier(), earlier()
    for one in (catalog, shard):
        one.do(agreeing.change, {"upload_age_ms": 7})
    before = catalog.state.agreed
    catalog.do(agreeing.upgrade)
    after = catalog.state.agreed
    assert after == replace(before, revision=2, format=NEWEST, told=False) and after.longer
    assert isinstance(catalog.do(agreeing.upgrade), NoOp)
    shard.do(agreeing.adopt, agreed=after)
    assert shard.state.agreed.format == NEWEST
    changed = catalog.do(agreeing.change, {"upload_age_ms": 9}).result
    shard.do(agreeing.adopt, agreed=changed)
    assert changed.format == shard.state.agreed.format == NEWEST


def test_a_shard_that_has_slices_is_at_their_format_whatever_its_lake_tells():
    shard = earlier()
    shard.do(agreeing.upgrade)
    shard.cut(4)
    shard.state = replace(shard.state, agreed=AS_MADE)
    assert shard.state.format == SLICES
    shard.add(4)
    assert shard.cut(4) == 1


CLAIM = MergeClaim(SpineId(0, 1), (), "", F(0), "runner", 9, ())


@pytest.mark.parametrize(
    "edits",
    [
        Edits(sliced=1),
        Edits(unpaid=Unpaid(1, 2, 3)),
        Edits(bases={1: None}),
        Edits(claims={"0-1": replace(CLAIM, by_time=True)}),
        Edits(claims={"0-1": replace(CLAIM, base=1)}),
    ],
)
def test_a_step_that_the_version_before_cannot_read_is_not_written(edits):
    state = earlier().state
    upgraded = replace(state, agreed=replace(state.agreed, format=NEWEST))
    with pytest.raises(InternalError, match="the format is 3"):
        check_format(state, state, edits)
    check_format(state, upgraded, edits)
    check_format(state, state, Edits(claims={"0-1": CLAIM, "1-2": None}))


def test_a_hash_of_rows_is_not_written_before_the_lake_is_upgraded():
    state = earlier().state
    upgraded = replace(state, agreed=replace(state.agreed, format=NEWEST))
    edits = Edits(staged={"s": Staged(hollow(9, 10, run("s", row_hash=1)), 9)})
    with pytest.raises(InternalError, match="hashes of rows, and the format is 3"):
        check_format(state, state, edits)
    check_format(state, upgraded, edits)
    check_format(state, state, Edits(staged={"s": Staged(hollow(9, 10, run("s")), 9)}))


def test_columns_are_renamed_once_the_lake_is_upgraded():
    shard = earlier()
    rename = {"schema": None, "drop": (), "rename": {"k": "w"}}
    refused = schemas.evolve(shard.state, 0, **rename)
    assert isinstance(refused, Refused) and "upgraded" in str(refused.error)
    version = SchemaVersion(shard.state.schema, shard.state.seqno, (("k", "w"),))
    with pytest.raises(InternalError, match="renames a column, and the format is 3"):
        check_format(shard.state, shard.state, Edits(schemas={1: version}))
    shard.do(agreeing.upgrade)
    done = schemas.evolve(shard.state, 0, **rename)
    assert isinstance(done, Commit) and done.edits.schemas[1].renamed == (("k", "w"),)
