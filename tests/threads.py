"""Work of several threads."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def at_once(work: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
    """Call `work` with each item, each in a thread of its own; the answers, or the first error."""
    each = [*items]
    with ThreadPoolExecutor(len(each)) as pool:
        return list(pool.map(work, each))
