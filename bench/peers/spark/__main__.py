"""`make bench-peers-spark`: Tidelake on Spark beside Delta Lake and Iceberg, as JSON and in docs/peers.md.

python -m bench.peers.spark --rows 1000000          bench-out/peers-spark.json
python -m bench.peers.spark --rows 1000000 --docs   and the tables and the figure of docs/peers.md
"""

import argparse
import json
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

from bench.__main__ import machine
from bench.peers.__main__ import conditions, draw, table, works, write_page
from bench.peers.spark.run import SPARK, Sizes, is_installed, run
from bench.peers.spark.worker import PEERS

OUT = Path("bench-out/peers-spark.json")
FIGURE = Path("docs/benchmarks/peers-spark.svg")
BEGIN = "<!-- begin: make bench-peers-spark ARGS=--docs -->"
OURS = [peer for peer in PEERS if peer.startswith("tidelake")]


def page(shown: dict[str, Any]) -> str:
    """What was measured, as Markdown."""
    peers = shown["peers"]
    parts = [
        *conditions(shown),
        works(peers, ("median_ms", "min_ms"), "Median (minimum), ms by the clock"),
        works(peers, ("cpu_ms",), "Median, ms of processor time"),
        others(peers),
    ]
    return "\n\n".join(parts)


def others(peers: dict[str, Any]) -> str:
    """Memory and bytes."""
    names = {"python": "driver's Python", "jvm": "JVM", "workers": "Python workers together"}
    rows = [
        [f"memory of the {name} at most, MiB", *(f"{one['peaks_mib'][key]:.0f}" for one in peers.values())]
        for key, name in names.items()
    ]
    rows.append(["bytes on disk at the end, MB", *(f"{one['bytes'] / 1e6:.1f}" for one in peers.values())])
    return table(["", *peers], rows)


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.peers.spark", description=__doc__)
    for one in fields(Sizes):
        parser.add_argument(f"--{one.name}", type=type(one.default), default=one.default)
    parser.add_argument("--peer", action="append", choices=PEERS, help="only these; default: all")
    parser.add_argument("--docs", action="store_true", help="write docs/peers.md and its figure")
    given = parser.parse_args()
    sizes = Sizes(**{one.name: getattr(given, one.name) for one in fields(Sizes)})
    asked = given.peer or [*PEERS]
    if missing := [peer for peer in asked if not is_installed(peer)]:
        print(f"left out, since they are not installed (setup/peers.sh): {', '.join(missing)}")
    begun = os.getloadavg()[1]
    found = run(sizes, asked)
    on = {**machine(), "pyspark": SPARK, "load before and after": f"{begun:.1f} and {os.getloadavg()[1]:.1f}"}
    shown = {"machine": on, "sizes": vars(sizes), "peers": found}
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(shown, indent=2) + "\n")
    print(page(shown))
    if given.docs:
        draw(found, FIGURE, OURS)
        write_page(page(shown), BEGIN)


if __name__ == "__main__":
    main()
