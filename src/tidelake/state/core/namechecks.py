"""Finds the names in a decoded record, by its types, and refuses those that are none.

Owns the way from a type to its names; `tidelake.model.names` has the rules. A record may be forged: what it
names must not lead out of the folder that the name is for.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from types import UnionType
from typing import Annotated, Any, TypeAlias, Union, get_args, get_origin, get_type_hints

from tidelake.errors import InternalError
from tidelake.model.names import NAME_CHARS_MAX, NameRule

NameCheck: TypeAlias = Callable[[Any], None]

_CHECKS: dict[type, NameCheck | None] = {}


def check_names(value: object) -> None:
    """Check the names in a value of a dataclass."""
    type_ = type(value)
    check = _CHECKS[type_] if type_ in _CHECKS else name_check(type_)
    if check is not None:
        check(value)


def name_check(type_: Any, outer: frozenset[Any] = frozenset()) -> NameCheck | None:
    """A function that checks the names in a value of a type; None: it holds no names.

    It looks only where names can be.
    """
    origin, args = get_origin(type_), get_args(type_)
    if origin is Annotated:
        rules = [one for one in args[1:] if isinstance(one, NameRule)]
        return partial(_check_name, rules[0]) if rules else name_check(args[0], outer)
    checks = [name_check(one, outer) for one in args if one is not ...]
    if origin is dict:
        return _check_each(*checks)
    if not any(checks) and not is_dataclass(type_):
        return None
    if origin in (tuple, list) and len(checks) == 1:
        return _check_each(checks[0], None)
    if origin in (Union, UnionType):
        (check,) = filter(None, checks)
        return lambda value: None if value is None else check(value)
    if not isinstance(type_, type) or not is_dataclass(type_):
        raise InternalError(f"names in {type_} would not be found")
    if type_ in outer:
        return None
    if type_ not in _CHECKS:
        hints = get_type_hints(type_, include_extras=True)
        found = {one.name: name_check(hints[one.name], outer | {type_}) for one in fields(type_)}
        _CHECKS[type_] = _check_fields({name: check for name, check in found.items() if check is not None})
    return _CHECKS[type_]


def _check_name(rule: NameRule, name: str) -> None:
    if not rule.fits(name):
        raise ValueError(f"{name[:NAME_CHARS_MAX]!r} is not {rule.what}")


def _check_each(key: NameCheck | None, value: NameCheck | None) -> NameCheck | None:
    if key is None and value is None:
        return None

    def check(several: Any) -> None:
        if key is not None:
            for one in several:
                key(one)
        if value is not None:
            for one in several.values():
                value(one)

    return check


def _check_fields(checks: Mapping[str, NameCheck]) -> NameCheck | None:
    if not checks:
        return None

    def check(value: Any) -> None:
        for name, check_field in checks.items():
            check_field(getattr(value, name))

    return check
