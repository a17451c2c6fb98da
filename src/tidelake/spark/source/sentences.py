"""Errors of the format as one sentence: Spark hands on the text of an error in its Python processes.

Owns how options are called where an error was made for an argument of Python, and that Spark leaves the
traceback out, as it does for its own functions on request.
"""

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar, cast

from tidelake.errors import NotYetClosed, TidelakeError

P = ParamSpec("P")
R = TypeVar("R")
# PySpark reads it when it writes an error down. After that the process ends: nothing else is left out.
_HIDE = "SPARK_HIDE_TRACEBACK"
# Not in quotes: there it is a name of the user's.
_ARGUMENT = re.compile(r"(?<!['.\w])(as_of|delete_column|hold_for|old_rows|order_by|time_unit)(?!['.\w])")


def told(entry: Callable[P, R]) -> Callable[P, R]:
    """What Spark calls, with errors of ours for users of the format. It may return an iterator."""

    @wraps(entry)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        with _sentences():
            found = entry(*args, **kwargs)
        return cast(R, _each(found)) if isinstance(found, Iterator) else found

    return called


def _each(found: Iterator[object]) -> Iterator[object]:
    with _sentences():
        yield from found


@contextmanager
def _sentences() -> Iterator[None]:
    try:
        yield
    except TidelakeError as error:
        main = getattr(sys.modules["__main__"], "__spec__", None)
        if main is not None and main.name.startswith("pyspark."):
            os.environ[_HIDE] = "1"
        if isinstance(error, NotYetClosed):
            error.wait_by = "option timeout"
        elif error.args == (str(error),):
            error.args = (_ARGUMENT.sub(lambda found: _option(found[0]), str(error)),)
        raise


def _option(argument: str) -> str:
    first, *others = argument.split("_")
    return first + "".join(map(str.title, others))
