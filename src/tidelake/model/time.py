"""Times, and the unit in which a collection counts them.

A time is an int64 >= 0, or a tuple of a fixed number of them. Tuples are ordered component by
component, which is a *partial* order: (0, 1) and (1, 0) are not comparable. The functions here are
the only place that knows the two forms; `<=` on tuples means something else in Python.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

from tidelake.errors import UsageError
from tidelake.model.instants import PER_UNIT, clock_time
from tidelake.timetext import US_PER_UNIT, shown

Time: TypeAlias = int | tuple[int, ...]
TIME_MAX = 2**63 - 1
Unit: TypeAlias = Literal["counter", "ms", "us", "date", "tuple"]
_SCALAR_UNITS: tuple[Unit, ...] = ("counter", "ms", "us", "date")
_UNITS = "'counter', 'ms', 'us', 'date' or 'tuple(n)'"


def parts(time: Time) -> tuple[int, ...]:
    """The components of a time: one for an int."""
    return time if isinstance(time, tuple) else (time,)


def _like(model: Time, components: tuple[int, ...]) -> Time:
    return components if isinstance(model, tuple) else components[0]


def less_equal(a: Time, b: Time) -> bool:
    """Whether `a <= b` in every component."""
    if isinstance(a, int) and isinstance(b, int):
        # Most times are ints, and every commit compares many.
        return a <= b
    return all(x <= y for x, y in zip(parts(a), parts(b), strict=True))


def less_than(a: Time, b: Time) -> bool:
    """Whether `a <= b` and not `a == b`."""
    return a != b and less_equal(a, b)


def join(a: Time, b: Time) -> Time:
    """The least time that is at or after both."""
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    return _like(a, tuple(max(x, y) for x, y in zip(parts(a), parts(b), strict=True)))


def meet(a: Time, b: Time) -> Time:
    """The greatest time that is at or before both."""
    return _like(a, tuple(min(x, y) for x, y in zip(parts(a), parts(b), strict=True)))


@dataclass(frozen=True)
class TimeDomain:
    """The `unit` of a collection's times, and how many components each has.

    `counter` counts from 0; `ms`, `us` and `date` (days) count since 1970 UTC; `tuple` has `arity` counters.
    """

    unit: Unit = "counter"
    arity: int = 1

    def __post_init__(self) -> None:
        if self.unit not in (*_SCALAR_UNITS, "tuple"):
            raise UsageError(f"time unit {self.unit!r} is unknown: use {_UNITS}")
        if not 1 <= self.arity <= 8 or (self.unit != "tuple" and self.arity != 1):
            raise UsageError(
                f"a time of unit {self.unit!r} cannot have {self.arity} components: use 'tuple(n)', n <= 8"
            )

    @classmethod
    def parse(cls, text: object) -> "TimeDomain":
        """Read `"counter"`, `"ms"`, `"us"`, `"date"` or `"tuple(n)"`.

        Raises:
            UsageError: for anything else.
        """
        match = re.fullmatch(r"tuple\((\d)\)", text) if isinstance(text, str) else None
        if match:
            return cls("tuple", int(match.group(1)))
        for unit in _SCALAR_UNITS:
            if text == unit:
                return cls(unit)
        raise UsageError(f"time={text!r} is not a unit of time: use {_UNITS}")

    def __str__(self) -> str:
        return f"tuple({self.arity})" if self.unit == "tuple" else self.unit

    @cached_property
    def total_order(self) -> bool:
        """Whether any two times are comparable."""
        return self.unit != "tuple"

    @cached_property
    def minimum(self) -> Time:
        """The first time."""
        return (0,) * self.arity if self.unit == "tuple" else 0

    @property
    def maximum(self) -> Time:
        """The last time."""
        return (TIME_MAX,) * self.arity if self.unit == "tuple" else TIME_MAX

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The columns that hold a time: `_time`, or `_time_0`, `_time_1`, ... for tuples."""
        if self.unit == "tuple":
            return tuple(f"_time_{i}" for i in range(self.arity))
        return ("_time",)

    def check(
        self, time: object, name: str = "time", *, up: bool = False, now_ms: Callable[[], int] | None = None
    ) -> Time:
        """The time of this domain that a user's value means: a whole number of units, or an instant.

        Args:
            time: a whole number, a tuple of them or, for a clock, an instant: see `tidelake.model.instants`.
            name: name of the argument, for messages.
            up: round an instant up to the unit; False: down.
            now_ms: the clock that words such as `now` refer to; None: words are not taken.

        Raises:
            UsageError: wrong form, negative or too large for an int64, or an instant that does not say its
                zone; names the value and the unit.
        """
        if type(time) is int and self.unit != "tuple" and 0 <= time <= TIME_MAX:
            return time
        at = None if type(time) is int else clock_time(time, self.unit, name, up=up, now_ms=now_ms)
        if at is not None:
            return at
        given = time if self.unit == "tuple" else (time,)
        if not isinstance(given, tuple | list) or len(given) != self.arity:
            raise UsageError(f"{name}={time!r} is not a time of unit {self}: give {self._example()}")
        components = tuple(_whole(x) for x in given)
        for x in components:
            if x is None or not 0 <= x <= TIME_MAX:
                raise UsageError(
                    f"{name}={time!r} is not a time of unit {self}: "
                    f"give {self._example()}, from 0 to 2^63 - 1"
                )
        whole = tuple(x for x in components if x is not None)
        return whole if self.unit == "tuple" else whole[0]

    def now(self, now_ms: int) -> int:
        """The time of the wall clock, rounded down; 0 for units that are no clock."""
        per_us = US_PER_UNIT.get(self.unit)
        return 0 if per_us is None else now_ms * 1000 // per_us

    def text(self, value: object) -> str:
        """The text of a time or frontier for people; see `tidelake.timetext.shown`."""
        return shown(value, self.unit)

    def _example(self) -> str:
        if self.unit == "tuple":
            return f"a tuple of {self.arity} whole numbers"
        if self.unit == "date":
            return "a date, a text such as '2026-01-31', or one whole number"
        clock = "a datetime with its zone, a date, a text such as '2026-01-31 12:00Z', or "
        return f"{clock if self.unit in PER_UNIT else ''}one whole number"


def _whole(x: object) -> int | None:
    """A whole number of Python or NumPy as an int; None if it is none."""
    if isinstance(x, int):
        return None if isinstance(x, bool) else int(x)
    kind = type(x)
    if kind.__module__ == "numpy" and getattr(getattr(x, "dtype", None), "kind", "") in ("i", "u"):
        return int(x) if getattr(x, "ndim", 0) == 0 else None  # type: ignore[call-overload]
    return None
