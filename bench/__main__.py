"""`make bench`: every measurement, as JSON on standard output and in bench-out/bench.json.

Each figure that counts is a ratio of two things measured in turn in one process. `--docs` writes the
summary into docs/benchmarks.md.
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

MEASURED = ("kernels", "embedded", "spark")
SUMMARY = Path("docs/benchmarks.md")
MARKS = ("<!-- begin: make bench ARGS=--docs -->", "<!-- end -->")


def measured(name: str, rows: int) -> dict[str, dict[str, float]]:
    """One module's measurements, in a process of its own: no memory or threads left over from the others."""
    code = f"import json; from bench.{name} import run; print('RESULT ' + json.dumps(run({rows})))"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT "))
    found: dict[str, dict[str, float]] = json.loads(line.removeprefix("RESULT "))
    return found


def machine() -> dict[str, str]:
    cpu = "unknown"
    info = Path("/proc/cpuinfo")
    if info.exists() and (match := re.search(r"model name\s*: (.*)", info.read_text())):
        cpu = match.group(1)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    versions = {name: importlib.metadata.version(name) for name in ("pyarrow", "numpy", "pyspark")}
    return {
        "cpu": f"{cpu}, {os.cpu_count()} cores",
        "memory": f"{memory:.0f} GiB",
        "python": platform.python_version(),
        **versions,
    }


def table(rows: dict[str, dict[str, float]]) -> str:
    columns = list(dict.fromkeys(c for row in rows.values() for c in row))
    lines = [
        "| | " + " | ".join(c.replace("_", " ") for c in columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for name, row in rows.items():
        lines.append(f"| {name} | " + " | ".join(cell(row.get(c)) for c in columns) + " |")
    return "\n".join(lines)


def cell(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench")
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--only", choices=MEASURED, action="append")
    parser.add_argument("--docs", action="store_true", help=f"write the summary into {SUMMARY}")
    asked = parser.parse_args()
    found: dict[str, object] = {"rows": asked.rows, "machine": machine()}
    for name in asked.only or MEASURED:
        print(f"measuring {name} ...", file=sys.stderr)
        found[name] = measured(name, asked.rows)
    out = Path("bench-out")
    out.mkdir(exist_ok=True)
    (out / "bench.json").write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found, indent=2))
    if asked.docs:
        write_summary(found)


def write_summary(found: dict[str, object]) -> None:
    said = [f"{asked}: {value}" for asked, value in machine().items()]
    text = [f"{found['rows']:,} rows; " + "; ".join(said) + ".", ""]
    for name in MEASURED:
        if name in found:
            text += [f"## {name.capitalize()}", "", table(found[name]), ""]  # type: ignore[arg-type]
    page = SUMMARY.read_text()
    head, _, rest = page.partition(MARKS[0])
    _, _, tail = rest.partition(MARKS[1])
    SUMMARY.write_text(head + MARKS[0] + "\n\n" + "\n".join(text) + "\n" + MARKS[1] + tail)


if __name__ == "__main__":
    main()
