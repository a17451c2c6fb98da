"""Draws the pictures of the documentation: `python docs/pictures/draw.py`, with Tidelake installed.

The spine is a real one: batches are pushed into it as commits push them, and what the levels make of them is
drawn. tests/test_site.py checks that the committed files are what this draws. The colours follow the reader's
light or dark mode; each picture has a ground of its own, so that it can be read on any page.
"""

from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path

from tidelake.model.batch import HollowBatch, Part, Run
from tidelake.model.bounds import Bounds
from tidelake.model.frontier import Frontier
from tidelake.model.query import AsOf, Changes, Query
from tidelake.model.time import TimeDomain
from tidelake.state.spine import fuel
from tidelake.state.spine.bases import Base, Bases, needed
from tidelake.state.spine.spine import Member, Spine, SpineBatch, SpineId
from tidelake.state.spine.staged import Staging

HERE = Path(__file__).resolve().parent
_LIGHT = {
    **{"ground": "#ffffff", "ink": "#1f2937", "soft": "#6b7280", "line": "#9ca3af", "strong": "#1d4ed8"},
    **{"blue": "#bfdbfe", "green": "#bbf7d0", "amber": "#fde68a", "grey": "#e5e7eb"},
}
_DARK = {
    **{"ground": "#111827", "ink": "#f3f4f6", "soft": "#9ca3af", "line": "#6b7280", "strong": "#93c5fd"},
    **{"blue": "#1e40af", "green": "#166534", "amber": "#854d0e", "grey": "#374151"},
}


def _colours(of: dict[str, str]) -> str:
    rules = (
        *(
            f".{name} {{ fill: {of[name]}; }}"
            for name in ("blue", "green", "amber", "grey", "soft", "strong")
        ),
        f"text {{ fill: {of['ink']}; }}",
        f".ground {{ fill: {of['ground']}; stroke: {of['line']}; }}",
        f".box, .line {{ stroke: {of['line']}; }}",
        f".mark {{ stroke: {of['strong']}; }}",
        f".head {{ fill: {of['line']}; }}",
    )
    return "\n".join(rules)


_STYLE = f"""
text {{ font: 13px system-ui, sans-serif; }}
.soft {{ font-size: 12px; }}
.strong {{ font-weight: 600; }}
.mid {{ text-anchor: middle; }}
.end {{ text-anchor: end; }}
.line {{ fill: none; stroke-width: 1.5; }}
.mark {{ fill: none; stroke-width: 2; }}
{_colours(_LIGHT)}
@media (prefers-color-scheme: dark) {{
{_colours(_DARK)}
}}
"""


