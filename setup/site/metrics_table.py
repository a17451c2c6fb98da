"""The catalogue of metrics as a table. It is read from its file, which imports only the standard library."""

import runpy
from pathlib import Path

_CATALOGUE = Path(__file__).resolve().parent.parent.parent / "src" / "tidelake" / "metrics.py"


def table() -> str:
    """Every metric of the catalogue."""
    rows = [
        f"| `{x.name}` | {x.kind} | {x.unit or '–'} | {x.label or '–'} | {x.meaning} |"
        for x in runpy.run_path(str(_CATALOGUE))["CATALOGUE"]
    ]
    return "\n".join(["| name | kind | unit | label | meaning |", "|---|---|---|---|---|", *rows, ""])
