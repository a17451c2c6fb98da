"""How this process reaches the stores of a lake: the address of its log, and options of its object store.

Owns what a user gives, where the rest comes from, and what leaves the process. Must not know any store.

INVARIANT: what may be secret stays in this process. Neither `repr` nor a pickle holds it: a copy in another
process keeps the names of providers only, and finds the rest in its own environment.
"""

import os
from collections.abc import Mapping
from importlib import import_module
from typing import TypeVar

from tidelake.errors import UsageError

LOG_VARIABLE = "TIDELAKE_LOG"
"""The environment variable that holds the address of the log, or the name of its provider."""

OPTIONS_VARIABLE = "TIDELAKE_STORE_OPTIONS"
"""The environment variable that holds the name of the provider of options of object stores."""

T = TypeVar("T")


class StoreAccess:
    """How this process reaches the stores of a lake. Values compare equal if all of it is equal."""

    def __init__(
        self, log: str | None = None, store_options: Mapping[str, object] | str | None = None
    ) -> None:
        """Keep what a user gave."""
        if log is not None and not isinstance(log, str):
            raise UsageError(f"the log is given as text, not as {type(log).__name__}: {_LOG_FORMS}")
        if store_options is not None and not isinstance(store_options, Mapping | str):
            raise UsageError(
                f"store_options are a dict or 'module:function', not {type(store_options).__name__}"
            )
        if isinstance(store_options, str) and not is_provider(store_options):
            raise UsageError(_OPTIONS_FORMS)
        self._log = log
        self._options = dict(store_options) if isinstance(store_options, Mapping) else store_options

    @property
    def gives_log(self) -> bool:
        """Whether a user gave a log. The environment does not count: it is for lakes that need one."""
        return self._log is not None

    @property
    def gives_options(self) -> bool:
        """Whether a user gave options of an object store. The environment does not count."""
        return self._options is not None

    @property
    def provider(self) -> str | None:
        """The provider of the options, if a user gave one."""
        return self._options if isinstance(self._options, str) else None

    def with_options(self, provider: str) -> "StoreAccess":
        """This access with a provider of options."""
        return StoreAccess(self._log, provider)

    def log_address(self) -> str | None:
        """The address of the log: as given, from the provider, or from the environment; None if nowhere."""
        given = self._log if self._log is not None else os.environ.get(LOG_VARIABLE) or None
        if given is None or "://" in given:
            return given
        if not is_provider(given):
            raise UsageError(f"the log that was given is neither an address nor a provider: {_LOG_FORMS}")
        return _provided(given, str)

    def options(self) -> dict[str, object]:
        """The options of the object store: as given, or from the provider or that of the environment."""
        given = self._options if self._options is not None else os.environ.get(OPTIONS_VARIABLE) or None
        if isinstance(given, str):
            if not is_provider(given):
                raise UsageError(_OPTIONS_FORMS)
            return _provided(given, dict)
        return dict(given or {})

    def __repr__(self) -> str:
        """Say what was given, and no value of it."""
        told = (
            (name, _told(value)) for name, value in (("log", self._log), ("store_options", self._options))
        )
        return f"StoreAccess({', '.join(f'{name}={value}' for name, value in told if value)})"

    def __reduce__(self) -> tuple[type["StoreAccess"], tuple[str | None, str | None]]:
        """Keep names of providers only."""
        return StoreAccess, (_portable(self._log), _portable(self._options))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StoreAccess) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[object, ...]:
        options = self._options
        if isinstance(options, dict):
            return self._log, tuple(sorted((name, repr(value)) for name, value in options.items()))
        return self._log, options


_NOTHING = StoreAccess()  # the environment is asked where something is needed
_known: dict[str, StoreAccess] = {}  # by url, for work in this process that has no handle of the lake


def known_access(url: str) -> StoreAccess:
    """How this process reached the stores at `url` last."""
    return _known.get(url, _NOTHING)


def remember_access(url: str, access: StoreAccess) -> None:
    """Remember how the stores at `url` were reached."""
    _known[url] = access


_OPTIONS_FORMS = "store_options are a dict, or the name of a provider 'module:function'"
_LOG_FORMS = "give postgresql://user@host:port/database, or a provider 'module:function' that returns it"


def is_provider(text: str) -> bool:
    """Whether a text has the form of a provider, "module:function"."""
    module, _, function = text.partition(":")
    return function.isidentifier() and all(part.isidentifier() for part in module.split("."))


def _portable(value: object) -> str | None:
    return value if isinstance(value, str) and is_provider(value) else None


def _told(value: object) -> str:
    return repr(_portable(value) or "***") if value is not None else ""


def _provided(name: str, kind: type[T]) -> T:
    """What a provider returns, which must be of this type."""
    module, _, function = name.partition(":")
    problem = ""
    try:
        value = getattr(import_module(module), function)()
    except (ImportError, AttributeError) as error:
        problem = f"cannot be imported here: {error}"
    except Exception as error:
        # Only the class: the message, and the error as a cause, may hold what was to be given.
        problem = f"raises {type(error).__name__}"
    if problem:
        raise UsageError(f"the provider {name!r} {problem}")
    if not isinstance(value, kind):
        raise UsageError(f"the provider {name!r} gives {type(value).__name__}, not {kind.__name__}")
    return value
