"""The figures of docs/benchmarks.md, as SVG files of few kilobytes whose bytes follow from the numbers.

Each function takes what `bench.__main__` measured, and draws what is there: a module that was not measured,
or a row or a number that it no longer has, leaves a figure out and is no error.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Found = Mapping[str, Any]
Row = dict[str, Any]

STYLE = {
    "svg.hashsalt": "tidelake",
    "svg.fonttype": "none",  # text stays text: small, and sharp in every font
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "path.simplify_threshold": 0.5,
    "figure.figsize": (6.4, 3.2),
    "legend.frameon": False,
}


def _rows(found: Found, module: str) -> dict[str, Row]:
    rows = found.get(module)
    return {k: v for k, v in rows.items() if isinstance(v, dict)} if isinstance(rows, dict) else {}


def _numbers(row: Row, name: str) -> list[float]:
    values = row.get(name)
    return values if isinstance(values, list) else []


def _share(values: list[float]) -> list[float]:
    """Where on the way from the first append to the last each value stands, in percent."""
    return [100 * (i + 0.5) / len(values) for i in range(len(values))]


def append_latency(found: Found, axes: Any) -> bool:
    """Medians over history, and of the bare commits between them."""
    for kind, row in _rows(found, "appends").items():
        if values := _numbers(row, "latency_ms"):
            axes.plot(_share(values), values, linewidth=1, label=f"append: {kind}")
    for row in list(_rows(found, "appends").values())[:1]:
        if values := _numbers(row, "limit_ms"):
            axes.plot(_share(values), values, linewidth=1, color="gray", label="one bare commit to SQLite")
    axes.set(xlabel="history, % of all appends", ylabel="median, ms", ylim=(0, None))
    return axes.has_data()


def append_runs(found: Found, axes: Any) -> bool:
    """Runs in the shard over history."""
    for kind, row in _rows(found, "appends").items():
        if values := _numbers(row, "runs_over_history"):
            axes.plot(_share(values), values, linewidth=1, label=kind)
    axes.set(xlabel="history, % of all appends", ylabel="runs", ylim=(0, None))
    return axes.has_data()


def update_space(found: Found, axes: Any) -> bool:
    """Stored updates for each live row, while they were appended and merged."""
    values = _numbers(_rows(found, "updates").get("appends", {}), "space_over_history")
    if values:
        axes.plot(_share(values), values, linewidth=1)
    axes.set(xlabel="history, % of all updates", ylabel="stored updates / live rows", ylim=(0, None))
    return axes.has_data()


def merge_to_copy(found: Found, axes: Any) -> bool:
    """Merges against plain copies, by the number of runs; a line for each shape of the rows."""
    lines: dict[str, list[tuple[int, float]]] = {}
    for module in ("kernels", "embedded", "spark"):
        for name, row in _rows(found, module).items():
            runs, ratio = re.search(r"R=(\d+)", name), row.get("merge_to_copy")
            if runs and isinstance(ratio, int | float):
                shape = re.sub(r"[\s,;:/]*R=\d+[\s,;:/]*", " ", name).strip()
                lines.setdefault(f"{module} {shape}".strip(), []).append((int(runs[1]), ratio))
    for label, points in lines.items():
        x, y = zip(*sorted(points), strict=True)
        axes.plot(x, y, marker="o", markersize=3, linewidth=1, label=label)
    if lines:
        ticks = sorted({runs for points in lines.values() for runs, _ in points})
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.axhline(1, color="gray", linewidth=0.8)
    axes.set(xlabel="sorted runs merged at once", ylabel="speed of a merge / of a copy", ylim=(0, None))
    return bool(lines)


def peak_memory(found: Found, axes: Any) -> bool:
    """What each measured process had resident at most."""
    bars = [
        (f"{module}: {name}", value)
        for module in found
        for name, row in _rows(found, module).items()
        for key, value in row.items()
        if isinstance(value, int | float) and re.search(r"(peak|rss).*mib$", key) and "_to_" not in key
    ]
    if bars:
        labels, values = zip(*bars, strict=True)
        axes.barh(range(len(bars)), values, height=0.6)
        axes.set_yticks(range(len(bars)), labels)
        axes.invert_yaxis()
        axes.axvline(512, color="gray", linewidth=0.8)
    axes.set(xlabel="peak resident memory, MiB (the line: 512)")
    return bool(bars)


def _along(found: Found, what: str, number: str) -> tuple[list[int], list[float]]:
    """A number of rows that are named after how many there were, such as `1,000 collections`."""
    named = re.compile(rf"([\d,]+) {re.escape(what)}")
    points = {
        int(match[1].replace(",", "")): row[number]
        for name, row in _rows(found, "growth").items()
        if (match := named.fullmatch(name)) and isinstance(row.get(number), int | float)
    }
    return sorted(points), [points[count] for count in sorted(points)]


def _grown(found: Found, axes: Any, lines: Mapping[str, tuple[str, str]]) -> bool:
    """A line for each number along what grows, both axes by powers of ten."""
    for label, (what, number) in lines.items():
        counts, values = _along(found, what, number)
        if counts:
            axes.plot(counts, values, marker="o", markersize=3, linewidth=1, label=label)
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axes.set(xscale="log", yscale="log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(
            FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")
        )
        axis.set_minor_formatter(NullFormatter())
    return axes.has_data()


def growth_commits(found: Found, axes: Any) -> bool:
    """Costs of a commit and of reads by the number of commits."""
    drawn = _grown(
        found,
        axes,
        {
            f"{work}, {place}": (f"commits, {place}", f"{number}_ms")
            for place in ("directory", "object store")
            for work, number in (("append", "append"), ("open", "open"), ("snapshot", "snapshot"))
        },
    )
    axes.set(xlabel="commits", ylabel="processor time, ms")
    return drawn


def growth_collections(found: Found, axes: Any) -> bool:
    """Costs of one collection by how many the lake has."""
    works = ("create", "open", "append", "open lake", "list", "upkeep")
    lines = {work: ("collections", f"{work.replace(' ', '_')}_ms") for work in works}
    drawn = _grown(found, axes, lines)
    axes.set(xlabel="collections of the lake", ylabel="processor time, ms")
    return drawn


def growth_runs(found: Found, axes: Any) -> bool:
    """Costs of reads by the number of runs that are not merged."""
    lines = {"snapshot": "snapshot_ms", "ten keys": "lookup_ms", "one key": "one_key_ms"}
    drawn = _grown(found, axes, {label: ("runs", number) for label, number in lines.items()})
    axes.set(xlabel="unmerged runs", ylabel="processor time, ms")
    return drawn


def growth_rows(found: Found, axes: Any) -> bool:
    """Costs of a row by the number of rows, and the memory of the process."""
    lines = {
        "append, μs a row": "append_us_row",
        "snapshot, μs a row": "snapshot_us_row",
        "ten keys, ms": "lookup_ms",
        "peak memory, GiB": "peak_gib",
    }
    drawn = _grown(found, axes, {label: ("rows", number) for label, number in lines.items()})
    axes.set(xlabel="rows")
    return drawn


FIGURES: dict[str, tuple[str, Callable[[Found, Any], bool]]] = {
    "append-latency": ("Latency of an append over history", append_latency),
    "append-runs": ("Runs in the shard over history", append_runs),
    "update-space": ("Space while updates come and a worker merges", update_space),
    "merge-to-copy": ("Merges against plain copies of the same rows", merge_to_copy),
    "growth-commits": ("Costs by the number of commits", growth_commits),
    "growth-collections": ("Costs by the number of collections", growth_collections),
    "growth-runs": ("Reads by the number of unmerged runs", growth_runs),
    "growth-rows": ("Costs and memory by the number of rows", growth_rows),
    "peak-memory": ("Peak memory", peak_memory),
}


TITLES = {f"{name}.svg": title for name, (title, _) in FIGURES.items()}


def draw(found: Found, folder: Path) -> list[str]:
    """Draw all figures that the numbers allow; their file names."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    drawn: list[str] = []
    with matplotlib.rc_context(STYLE):
        for name, (title, plot) in FIGURES.items():
            figure, axes = pyplot.subplots(layout="constrained")
            if plot(found, axes):
                axes.set_title(title, fontsize=10)
                if axes.get_xscale() == "log" and name.startswith("growth"):
                    figure.legend(fontsize=8, loc="outside right upper")  # beside the lines, not over them
                elif axes.get_legend_handles_labels()[0]:
                    axes.legend(fontsize=8)
                figure.savefig(folder / f"{name}.svg", metadata={"Date": None, "Creator": None})
                drawn.append(f"{name}.svg")
            pyplot.close(figure)
    return drawn
