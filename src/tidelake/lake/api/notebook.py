"""Bars of progress in a notebook, for calls that may take long.

A notebook is where IPython runs in a kernel; IPython is not imported elsewhere. There a bar appears once the
work has taken a second, and goes when it is over. Outside of notebooks nothing is shown: callers hand a
function in, as the command line does.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from importlib import import_module
from typing import Any

from tidelake.env import Clock
from tidelake.tabletext import harmless, number

_AFTER_S, _PAUSE_S = 1.0, 0.2

Told = Callable[[str, int, int], None]


@contextmanager
def bar(title: str, clock: Clock) -> Iterator[Told | None]:
    """Show progress in a notebook until the block ends.

    Args:
        title: stands before the bar.
        clock: of this process.

    Yields:
        A function of what is worked on, the amount done and the whole amount (0: not known); amounts of
        different things are added up. Any thread may call it. None where there is no notebook.
    """
    display = _display()
    if display is None:
        yield None
        return
    begun_s = told_s = clock.monotonic_s()
    amounts: dict[str, tuple[int, int]] = {}
    shown: Any = None

    def tell(what: str, done: int, total: int) -> None:
        nonlocal told_s, shown
        amounts[what] = (done, total)
        now_s = clock.monotonic_s()
        if now_s - begun_s < _AFTER_S or (shown is not None and now_s - told_s < _PAUSE_S):
            return
        told_s = now_s
        sums = [sum(column) for column in zip(*list(amounts.values()), strict=True)]
        html = display.HTML(_html(f"{title}: {what}", *sums))
        if shown is None:
            shown = display.display(html, display_id=True)
        else:
            shown.update(html)

    try:
        yield tell
    finally:
        if shown is not None:
            shown.update(display.HTML(""))


def _display() -> Any:
    """The module that displays in a notebook; None elsewhere, also in IPython's own terminal."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return None if getattr(shell, "kernel", None) is None else import_module("IPython.display")


def _html(text: str, done: int, total: int) -> str:
    known = f' value="{done}" max="{total}"' if total else ""
    amount = f" {number(done)} of {number(total)}" if total else ""
    return f"<div><progress{known}></progress> {escape(harmless(text))}{amount}</div>"
