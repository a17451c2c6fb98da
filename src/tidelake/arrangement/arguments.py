"""Checks arguments of users before anything is done; errors name the argument."""

import os
from collections.abc import Sequence

import numpy as np

from tidelake.env import expanded
from tidelake.errors import UsageError


def directory(path: str | os.PathLike[str], what: str) -> str:
    """The absolute path of a directory; `~` is the home directory."""
    given: object = path
    text: object = os.fspath(path) if isinstance(given, str | os.PathLike) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise UsageError(f"{what}={path!r} must be the path of a directory, as text or pathlib.Path")
    try:
        os.fsencode(text)
    except UnicodeEncodeError as error:
        raise UsageError(f"{what}={path!r} is not a path: {error.reason}") from error
    return os.path.abspath(expanded(text))


def directory_or_none(path: str | os.PathLike[str] | None, what: str) -> str | None:
    """Like `directory`; None stays None."""
    return None if path is None else directory(path, what)


def count(name: str, value: object, least: int = 0) -> int:
    """A whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise UsageError(f"{name}={value!r} must be a whole number of at least {least}")
    return int(value)


def names(what: str, value: object) -> list[str]:
    """A list of column names."""
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise UsageError(f"{what}={value!r} is not a list of column names: write {what}=['name', ...]")
    for name in value:
        if not isinstance(name, str):
            raise UsageError(f"{what} has {name!r}, which is not a column name")
    return list(value)
