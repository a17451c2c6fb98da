"""The declaration of a field of the state: its type, what edits say of it, and how one leads to the next.

A field stands in one place, `tidelake.state.core.state.StateFields`. From there follow the fields of
`ShardState` and of `Edits` (`of_state`, `of_edits`), the step from one version to the next (`merges`), and
the stored form (`tidelake.state.core.codec`). For mypy as well, a field has one type in a state and another
one in edits.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    TypeAlias,
    TypeVar,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

from pyrsistent import PMap, pmap

from tidelake.errors import CorruptionError
from tidelake.model.frontier import Frontier
from tidelake.state.core.formats import FIRST, since

S = TypeVar("S")
E = TypeVar("E")
T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
C = TypeVar("C")
Merge: TypeAlias = Callable[[Any, Any, str, str], Any]
"""The value after an edit, from the value before, the edit, the name of the field, and that of the step."""


class OfState:
    """What a state is for mypy: its fields have the first of their two types."""


class OfEdits:
    """What edits are for mypy: their fields have the second of their two types."""


class Declared(Generic[S, E]):
    """A field, of type `S` in a state and of type `E` in edits.

    Args:
        usual: what an empty state has; `MISSING`: it has to be given.
        unchanged: makes what edits say that do not change it.
        merge: how edits change it. None: `tidelake.state.core.edits.stepped` has a rule of its own.
        since: the format that it came with.
    """

    def __init__(
        self, usual: Any, unchanged: Callable[[], Any], merge: Merge | None, since: int = FIRST
    ) -> None:
        self.usual, self.unchanged, self.merge, self.since = usual, unchanged, merge, since

    if TYPE_CHECKING:

        @overload
        def __get__(self, of: OfState, owner: Any) -> S: ...

        @overload
        def __get__(self, of: OfEdits, owner: Any) -> E: ...

        def __get__(self, of: Any, owner: Any) -> Any: ...

        def __set__(self, of: Any, value: S | E) -> None: ...


@dataclass(frozen=True)
class Move:
    """A move of a frontier to `after`; `before` is stored so that it can be checked."""

    before: Frontier
    after: Frontier


class Moving(Declared[Frontier, Move | None]):
    """A frontier, which edits move."""


class Value(Declared[T, T | None]):
    """A value, which edits replace; None: it stays."""


class Entries(Declared[PMap[K, V], dict[K, V | None]]):
    """A map, of which edits set entries and remove others (None)."""


class Growing(Declared[PMap[K, V], dict[K, V]]):
    """A map, to which edits add entries, or of which they replace some; none is removed."""


def moving() -> Moving:
    """A frontier, which each shard has."""
    return Moving(MISSING, lambda: None, _moved)


def value(usual: T, format_: int = FIRST) -> Value[T]:
    """A value that edits replace. With `format_`, of the format that the field came with."""
    return Value(usual, lambda: None, lambda _present, edit, _name, _step: edit, format_)


def flag() -> Declared[bool, bool]:
    """False until edits say otherwise."""
    return Declared(False, bool, lambda _present, edit, _name, _step: edit)


def entries(format_: int = FIRST) -> Any:
    """A map that is empty at first, of which edits set and remove entries; for `Entries`."""
    return Entries(pmap(), dict, edited, format_)


def growing(*, anew: bool = False) -> Any:
    """A map that is empty at first, to which edits add entries; for `Growing`. `anew`: also those it has."""
    return Growing(pmap(), dict, (lambda there, edit, _name, _step: there.update(edit)) if anew else with_new)


def by_rule(usual: Any, unchanged: Callable[[], Any] = dict) -> Any:
    """A field for which `tidelake.state.core.edits.stepped` has a rule of its own."""
    return Declared(usual, unchanged, None)


@dataclass_transform(kw_only_default=True)
def declares(class_: type[C]) -> type[C]:
    """Says of a class that it declares fields, to mypy only. There, all fields are given by name."""
    return class_


@dataclass_transform(kw_only_default=True)
def of_state(class_: type[C]) -> type[C]:
    """A frozen dataclass with the declared fields, behind those of its own that have no default."""
    found = declarations(class_.__bases__[0])
    return _made(class_, {n: (in_state, one.usual, one) for n, (one, in_state, _) in found.items()})


@dataclass_transform(kw_only_default=True)
def of_edits(class_: type[C]) -> type[C]:
    """A frozen dataclass with the declared fields, before its own."""
    found = declarations(class_.__bases__[0])
    return _made(class_, {n: (in_edits, one.unchanged(), one) for n, (one, _, in_edits) in found.items()})


def declarations(class_: type) -> dict[str, tuple[Declared[Any, Any], Any, Any]]:
    """The declared fields of a class by name, each with its types in a state and in edits."""
    hints = get_type_hints(class_, include_extras=True)
    return {
        name: (one, *_types(hints[name])) for name, one in vars(class_).items() if isinstance(one, Declared)
    }


def _types(hint: Any) -> tuple[Any, Any]:
    """The types of a field by its annotation: `Declared[S, E]`, or a kind such as `Entries[K, V]`."""
    kind, args = get_origin(hint) or hint, get_args(hint)
    if kind is not Declared:
        (base,) = kind.__orig_bases__
        args = get_args(base[args] if args else base)
    in_state, in_edits = args
    return in_state, in_edits


def _made(class_: type[C], shared: Mapping[str, tuple[Any, Any, Declared[Any, Any]]]) -> type[C]:
    # A declaration is no default: a decoder that finds it at a value takes the field for set.
    class_.__bases__ = class_.__bases__[1:]
    own = class_.__annotations__
    first = {name: own[name] for name in own if name not in vars(class_)}
    class_.__annotations__ = first | {name: type_ for name, (type_, _, _) in shared.items()} | own
    usual_of = {name: (vars(class_)[name], FIRST) for name in own if name not in first}
    usual_of |= {name: (usual, one.since) for name, (_, usual, one) in shared.items() if usual is not MISSING}
    for name, (usual, format_) in usual_of.items():
        setattr(class_, name, field(**_default(usual), metadata=since(format_)))
    return dataclass(frozen=True)(class_)


def _default(usual: Any) -> dict[str, Any]:
    """A default; only a plain one is kept at the class: a field is found sooner if none is there."""
    if isinstance(usual, int | str | tuple | None):
        return {"default": usual}
    return {"default_factory": dict if isinstance(usual, dict) else lambda: usual}


def merges(class_: type) -> tuple[list[tuple[str, Merge]], list[tuple[str, Merge]]]:
    """How edits change the fields without a rule of their own: those that None leaves, and the others."""
    found = [(name, one.merge, one.unchanged()) for name, (one, _, _) in declarations(class_).items()]
    by = [(name, merge, unchanged) for name, merge, unchanged in found if merge is not None]
    return [one[:2] for one in by if one[2] is None], [one[:2] for one in by if one[2] is not None]


def _moved(present: Frontier, move: Move, name: str, step: str) -> Frontier:
    if move.before != present:
        raise CorruptionError(step, f"{name} moves from {move.before} but is {present}")
    return move.after


def with_new(present: PMap[K, V], come: Mapping[K, V], _name: str, step: str) -> PMap[K, V]:
    """A map with entries that it does not have yet."""
    for key in come:
        if key in present:
            raise CorruptionError(step, f"adds {key!r}, which is already there")
    return present.update(come) if come else present


def edited(present: PMap[K, V], edits: Mapping[K, V | None], _name: str, step: str) -> PMap[K, V]:
    """A map in which some entries are set and others (None) removed."""
    for key, one in edits.items():
        if one is not None:
            present = present.set(key, one)
        elif key in present:
            present = present.remove(key)
        else:
            raise CorruptionError(step, f"removes {key!r}, which is not there")
    return present
