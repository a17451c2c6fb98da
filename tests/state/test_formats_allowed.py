"""A lake of an earlier version: what is not written into it, and how it is upgraded."""

from dataclasses import dataclass, field, replace

from shard_states import Shard

from tidelake.state.core.agreed import Agreed
from tidelake.state.core.commands import NoOp
from tidelake.state.core.formats import FIRST, NEWEST, as_stored, has_later, later
from tidelake.state.life import agreeing


def earlier():
    """A shard in a lake of an earlier version."""
    shard = Shard()
    shard.state = replace(shard.state, agreed=Agreed(format=NEWEST - 1))
    return shard


def test_an_upgrade_keeps_the_settings_and_settings_keep_the_format():
    catalog, shard = earlier(), earlier()
    for one in (catalog, shard):
        one.do(agreeing.change, {"upload_age_ms": 7})
    before = catalog.state.agreed
    assert catalog.do(agreeing.upgrade).result.format == NEWEST - 1
    after = catalog.state.agreed
    assert after == replace(before, revision=2, format=NEWEST, told=False) and after.longer
    assert isinstance(catalog.do(agreeing.upgrade), NoOp)
    shard.do(agreeing.adopt, agreed=after)
    assert shard.state.agreed.format == NEWEST
    changed = catalog.do(agreeing.change, {"upload_age_ms": 9}).result
    shard.do(agreeing.adopt, agreed=changed)
    assert changed.format == shard.state.agreed.format == NEWEST


@dataclass(frozen=True)
class Inner:
    first: int
    second: int = later(FIRST + 1, 0)


@dataclass(frozen=True)
class Plain:
    told: dict[int, Inner | None] = field(default_factory=dict)
    ones: tuple[Inner, ...] = ()
    alone: Inner | None = None
    third: str = later(FIRST + 2, "")


def test_a_later_field_is_left_out_while_it_has_its_default_and_makes_the_format_later_when_not():
    two = {"first": 1, "second": 5}
    usual = {"told": {}, "ones": [], "alone": None}
    for value, kept in [
        (Plain(), {}),
        (Plain({3: Inner(1), 4: None}), {"told": {3: {"first": 1}, 4: None}}),
        (Plain(ones=(Inner(1),), alone=Inner(2)), {"ones": [{"first": 1}], "alone": {"first": 2}}),
    ]:
        assert as_stored(Plain, value) == (FIRST, usual | kept)
    assert as_stored(Plain, Plain({3: Inner(1, 5)})) == (FIRST + 1, usual | {"told": {3: two}})
    assert as_stored(Plain, Plain(ones=(Inner(1), Inner(1, 5)))) == (
        FIRST + 1,
        usual | {"ones": [{"first": 1}, two]},
    )
    assert as_stored(Plain, Plain(alone=Inner(1, 5), third="x")) == (
        FIRST + 2,
        usual | {"alone": two, "third": "x"},
    )


def test_a_value_of_a_type_without_later_fields_is_stored_as_it_is():
    agreed = Agreed()
    assert not has_later(Agreed) and as_stored(Agreed, agreed)[1] is agreed
    assert all(map(has_later, (Plain, Inner, dict[str, Inner], tuple[Inner, ...])))
