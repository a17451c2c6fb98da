"""Numbers that fresh processes tell of themselves, with this code and in turn with that of another one."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

Row = dict[str, float]


def least(code: str, rounds: int, before: str | None = None) -> dict[str, Row]:
    """The least of each number, over some rounds.

    Args:
        code: what a process does; it prints its numbers as one JSON object.
        rounds: processes of each checkout. One more comes first, in which Python stores the bytecode.
        before: the folder of another checkout of Tidelake; None: there is none.

    Returns:
        The numbers as `now`; with another checkout also its numbers, and now over before.
    """
    folders = {"now": "."} if before is None else {"now": ".", "before": before}
    told: dict[str, list[Row]] = {name: [] for name in folders}
    with tempfile.TemporaryDirectory() as cache:
        for _ in range(rounds + 1):
            for name, folder in folders.items():
                told[name].append(_told(code, Path(folder), cache))
    found = {
        name: {number: min(row[number] for row in rows[1:]) for number in rows[0]}
        for name, rows in told.items()
    }
    if before is not None:
        found["now to before"] = {name: value / found["before"][name] for name, value in found["now"].items()}
    return found


def _told(code: str, folder: Path, cache: str) -> Row:
    """The numbers of a process with the code of a checkout; its bytecode is stored in a folder."""
    paths = os.pathsep.join([str(Path(folder, "src").resolve()), str(Path.cwd())])
    wanted = {"PYTHONPATH": paths, "PYTHONPYCACHEPREFIX": cache, "PYTHONDONTWRITEBYTECODE": ""}
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | wanted, stdout=subprocess.PIPE, text=True, check=True
    )
    row: Row = json.loads(done.stdout)
    return row


def show(found: dict[str, Row]) -> None:
    """Print a line for each row."""
    for name, row in found.items():
        print(name, {number: round(value, 3) for number, value in row.items()}, flush=True)
