"""Values of any type that is stored or sent, made from the declarations of its fields."""

import collections.abc
import dataclasses
from itertools import count
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pyrsistent import PMap, PSet, PVector, pmap, pset, pvector

from tidelake.config import Config
from tidelake.model.bounds import Bounds
from tidelake.model.frontier import Frontier
from tidelake.model.names import ObjectName
from tidelake.model.predicate import Predicate
from tidelake.model.schema import Column, DataType, Field, Schema
from tidelake.model.time import TimeDomain
from tidelake.state.core.agreed import Agreed
from tidelake.state.core.formats import NEWEST
from tidelake.state.spine.bases import Bases
from tidelake.state.spine.spine import FuelingMerge, Member, Spine, SpineBatch, SpineId
from tidelake.state.spine.staged import Staged, Staging

LIST = DataType("list", (), (Field("item", DataType("int8")),))
STRUCT = DataType("struct", (), (Field("x", LIST, False),))
KEY = (Column(0, "schlüssel", DataType("decimal128", (10, 2)), False), Column(1, "k", DataType("string")))
SCHEMA = Schema(KEY, (Column(2, "v", STRUCT), Column(4, "t", DataType("timestamp", ("us", "UTC")))))
LEAF = Predicate("in", 2, ((b"\x01", b"\x02"), (b"\x03\xff", b"\xff")))
# Types whose values are checked when they are made, or follow from others.
KNOWN = {
    TimeDomain: (TimeDomain("ms"), TimeDomain("tuple", 2), TimeDomain("date")),
    Frontier: (Frontier.of(3), Frontier.of((1, 5), (4, 0)), Frontier()),
    Bounds: (Bounds(Frontier.of(2), Frontier.of(5), Frontier.of(1)), Bounds(*[Frontier()] * 3)),
    Schema: (SCHEMA,),
    Predicate: (Predicate("and", of=(LEAF, Predicate("or", of=(LEAF, LEAF)))),),
    Config: (Config(**{one.name: one.default for one in dataclasses.fields(Config)} | {"slice_rows": 7}),),
    DataType: (STRUCT,),
}
# Of a state, of its spine and of what is staged, and in none of its records.
DERIVED = {"part_names", "unmerged", "totals"}


class Sampler:
    """Makes values; those of one type differ from each other.

    Args:
        least: leave all fields at what they say by default, and all maps and lists empty.
    """

    def __init__(self, *, least: bool = False) -> None:
        self._least = least
        self._number = count(1)

    def of(self, hint: Any) -> Any:
        """A value of a type."""
        n = next(self._number)
        origin, args = get_origin(hint), get_args(hint)
        if origin is Annotated:
            return f"{n:032x}/parts/{n:016x}-{n:032x}.parquet" if hint == ObjectName else self.of(args[0])
        if origin in (Union, UnionType):
            return None if self._least and NoneType in args else self.of(args[0])
        if origin is Literal:
            return args[-1]
        if hint in KNOWN:
            return KNOWN[hint][n % len(KNOWN[hint])]
        several = () if self._least and origin is not None else (0, 1)
        if origin is tuple and args[-1] is not ...:
            return tuple(self.of(one) for one in args)
        if origin in (tuple, PVector, PSet, collections.abc.Set, frozenset):
            made = {tuple: tuple, PVector: pvector, PSet: pset}.get(origin, frozenset)
            return made(self.of(args[0]) for _ in several)
        if origin in (dict, PMap, collections.abc.Mapping):
            found = {self.of(args[0]): self.of(args[1]) for _ in several}
            if several and NoneType in get_args(args[1]):
                found[self.of(args[0])] = None
            return pmap(found) if origin is PMap else found
        return self._plain(hint, n)

    def _plain(self, hint: Any, n: int) -> Any:
        match hint:
            case _ if hint is bool:
                return True
            case _ if hint is int:
                return 2**70 + n if n % 10 == 0 else n
            case _ if hint is float:
                return n / 4
            case _ if hint is bytes:
                return b"\x00\xff%d" % n
            case _ if hint is str:
                return f"s{n:02}"
            case _ if hint is Spine:
                kinds = (tuple[Member, ...], tuple[SpineBatch, ...], tuple[FuelingMerge, ...])
                members, batches, merges = map(self.of, kinds)
                sliced = batches[1].id.lo if batches else 0
                return Spine.of(n, n + 1, members, batches, merges, sliced=sliced)
            case _ if hint is Staging:
                return Staging.of(self.of(dict[str, Staged]))
            case _ if hint is Bases:
                return Bases.of(self.of(_hints(Bases)["held"]))
            case _ if hint is SpineId:
                return SpineId(n, n + 2)
        hints = _hints(hint)
        wanted = [one for one in dataclasses.fields(hint) if one.name not in DERIVED]
        usual = (dataclasses.MISSING, dataclasses.MISSING)
        if self._least:
            wanted = [one for one in wanted if (one.default, one.default_factory) == usual]
        found = {one.name: self.of(hints[one.name]) for one in wanted}
        if "format" in found and hint is Agreed:
            found["format"] = NEWEST  # A later one is refused.
        return hint(**found | {one.name: False for one in wanted if one.default is True})


def _hints(type_: Any) -> dict[str, Any]:
    return get_type_hints(type_, include_extras=True)


def plain(value: Any) -> Any:
    """A value as JSON, with the names of its types: what a decoder has to make of the bytes."""
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value) if field.name not in DERIVED]
        return {"": type(value).__name__, **{name: plain(getattr(value, name)) for name in names}}
    if isinstance(value, bytes):
        return {"": "bytes", "hex": value.hex()}
    if hasattr(value, "items"):
        return {str(key): plain(item) for key, item in sorted(value.items())}
    if isinstance(value, collections.abc.Set):
        return sorted(value)
    if isinstance(value, collections.abc.Sequence) and not isinstance(value, str):
        return [plain(item) for item in value]
    return value
