"""Stores for a lake that is opened for reading only: every write is refused."""

from collections.abc import Callable
from typing import TypeVar

from tidelake.errors import ReadOnlyLake
from tidelake.store.layers import WRITES, Around, Operation

T = TypeVar("T")


def refusing_writes(lake: str) -> Around:
    """Refuse every call that may change what is stored."""

    def around(operation: Operation, call: Callable[[], T]) -> T:
        if operation in WRITES:
            raise ReadOnlyLake(lake)
        return call()

    return around
