"""How much each tier tries: examples of properties, and seconds of what could go on for ever.

The tiers are `fast` (make test), `full` (make full) and `soak` (make soak). Each is a Hypothesis profile of
that name. All properties, and the tests that are marked `grows`, run again in the slower tiers and try more.
"""

import time
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from hypothesis import settings

_SHARE = {"fast": 0.15, "full": 0.5, "soak": 10.0}
_EXAMPLES_LEAST = 5


def examples(usual: int) -> int:
    """How many examples this tier tries of a property, by its share of `usual`."""
    return max(_EXAMPLES_LEAST, round(usual * _SHARE[settings.get_current_profile_name()]))


def some(cases: Iterable[object], every: int) -> list[Any]:
    """Cases of a parametrized test: the fast tier tries one in `every`, the full tier all."""
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.full if i % every else ()
        )
        for i, case in enumerate(cases)
    ]


def rounds(*, fast: float = 0, full: float, soak: float, least: int = 1) -> Iterator[int]:
    """0, 1, 2, ... until this tier's seconds are over.

    Args:
        fast: seconds in the fast tier.
        full: seconds in the full tier.
        soak: seconds in the soak.
        least: so many rounds are made on a busy machine as well.
    """
    seconds = {"fast": fast, "full": full, "soak": soak}[settings.get_current_profile_name()]
    deadline_s = time.monotonic() + seconds
    number = 0
    while number < least or time.monotonic() < deadline_s:
        yield number
        number += 1
