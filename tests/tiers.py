"""How much each tier tries: examples of properties, and seconds of what could go on for ever.

The tiers are `fast` (make test), `full` (make full) and `soak` (make soak). Each is a Hypothesis profile of
that name. All properties, and the tests that are marked `grows`, run again in the slower tiers and try more.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from hypothesis import settings

_SHARE = {"fast": 0.15, "full": 0.35, "soak": 10.0}
_EXAMPLES_LEAST = 5


def examples(usual: int) -> int:
    """How many examples this tier tries of a property, by its share of `usual`."""
    return max(_EXAMPLES_LEAST, round(usual * _SHARE[settings.get_current_profile_name()]))


def some(cases: Iterable[object], every: int, *, full: int = 1) -> list[Any]:
    """Cases of a parametrized test, each of which belongs to the first tier that runs it.

    Args:
        cases: all of them, which the soak tries.
        every: the fast tier tries one in so many.
        full: the full tier tries one in so many, and those of the fast tier were tried before it.
    """

    def marks(i: int) -> Any:
        if not i % every:
            return ()
        return pytest.mark.full if not i % full else pytest.mark.soak

    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=marks(i))
        for i, case in enumerate(cases)
    ]


def calls(*, most: int, fast: int = 1, full: int = 1) -> range:
    """Which of the store calls of some work a test makes fail, one after the other.

    Args:
        most: more calls than the work makes.
        fast: the fast tier takes one call in so many.
        full: the full tier takes one call in so many, and the soak all of them.
    """
    return range(0, most, {"fast": fast, "full": full, "soak": 1}[settings.get_current_profile_name()])


def rounds(
    *,
    fast: float = 0,
    full: float,
    soak: float,
    least: int = 1,
    until: Callable[[], bool] = lambda: True,
    soak_until: Callable[[], bool] = lambda: True,
) -> Iterator[int]:
    """0, 1, 2, ... until this tier's seconds are over.

    Args:
        fast: seconds in the fast tier.
        full: seconds in the full tier.
        soak: seconds in the soak.
        least: so many rounds are made on a busy machine as well.
        until: all tiers go on until this holds as well.
        soak_until: the soak goes on until this holds as well.
    """
    tier = settings.get_current_profile_name()
    deadline_s = time.monotonic() + {"fast": fast, "full": full, "soak": soak}[tier]
    number = 0
    while (
        number < least
        or time.monotonic() < deadline_s
        or not until()
        or (tier == "soak" and not soak_until())
    ):
        yield number
        number += 1
