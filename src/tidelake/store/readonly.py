"""Stores for a lake that is opened for reading only: every write is refused."""

from typing import NoReturn

from tidelake.errors import ReadOnlyLake
from tidelake.store.layers import WRITES, Layer


def refusing_writes(lake: str) -> Layer:
    """Refuse every call that may change what is stored."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise ReadOnlyLake(lake)

    return lambda below: {name: refuse if name in WRITES else method for name, method in below.items()}
