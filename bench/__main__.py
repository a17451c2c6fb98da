"""`make bench`: every measurement, as JSON on standard output and in bench-out/bench.json.

Each figure that counts is a ratio of two things measured in turn in one process. With `--only`, what an
earlier run measured of the other modules is kept. `--docs` writes the tables into bench/results.md and the
figures into docs/benchmarks; what it has no numbers for stays as it is.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

from bench.floors import judged
from bench.plots import TITLES, draw

MEASURED = (
    "kernels",
    "embedded",
    "appends",
    "small",
    "first_use",
    "bulk",
    "contention",
    "staging",
    "updates",
    "history",
    "growth",
    "arrangement_reads",
    "arrangement_spine",
    "spark",
    "spark_first",
    "spark_writes",
    "spark_ingest",
    "spark_tables",
    "spark_history",
    "spark_views",
)
OUT = Path("bench-out/bench.json")
SUMMARY, FIGURES = Path("bench/results.md"), Path("docs/benchmarks")
# Of these modules the page shows some rows; the JSON has all.
SHOWN = {
    "history": r"growth at rest|1,200,000 updates, 90 % let go|sliced to unsliced",
    "growth": r"^10*(,000)* |(writers|runs)$",
}
MARKS = ("<!-- begin: make bench ARGS=--docs -->", "<!-- end -->")


Row = dict[str, float | list[float]]


def measured(name: str, rows: int) -> dict[str, Row]:
    """One module's measurements, in a process of its own: no memory or threads left over from the others."""
    code = f"import json; from bench.{name} import run; print('RESULT ' + json.dumps(run({rows})))"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT "))
    found: dict[str, Row] = json.loads(line.removeprefix("RESULT "))
    return found


def machine() -> dict[str, str]:
    cpu = "unknown"
    info = Path("/proc/cpuinfo")
    if info.exists() and (match := re.search(r"model name\s*: (.*)", info.read_text())):
        cpu = match.group(1)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    named = ("pyarrow", "numpy", "pyspark", "duckdb", "polars")
    versions = {name: importlib.metadata.version(name) for name in named}
    return {
        "cpu": f"{cpu}, {os.cpu_count()} cores",
        "memory": f"{memory:.0f} GiB",
        "python": platform.python_version(),
        **versions,
    }


def tables(rows: dict[str, Row]) -> str:
    """One table for all rows with the same numbers; a table of many numbers and few rows stands upright."""
    groups: dict[tuple[str, ...], dict[str, Row]] = {}
    for name, row in rows.items():
        groups.setdefault(tuple(c for c in row if not isinstance(row[c], list)), {})[name] = row
    return "\n\n".join(table(columns, group) for columns, group in groups.items())


def table(columns: tuple[str, ...], rows: dict[str, Row]) -> str:
    head = [c.replace("_", " ") for c in columns]
    cells = [[name, *(cell(row[c]) for c in columns)] for name, row in rows.items()]
    lines = [["", *head], *cells]
    if len(columns) > len(rows) and len(columns) > 10:
        lines = [list(line) for line in zip(*lines, strict=True)]
    drawn = ["| " + " | ".join(line).strip() + " |" for line in lines]
    return "\n".join([drawn[0], "|---" * len(lines[0]) + "|", *drawn[1:]])


def titled(name: str) -> str:
    return name.replace("_", " ").capitalize()


def cell(value: object) -> str:
    if not isinstance(value, int | float):
        return str(value)
    return f"{value:,.0f}" if isinstance(value, int) or abs(value) >= 1000 else f"{value:.2f}"


def earlier(now: dict[str, object]) -> dict[str, object]:
    """What an earlier run of as many rows on an equal machine measured, so that `--only` adds to it."""
    found: dict[str, object] = json.loads(OUT.read_text()) if OUT.exists() else {}
    same = all(found.get(name) == value for name, value in now.items())
    return {name: found[name] for name in MEASURED if name in found} if same else {}


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench")
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--scale", type=float, default=1.0, help="measure so large a share of the rows")
    parser.add_argument("--only", choices=MEASURED, action="append")
    parser.add_argument("--docs", action="store_true", help=f"write tables and figures into {SUMMARY}")
    asked = parser.parse_args()
    rows = max(1, int(asked.rows * asked.scale))
    found: dict[str, object] = {"rows": rows, "machine": machine()}
    OUT.parent.mkdir(exist_ok=True)
    found |= earlier(found) if asked.only else {}
    for name in asked.only or MEASURED:
        print(f"measuring {name} ...", file=sys.stderr)
        found[name] = measured(name, rows)
        # After each: a run of many minutes may be interrupted.
        OUT.write_text(json.dumps(found, indent=2) + "\n")
    found["bounds"] = list(judged(found))
    OUT.write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found, indent=2))
    for bound in judged(found):
        told = "kept" if bound["kept"] else "MISSED"
        print(f"{told:8}{bound['name']} = {bound['value']:.2f} ({bound['bound']:g})", file=sys.stderr)
    if asked.docs:
        write_summary(found)


def write_summary(found: dict[str, object], page: Path = SUMMARY, figures: Path = FIGURES) -> None:
    """Write what was measured into the page; sections of modules that were not measured stay."""
    head, _, rest = page.read_text().partition(MARKS[0])
    inside, _, tail = rest.partition(MARKS[1])
    sections = dict(re.findall(r"^## (.+)\n\n((?:(?!## ).*\n)*)", inside, re.MULTILINE))
    for name in MEASURED:
        if name in found:
            rows: dict[str, Row] = found[name]  # type: ignore[assignment]
            shown = {row: row_ for row, row_ in rows.items() if re.search(SHOWN.get(name, ""), row)}
            sections[titled(name)] = tables(shown) + "\n\n"
    draw(found, figures)
    drawn = {file: title for file, title in TITLES.items() if (figures / file).exists()}
    folder = os.path.relpath(figures, page.parent)
    sections["Figures"] = "\n".join(f"![{title}]({folder}/{file})\n" for file, title in drawn.items())
    said = [f"{asked}: {value}" for asked, value in machine().items()]
    text = [f"{found['rows']:,} rows; " + "; ".join(said) + ".\n\n"]
    for name in (*map(titled, MEASURED), "Figures"):
        if name in sections:
            text.append(f"## {name}\n\n{sections[name].rstrip()}\n\n")
    page.write_text(head + MARKS[0] + "\n\n" + "".join(text) + MARKS[1] + tail)


if __name__ == "__main__":
    main()
