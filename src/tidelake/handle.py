"""What a user opens: the base of its classes, and what holds for all their public methods.

Owns two rules, so that no method has to know them. Must not know what a method does.

- A handle is not pickled or copied: it has locks, leases and perhaps credentials.
- A call that fails with an error of Python or of a library, and was given a value that does not fit the
  annotation of its parameter, fails with `UsageError`, which names the parameter. Nothing is checked before:
  a call that succeeds costs one frame more.

INVARIANT: an error stays as it is where every value fits: a bug is not told as a mistake of the caller.
"""

import os
import re
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache, wraps
from inspect import signature
from typing import Any, Literal, NoReturn, ParamSpec, TypeVar

from tidelake.errors import StaysHere, TidelakeError, UsageError

P = ParamSpec("P")
T = TypeVar("T")
_SHOWN_MAX = 80
_MODULES = re.compile(r"(?:\w+\.)+(?=\w)")
_INNER = re.compile(r"\[[^\[\]]*\]")


def door(call: Callable[P, T]) -> Callable[P, T]:
    """A public function whose arguments are named by the errors that they cause."""

    @wraps(call)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return call(*args, **kwargs)
        except TidelakeError:
            raise
        except Exception as error:
            raise_misfit(call, args, kwargs, error)
            raise

    return checked


class Handle:
    """The base of what is opened: its public methods are doors, and pickle and `copy` refuse it."""

    def __init_subclass__(cls, **given: Any) -> None:
        """Make doors of the public methods of a subclass."""
        super().__init_subclass__(**given)
        for name, member in list(vars(cls).items()):
            if name.startswith("_"):
                continue
            if isinstance(member, types.FunctionType):
                setattr(cls, name, door(member))
            elif isinstance(member, staticmethod | classmethod):
                setattr(cls, name, type(member)(door(member.__func__)))

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuse.

        Raises:
            StaysHere: always; says what to do.
        """
        raise StaysHere(
            f"a {type(self).__name__} cannot be pickled or copied, since it belongs to this process: "
            "open the lake in the worker with tidelake.open(lake.url), and hand on names, rows or an "
            "arrangement_reference"
        )


def raise_misfit(call: Callable[..., Any], args: Any, kwargs: Any, error: Exception) -> None:
    """Raise a `UsageError` for the first argument that does not fit its annotation, if there is one."""
    try:
        given = signature(call).bind(*args, **kwargs).arguments
    except TypeError:
        return  # Python's own error says what is wrong with the call.
    for name, value in given.items():
        if isinstance(error, UnicodeError) and not _is_unicode(value):
            raise UsageError(f"{name}={_short(value)} is not valid Unicode: {_short(error)}") from error
        expected = _hints(call).get(name, Any)
        if not fits(value, expected):
            wanted = _MODULES.sub("", expected if isinstance(expected, str) else _text(expected))
            raise UsageError(
                f"{name}={_short(value)} is a {type(value).__name__}, and must be {wanted}"
            ) from error


def fits(value: object, expected: Any) -> bool:
    """Whether a value may be of an annotated type; True if that cannot be told."""
    if isinstance(expected, str):
        bare = _INNER.sub("", _INNER.sub("", expected))
        names = {part.strip().rpartition(".")[2] for part in bare.split("|")}
        return (
            ("Callable" in names and callable(value))
            or (value is None and "None" in names)
            or any(k.__name__ in names for k in type(value).__mro__)
        )
    if expected is Any or expected is object or isinstance(expected, TypeVar):
        return True
    if expected is None or expected is type(None):
        return value is None
    origin, inner = typing.get_origin(expected), typing.get_args(expected)
    if origin is typing.Union or origin is types.UnionType:
        return any(fits(value, one) for one in inner)
    if origin is Literal:
        return any(type(value) is type(one) and value == one for one in inner)
    if origin is not None:
        return _is(value, origin) and _items_fit(value, origin, inner)
    return _is(value, expected)


def _is(value: object, kind: Any) -> bool:
    if isinstance(kind, typing.ForwardRef):
        return fits(value, kind.__forward_arg__)
    if not isinstance(kind, type):
        return True
    if getattr(kind, "_is_protocol", False) and kind.__module__.startswith("tidelake"):
        return all(hasattr(value, name) for name in vars(kind) if not name.startswith("_"))
    if kind is float:
        return isinstance(value, int | float)
    if kind in (Sequence, Iterable, Collection) and isinstance(value, str | bytes):
        return False
    return isinstance(value, kind) and (kind is not str or _is_unicode(value))


def _items_fit(value: Any, origin: Any, inner: tuple[Any, ...]) -> bool:
    if origin is os.PathLike or not isinstance(value, Collection):
        return True
    if isinstance(value, Mapping):
        return all(fits(k, inner[0]) and fits(v, inner[1]) for k, v in value.items())
    if origin is tuple and inner[-1:] != (...,):
        return len(value) == len(inner) and all(map(fits, value, inner))
    return all(fits(item, inner[0]) for item in value)


def _is_unicode(value: object) -> bool:
    if isinstance(value, str):
        return not any("\ud800" <= letter <= "\udfff" for letter in value)
    if isinstance(value, Mapping):
        return all(_is_unicode(k) and _is_unicode(v) for k, v in value.items())
    if isinstance(value, os.PathLike):
        return _is_unicode(os.fspath(value))
    return not isinstance(value, list | tuple | set) or all(map(_is_unicode, value))


@lru_cache(512)
def _hints(call: Callable[..., Any]) -> Mapping[str, Any]:
    """The annotations of arguments; as texts where names in them are imported by type checkers only."""
    given = {name: hint for name, hint in call.__annotations__.items() if name != "return"}
    try:
        return typing.get_type_hints(types.SimpleNamespace(__annotations__=given), call.__globals__)
    except NameError:
        return given


def _text(expected: Any) -> str:
    return (
        expected.__name__ if isinstance(expected, type) and not typing.get_args(expected) else str(expected)
    )


def _short(value: object) -> str:
    try:
        text = ascii(value)
    except Exception:  # its own repr fails
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}..."