class Picture:
    """An SVG of some size in pixels, made of a few shapes."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._size = (width, height)
        self._title = title
        self._shapes: list[str] = []

    def box(self, x: float, y: float, width: float, height: float, kind: str, text: str = "") -> None:
        """A filled rectangle with a text in its middle."""
        self._shapes.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3" class="box {kind}"/>'
        )
        if text:
            self.text(x + width / 2, y + height / 2 + 4.5, text, "mid")

    def text(self, x: float, y: float, text: str, kind: str = "") -> None:
        """One line of text; y is its base line."""
        style = f' class="{kind}"' if kind else ""
        self._shapes.append(f'<text x="{x:g}" y="{y:g}"{style}>{escape(text)}</text>')

    def line(self, x: float, y: float, to_x: float, to_y: float, kind: str = "line") -> None:
        """A straight line."""
        self._shapes.append(f'<path d="M{x:g} {y:g}L{to_x:g} {to_y:g}" class="{kind}"/>')

    def arrow(self, x: float, y: float, to_x: float) -> None:
        """A level arrow to the right."""
        self.line(x, y, to_x - 6, y)
        self._shapes.append(f'<path d="M{to_x:g} {y:g}l-9 -4.5v9z" class="head"/>')

    def path(self, points: list[tuple[float, float]], kind: str) -> None:
        """A line through points."""
        path = "L".join(f"{x:g} {y:g}" for x, y in points)
        self._shapes.append(f'<path d="M{path}" class="{kind}"/>')

    def svg(self) -> str:
        """The file."""
        width, height = self._size
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" role="img">\n<title>{escape(self._title)}</title>\n<style>{_STYLE}</style>\n'
            f'<rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8" class="ground"/>\n'
            + "\n".join(self._shapes)
            + "\n</svg>\n"
        )


def overview() -> Picture:
    """One collection: what can be asked of which time."""
    picture = Picture(760, 270, "A collection over time, with since and upper")
    left, since, upper, right = 120, 290, 570, 740
    picture.box(left, 46, since - left, 40, "grey", "folded")
    picture.box(since, 46, upper - since, 40, "green", "every time can be read exactly")
    picture.box(upper, 46, right - upper, 40, "amber", "still open")
    for x, name in ((since, "since"), (upper, "upper")):
        picture.line(x, 34, x, 232, "mark")
        picture.text(x, 28, name, "mid strong")
    picture.text(20, 71, "times")
    picture.arrow(left, 100, right + 8)
    rows = (
        ("snapshot", "refused", "contents as of any time", "refused, or waits"),
        ("changes", "refused", "between any two times", "refused, or wait"),
        ("append", "refused", "refused: times are closed", "writes, moves upper"),
        ("merge", "folds into since", "keeps every time", "nothing there yet"),
    )
    for number, (name, *cells) in enumerate(rows):
        y = 128 + 30 * number
        picture.text(20, y, name)
        for x, cell in zip(
            ((left + since) / 2, (since + upper) / 2, (upper + right) / 2), cells, strict=True
        ):
            picture.text(x, y, cell, "mid soft")
    picture.text(
        left, 255, "since belongs to what can be read, upper to what is open. Both only move forward.", "soft"
    )
    return picture


def frontiers() -> Picture:
    """A frontier of one number, and one of pairs."""
    picture = Picture(760, 360, "Frontiers of counter times and of pairs")
    picture.text(20, 30, "Times are numbers: the frontier [5]", "strong")
    for time in range(9):
        x = 35 + 36 * time
        picture.box(x - 15, 60, 30, 30, "green" if time < 5 else "amber", str(time))
    picture.line(197, 48, 197, 102, "mark")
    picture.text(107, 122, "before it: closed", "mid soft")
    picture.text(270, 122, "at or after it: open", "mid soft")
    picture.text(20, 170, "As an upper, [5] says that every time")
    picture.text(20, 190, "strictly before 5 is closed.")
    picture.text(20, 220, "As a since, [2] says that contents as of")
    picture.text(20, 240, "2 and every later time are exact.")
    picture.text(20, 270, "The frontier [] stands for no time at all:")
    picture.text(20, 290, "as an upper, everything is closed.")

    picture.text(400, 30, "Times are pairs: the frontier [(4, 1), (2, 3)]", "strong")
    west, south, cell = 430, 290, 36

    def place(a: float, b: float) -> tuple[float, float]:
        return west + cell * a, south - cell * b

    for a in range(8):
        for b in range(6):
            is_open = (a >= 4 and b >= 1) or (a >= 2 and b >= 3)
            x, y = place(a, b)
            picture.box(x, y - cell, cell - 3, cell - 3, "amber" if is_open else "green")
    steps = [(2, 6), (2, 3), (4, 3), (4, 1), (8, 1)]
    picture.path([(x - 1.5, y - 1.5) for x, y in (place(a, b) for a, b in steps)], "mark")
    # An element names the corner of the staircase that it is, from inside the open times.
    for a, b, element in ((4, 1, "(4, 1)"), (2, 3, "(2, 3)")):
        x, y = place(a, b)
        picture.text(x + cell - 1.5, y - cell / 2 + 2, element, "mid strong")
    for a in range(8):
        picture.text(west + cell * a + (cell - 3) / 2, south + 16, str(a), "mid soft")
    for b in range(6):
        picture.text(west - 14, south - cell * b - cell / 2 + 2, str(b), "mid soft")
    picture.text(west, south + 36, "first component to the right, second upward", "soft")
    picture.text(west, south + 54, "green: closed, amber: open", "soft")
    return picture


def stage_and_seal() -> Picture:
    """Staged batches, a seal, and the drain."""
    picture = Picture(760, 380, "Staged updates before a seal, after it, and after the drain")
    left, wide = 150, 56
    picture.text(20, 28, "times", "soft")
    for time in range(10):
        picture.text(left + wide * time + wide / 2, 28, str(time), "mid soft")

    def span(lower: int, upper: int, y: float, kind: str, text: str) -> None:
        picture.box(left + wide * lower + 2, y, wide * (upper - lower) - 4, 24, kind, text)

    def frontier(time: int, top: float, bottom: float, name: str) -> None:
        x = left + wide * time
        picture.line(x, top, x, bottom, "mark")
        picture.text(x, bottom + 15, name, "mid strong")

    picture.text(20, 62, "stage: many")
    picture.text(20, 79, "writers, open times")
    span(0, 2, 45, "green", "in the spine")
    span(2, 5, 45, "amber", "staged a")
    span(3, 8, 73, "amber", "staged b")
    frontier(2, 40, 102, "upper [2]")

    picture.text(20, 172, "seal(5): one")
    picture.text(20, 189, "write to the log")
    span(0, 2, 155, "green", "in the spine")
    span(2, 5, 155, "blue", "a: readable")
    span(3, 5, 183, "blue", "b: readable")
    span(5, 8, 183, "amber", "b: still open")
    frontier(5, 150, 212, "upper [5]")

    picture.text(20, 282, "drain: later, by")
    picture.text(20, 299, "maintenance")
    span(0, 2, 265, "green", "in the spine")
    span(2, 5, 265, "green", "a and b before 5")
    span(5, 8, 293, "amber", "rest of b, staged")
    frontier(5, 260, 322, "upper [5]")
    picture.text(
        left, 366, "green: in the spine; blue: closed and readable, not drained yet; amber: open", "soft"
    )
    return picture


def _batch(lower: int, rows: int) -> HollowBatch:
    part = Part(f"part-{lower}", 1_000, "", rows, 0, rows, 0, b"", None, lower, lower)
    bounds = Bounds(Frontier.of(lower), Frontier.of(lower + 1), Frontier.of(0))
    return HollowBatch(bounds, (Run((part,)),))


def spine() -> Picture:
    """The spine batches of a collection after each of some appends of one update."""
    appends = 12
    picture = Picture(760, 66 + 30 * appends, "A spine after each of twelve appends")
    left, wide = 150, 48
    picture.text(20, 30, "after append", "soft")
    picture.text(
        left, 30, "spine batches from the oldest times to the newest; the number is how many updates", "soft"
    )
    now, since = Spine(), Frontier.of(0)
    for number in range(appends):
        now = now.edited(fuel.push(now, _batch(number, 1), since, number).edit)
        y = 42 + 30 * number
        picture.text(80, y + 17, str(number + 1), "end")
        for held in now.batches:
            kind = ("amber", "blue", "green")[min(held.level, 2)]
            x, span = left + wide * held.id.lo, wide * (held.id.hi - held.id.lo)
            picture.box(x + 1, y, span - 2, 24, kind, str(held.rows))
    picture.text(
        left,
        56 + 30 * appends,
        "The older, the larger: few batches, and each update is rewritten seldom.",
        "soft",
    )
    return picture


@dataclass(frozen=True)
class _Shard:
    """As much of a state as says which batches a read needs."""

    spine: Spine
    bases: Bases
    staged: Staging = Staging()  # noqa: RUF009
    domain: TimeDomain = TimeDomain.parse("counter")  # noqa: RUF009
    minimum: Frontier = Frontier.of(0)  # noqa: RUF009


def _sliced() -> _Shard:
    """Seven slices of ten times each, two batches in the levels, and a base after every second slice."""
    ends = (10, 20, 30, 40, 50, 60, 70, 74, 77)
    members, held = [], []
    for number, (lower, upper) in enumerate(pairwise((0, *ends))):
        id_ = SpineId(number, number + 1)
        bounds = Bounds(Frontier.of(lower), Frontier.of(upper), Frontier.of(0))
        batch = HollowBatch(bounds, _batch(lower, 10 * (upper - lower)).runs)
        members.append(Member(id_, batch, 0))
        held.append(SpineBatch(id_, max(0, 2 + 7 - number), bounds, batch.rows))
    bases = [
        Base(hi, ends[hi - 1], ends[hi - 1] - 1, _batch(1_000 + hi, 100).runs) for hi in (2, 4, 6, len(ends))
    ]
    return _Shard(Spine.of(len(ends), 0, members, held, (), sliced=7), Bases.of(bases))


def slices() -> Picture:
    """A time line of slices and bases, and what each read of it touches."""
    picture = Picture(760, 400, "Slices and bases on a time line, and what each read touches")
    shard, left, wide = _sliced(), 176, 7.2

    def place(time: float) -> float:
        return left + wide * time

    def base(at: int, y: float, height: float) -> None:
        picture.box(place(at) - 5, y, 9, height, "blue")

    def batch(bounds: Bounds, y: float, height: float, text: str = "") -> None:
        (lower,), (upper,) = bounds.lower.elements, bounds.upper.elements
        kind = "green" if upper <= 70 else "amber"
        # A base stands at the end of some: leave room for it.
        picture.box(place(lower) + 5, y, wide * (upper - lower) - 11, height, kind, text)

    picture.text(20, 31, "times")
    picture.arrow(left, 27, 745)
    picture.text(20, 72, "slices and levels")
    picture.text(20, 108, "bases")
    for number, member in enumerate(shard.spine, start=1):
        batch(member.batch.bounds, 54, 28, f"slice {number}" if number <= 7 else "")
    for held in shard.bases:
        base(held.at, 90, 28)
    picture.line(20, 134, 740, 134)
    picture.text(20, 156, "a read touches only", "soft")
    reads: tuple[tuple[str, Query, tuple[int, ...]], ...] = (
        ("snapshot, newest", AsOf(76), (77,)),
        ("snapshot(33)", AsOf(33), (33,)),
        ("snapshot(66)", AsOf(66), (66,)),
        ("changes(43, 48)", Changes(43, 48), (43, 48)),
        ("changes(14, 76)", Changes(14, 76), (14, 77)),
    )
    at = {parts.name: held.at for held in shard.bases for parts in held.parts()}
    for number, (name, query, marks) in enumerate(reads):
        y = 172 + 40 * number
        picture.text(20, y + 17, name)
        picture.line(left, y + 12, place(77), y + 12)
        found = needed(shard, query)
        for one in (*found.batches, *found.less):
            (part,) = one.parts()
            if part.name in at:
                base(at[part.name], y, 24)
            else:
                batch(one.bounds, y, 24)
        for time in marks:
            picture.line(place(time), y - 5, place(time), y + 29, "mark")
    picture.text(
        20,
        384,
        "green: slices; amber: batches of the levels; blue: bases; lines: the times that are asked for",
        "soft",
    )
    return picture


PICTURES: dict[str, Callable[[], Picture]] = {
    "overview.svg": overview,
    "frontiers.svg": frontiers,
    "spine.svg": spine,
    "stage-and-seal.svg": stage_and_seal,
    "slices.svg": slices,
}


if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (HERE / name).write_text(draw().svg(), encoding="utf-8")
