"""The formats of records, and what may be written into a lake that the version before uses as well.

A lake has a format (`Agreed.format`), and a record has the least format that knows its fields. No process
writes a record of a later format than the lake's, until `agreeing.upgrade` has raised that. Everything began
with format `FIRST`. A field that comes later says so where it is declared (`later`), and is left out of a
record while it has its default, so that the version before goes on reading the record.
"""

from dataclasses import MISSING, Field, field, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, get_args, get_type_hints

FIRST = 1
NEWEST = 1
"""The format of new lakes, and of lakes that this version has upgraded."""

T = TypeVar("T")
_KEY = "format"


def later(format_: int, default: T) -> T:
    """The declaration of a field of a dataclass that came with a later format."""
    return field(default=default, metadata=since(format_))


def since(format_: int) -> dict[str, int]:
    """The metadata of a field of a dataclass that came with a format."""
    return {} if format_ == FIRST else {_KEY: format_}


def as_stored(type_: Any, value: Any) -> tuple[int, Any]:
    """The least format that knows a value, and the value without the fields that are left out."""
    if not has_later(type_):
        return FIRST, value
    match value:
        case dict():
            several = [as_stored(type(one), one) for one in value.values()]
            inside: Any = dict(zip(value, (one for _, one in several), strict=True))
        case tuple() | list():
            several = [as_stored(type(one), one) for one in value]
            inside = [one for _, one in several]
        case _ if is_dataclass(value):
            kept = [one for one in fields(value) if not _is_left_out(one, getattr(value, one.name))]
            several = [as_stored(type(one), one) for one in (getattr(value, one.name) for one in kept)]
            inside = {one.name: stored for one, (_, stored) in zip(kept, several, strict=True)}
            several += [(one.metadata.get(_KEY, FIRST), None) for one in kept]
        case _:
            return FIRST, value
    return max((format_ for format_, _ in several), default=FIRST), inside


def _is_left_out(declared: Field[Any], value: Any) -> bool:
    return _KEY in declared.metadata and bool(value == usual_of(declared))


def usual_of(declared: Field[Any]) -> Any:
    """The default of a field of a dataclass; `MISSING`: it has none."""
    return declared.default if declared.default_factory is MISSING else declared.default_factory()


@cache
def has_later(type_: Any, outer: frozenset[Any] = frozenset()) -> bool:
    """Whether a later field is in values of a type. What is in containers is seen by looking at them."""
    if type_ in (dict, tuple, list):
        return True
    if not is_dataclass(type_):
        return any(has_later(one, outer) for one in get_args(type_))
    if type_ in outer:
        return False
    hints = get_type_hints(type_)
    return any(_KEY in one.metadata or has_later(hints[one.name], outer | {type_}) for one in fields(type_))
