"""`make bench-peers`: Tidelake beside other tables and engines, as JSON and as the page docs/peers.md.

python -m bench.peers --rows 1000000          bench-out/peers.json
python -m bench.peers --rows 1000000 --docs   and the tables and the figure of docs/peers.md
"""

import argparse
import importlib.metadata
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.__main__ import machine
from bench.peers.run import PEERS, Sizes, python_of, run
from bench.plots import STYLE

OUT = Path("bench-out/peers.json")
PAGE, FIGURE = Path("bench/results-peers.md"), Path("docs/benchmarks/peers.svg")
BEGIN, END = "<!-- begin: make bench-peers ARGS=--docs -->", "<!-- end -->"
Shown = dict[str, Any]


def page(shown: Shown) -> str:
    """What was measured, as Markdown."""
    peers: Shown = shown["peers"]
    parts = [*conditions(shown), works(peers, ("median_ms", "min_ms"), "Median (minimum), ms by the clock")]
    parts += [works(peers, ("cpu_ms",), "Median, ms of processor time")]
    parts += [others(peers), cannot(peers)]
    return "\n\n".join(parts)


def conditions(shown: Shown) -> list[str]:
    """The machine and the sizes."""
    where = ", ".join(f"{name} {value}" for name, value in shown["machine"].items())
    sizes = ", ".join(f"{name} {value}" for name, value in shown["sizes"].items())
    return [f"Machine: {where}.", f"Sizes: {sizes}."]


def works(peers: Shown, numbers: tuple[str, ...], title: str) -> str:
    """A table: a row for each kind of work, a column for each peer; the second number in brackets."""

    def told(work: Shown, what: str) -> str:
        if what not in work:
            return ""
        first, *others = (cell(work[what][number]) for number in numbers)
        return first + "".join(f" ({other})" for other in others)

    kinds = dict.fromkeys(what for one in peers.values() for what in one["work"])
    return table(
        [title, *peers], [[what, *(told(one["work"], what) for one in peers.values())] for what in kinds]
    )


def others(peers: Shown) -> str:
    """Memory, bytes and flushes."""

    def flushed(one: Shown) -> str:
        return "not counted" if one["flushes_per_append"] is None else f"{one['flushes_per_append']:.1f}"

    def rate(one: Shown, count: int) -> str:
        return f"{one['appends_per_s'][count]:.0f}" if count in one["appends_per_s"] else ""

    rows = [
        ["flushes of an append of 10 rows", *(flushed(one) for one in peers.values())],
        *(
            [f"appends of 10 rows a second, {count} processes", *(rate(one, count) for one in peers.values())]
            for count in dict.fromkeys(n for one in peers.values() for n in one["appends_per_s"])
        ),
        ["memory of the process at most, MiB", *(f"{one['peak_mib']:.0f}" for one in peers.values())],
        ["bytes on disk at the end, MB", *(f"{one['bytes'] / 1e6:.1f}" for one in peers.values())],
    ]
    return table(["", *peers], rows)


def cannot(peers: Shown) -> str:
    """What each peer cannot answer."""
    lines = []
    for peer, one in peers.items():
        for why in dict.fromkeys(one["cannot"].values()):
            what = ", ".join(what for what, reason in one["cannot"].items() if reason == why)
            lines.append(f"- *{peer}*: {why}, so no {what}.")
    return "\n".join(lines)


def table(head: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def cell(milliseconds: float) -> str:
    """Three digits."""
    return f"{milliseconds:.0f}" if milliseconds >= 100 else f"{milliseconds:.3g}"


def draw(peers: Shown, path: Path, ours: Sequence[str]) -> None:
    """A dot for each peer and kind of work, over a scale of factors."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    kinds = list(dict.fromkeys(what for one in peers.values() for what in one["work"]))
    with matplotlib.rc_context({**STYLE, "figure.figsize": (6.4, 0.3 * len(kinds) + 1.2)}):
        figure, axes = pyplot.subplots(layout="constrained")
        for peer, one in peers.items():
            points = [(one["work"][w]["median_ms"], at) for at, w in enumerate(kinds) if w in one["work"]]
            x, y = zip(*points, strict=True)
            is_ours = peer in ours
            axes.plot(x, y, "D" if is_ours else "o", markersize=6 if is_ours else 4, label=peer)
        axes.set_xscale("log")
        axes.set_yticks(range(len(kinds)), kinds)
        axes.invert_yaxis()
        axes.set(xlabel="median, ms (less is better)")
        axes.legend(fontsize=7, ncols=4, loc="lower center", bbox_to_anchor=(0.4, 1.0))
        figure.savefig(path, metadata={"Date": None, "Creator": None})
        pyplot.close(figure)


def write_page(text: str, begin: str) -> None:
    """Put what was measured into the page, between this mark and the next end."""
    before, _, rest = PAGE.read_text().partition(begin)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{begin}\n\n{text}\n\n{END}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.peers", description=__doc__)
    sizes = Sizes()
    parser.add_argument("--rows", type=int, default=sizes.rows, help="rows of the large table")
    parser.add_argument("--upserts", type=int, default=sizes.upserts, help="upserts of a hundredth of them")
    parser.add_argument("--appends", type=int, default=sizes.appends, help="appends of ten rows")
    parser.add_argument("--rounds", type=int, default=sizes.rounds, help="how often each read is asked")
    parser.add_argument("--peer", action="append", choices=PEERS, help="only these; default: all")
    parser.add_argument("--docs", action="store_true", help="write bench/results-peers.md and the figure")
    given = parser.parse_args()
    sizes = Sizes(given.rows, given.upserts, given.appends, given.rounds)
    asked = given.peer or PEERS
    missing = [peer for peer in asked if python_of(peer) is None]
    if missing:
        print(f"left out, since they are not installed (setup/peers.sh): {', '.join(missing)}")
    on = {**machine(), "tidelake": importlib.metadata.version("tidelake")}
    shown = {"machine": on, "sizes": vars(sizes), "peers": run(sizes, asked)}
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(shown, indent=2) + "\n")
    print(page(shown))
    if given.docs:
        write_page(page(shown), BEGIN)
        draw(shown["peers"], FIGURE, ["tidelake"])


if __name__ == "__main__":
    main()
