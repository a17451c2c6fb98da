"""Copies of frozen values in which some fields have other values. A copy costs what changes.

Owns the way around `dataclasses.replace`, which sets each field again: for the state of a shard it would cost
more than what most commits change. Must not know which values these are.
"""

from typing import TypeVar

from tidelake.errors import InternalError

T = TypeVar("T")


def with_fields(value: T, **fields: object) -> T:
    """A copy of a frozen dataclass with other values of some fields.

    REQUIRES: its class has no `__slots__` and no `__post_init__`, and caches nothing in the value.
    """
    copy = object.__new__(type(value))
    held = copy.__dict__
    held.update(value.__dict__)
    count = len(held)
    held.update(fields)
    if len(held) != count:
        raise InternalError(f"a {type(value).__name__} has not all of the fields {sorted(fields)}")
    return copy
