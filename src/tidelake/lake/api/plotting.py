"""Pictures of a collection for notebooks, by matplotlib, which the extra `plot` brings.

Owns what is drawn; each picture costs what its docstring says, and reads no rows.
"""

import io
from datetime import UTC, datetime
from typing import Any

from tidelake.data.answer.rows import optional
from tidelake.lake.api.handle import CollectionHandle
from tidelake.model.frontier import Frontier
from tidelake.model.time import TimeDomain
from tidelake.timetext import US_PER_UNIT

_EXTRA = "plot"
_SLICE, _LEVEL, _BASE = "#4f9fb8", "#e0a13a", "#7a4fb8"


class Plotting(CollectionHandle):
    """Methods of a collection that draw it."""

    def plot_history(self, limit: int = 200) -> Any:
        """Draw the newest commits over the wall clock: updates so far, and how since and upper moved.

        Updates are those that appends wrote in the whole life of the collection. `since` is drawn where it is
        now: the log does not tell its past. Costs as `commits`.

        Args:
            limit: at most so many commits.

        Returns:
            A `matplotlib.figure.Figure`, which a notebook shows and `savefig` stores.

        Raises:
            UsageError: matplotlib is not installed; says how to install it.
        """
        figure = _figure(9, 5)
        above, below = figure.subplots(2, 1, sharex=True)
        state, found = self.state(), self.commits(limit)
        # From the newest total backwards: the log knows how many updates each commit brought.
        after, totals = state.written.appended_rows, list[int]()
        for entry in found:
            totals.append(after)
            after -= (entry.rows or 0) if entry.what == "append" else 0
        whens = [datetime.fromtimestamp(entry.committed_ms / 1000, UTC) for entry in found]
        above.step(whens, totals, where="post", color=_SLICE, label="updates appended")
        above.set_ylabel("updates")
        above.set_title(f"{self.name}: {len(found):,} commits")
        moved = [
            (when, one)
            for when, entry in zip(whens, found, strict=True)
            if entry.upper != state.minimum and (one := _place(entry.upper, self.domain)) is not None
        ]
        below.step(
            [when for when, _ in moved], [one for _, one in moved], where="post", color=_BASE, label="upper"
        )
        since = _place(state.since, self.domain)
        if since is not None and moved and state.since != state.minimum:
            below.axhline(since, color=_LEVEL, label="since")
        below.set_ylabel(f"time ({self.domain})")
        below.set_xlabel("committed (UTC)")
        for axes in (above, below):
            axes.legend(loc="upper left")
        return figure

    def plot_spine(self) -> Any:
        """Draw how the history is stored: slices and levels in the order of time, and the bases between them.

        Returns:
            A `matplotlib.figure.Figure`. One log scan.

        Raises:
            UsageError: matplotlib is not installed; says how to install it.
        """
        figure = _figure(9, 3)
        axes, state = figure.subplots(), self.state()
        spine = state.spine
        members = list(spine)
        places = {member.id.hi: n + 0.5 for n, member in enumerate(members)}
        for colour, label, is_slice in ((_SLICE, "slice", True), (_LEVEL, "level", False)):
            drawn = [
                (n, member.batch.rows)
                for n, member in enumerate(members)
                if (member.id.lo < spine.sliced) is is_slice
            ]
            if drawn:
                axes.bar([n for n, _ in drawn], [rows for _, rows in drawn], color=colour, label=label)
        bases = [(places[base.hi], sum(run.rows for run in base.runs)) for base in state.bases]
        if bases:
            axes.plot(*zip(*bases, strict=True), "o", color=_BASE, label="base")
        axes.set_title(f"{self.name}: {len(members):,} batches, {len(bases):,} bases")
        axes.set_xlabel("oldest to newest")
        axes.set_ylabel("updates")
        if members:
            axes.legend(loc="upper left")
        return figure


def _figure(width: int, height: int) -> Any:
    """A figure that a notebook shows as a picture; one of matplotlib alone is shown as its name."""
    figure = optional("matplotlib.figure", _EXTRA).Figure
    picture = type("Picture", (figure,), {"_repr_png_": _png})
    return picture(figsize=(width, height), layout="constrained")


def _png(figure: Any) -> bytes:
    made = io.BytesIO()
    figure.savefig(made, format="png")
    return made.getvalue()


def _place(frontier: Frontier | None, domain: TimeDomain) -> int | datetime | None:
    """Where a frontier is drawn: at a moment or a number; None: it is neither."""
    if frontier is None or len(frontier.elements) != 1:
        return None
    time = frontier.elements[0]
    if not isinstance(time, int):
        return None
    per_us = US_PER_UNIT.get(domain.unit)
    try:
        return time if per_us is None else datetime.fromtimestamp(time * per_us / 1_000_000, UTC)
    except (ValueError, OverflowError, OSError):
        # Beyond the year 9999.
        return None
