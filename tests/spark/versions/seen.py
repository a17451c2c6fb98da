"""What Tidelake was seen to do with each version of PySpark: runs it, and writes `seen.md`.

    python -m tests.spark.versions.seen [VERSION ...] [--path PATH ...]   # after setup/sparks.sh

Takes paths of `matrix_driver` (default: all) over a small history, in an environment of `setup/sparks.sh`,
and the probe of `probes.py`. What is not run stays in `seen.md` as it is.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE / "seen.md"
sys.path[:0] = [str(HERE.parent)]

import test_matrix as matrix  # noqa: E402  # as pytest finds them
from cluster import SOURCES  # noqa: E402
from matrix_data import small_history  # noqa: E402
from matrix_driver import PATHS  # noqa: E402

VERSIONS = ("3.5", "4.0", "4.1", "4.2", "4.3")
RIGHT = "yes"
PROBE = "filters pushed into a Python data source"
# What is said of what a version lacks: by Tidelake, and by a Spark without data sources in Python.
_NEEDS = re.compile(r"needs PySpark (\d\.\d) or newer")
_NO_SOURCES = re.compile(r"DATA_SOURCE_NOT_FOUND|Failed to find data source: tidelake")
_BEGIN, _END = "<!-- seen: begin -->", "<!-- seen: end -->"


def python_of(version: str) -> Path | None:
    """The Python of an environment with a version of PySpark; None if there is none."""
    import pyspark

    if pyspark.__version__.startswith(version + "."):
        return Path(sys.executable)
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    home = Path(os.environ.get("TIDELAKE_SPARKS") or f"{cache}/tidelake/sparks")
    found = sorted(one for one in home.glob(f"{version}-*/bin/python") if one.parts[-3][-1].isdigit())
    return found[-1] if found else None


def seen_on(version: str, root: Path, paths: Sequence[str] = (*PATHS,)) -> dict[str, str]:
    """What each path came to: `yes`, or from which version on it goes.

    Raises:
        AssertionError: a path is wrong, or refused without the version that has it.
    """
    python = python_of(version)
    assert python is not None, f"no environment with PySpark {version}: run setup/sparks.sh {version}"
    history = small_history(root / "history")
    done = matrix.run("local", history, root / version, looks=5, paths=paths, python=str(python))
    seen, wrong = {}, []
    for path in paths:
        claims = done.found[path]
        needs = _NEEDS.search(claims) if isinstance(claims, str) else None
        if needs is not None:
            seen[path] = f"from {needs[1]}"
        elif isinstance(claims, str) and version == "3.5" and _NO_SOURCES.search(claims):
            seen[path] = "from 4.0"
        elif reason := done.wrong(path):
            wrong.append(reason)
        else:
            seen[path] = RIGHT
    assert not wrong, "\n".join([f"PySpark {version}", *wrong, done.log[-6000:]])
    return seen


def probed_on(version: str) -> str:
    """What the probe came to."""
    packages = os.pathsep.join([str(SOURCES), str(HERE.parent)])
    done = subprocess.run(
        [str(python_of(version)), str(HERE / "probes.py")],
        capture_output=True,
        text=True,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": packages},
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    told: str = json.loads(done.stdout.splitlines()[-1])
    return told


def release_of(version: str) -> str:
    """The whole number of the version in an environment."""
    command = [str(python_of(version)), "-c", "import pyspark; print(pyspark.__version__)"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def written() -> dict[str, dict[str, str]]:
    """The table of the page: by release, what each row says of it."""
    text = PAGE.read_text(encoding="utf-8").partition(_BEGIN)[2].partition(_END)[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if "|" in line
    ]
    if not rows:
        return {}
    return {release: {row[0]: row[at] for row in rows[2:]} for at, release in enumerate(rows[0]) if at}


def write(release: str, seen: dict[str, str]) -> None:
    """Write what was seen with a release into the table, in place of an older release of its version."""
    known = written()
    version = release.rpartition(".")[0]
    before = known.get(release, {})
    known = {name: column for name, column in known.items() if name.rpartition(".")[0] != version}
    known[release] = before | seen
    releases = sorted(known)
    lines = ["| | " + " | ".join(releases) + " |", "|---" * (len(releases) + 1) + "|"]
    for name in (*PATHS, PROBE):
        cells = [known[one].get(name, "") for one in releases]
        if any(cells):
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
    text = PAGE.read_text(encoding="utf-8")
    head, tail = text.partition(_BEGIN)[0], text.partition(_END)[2]
    PAGE.write_text(f"{head}{_BEGIN}\n" + "\n".join(lines) + f"\n{_END}{tail}", encoding="utf-8")


def main() -> None:
    parser = ArgumentParser()
    parser.add_argument("versions", nargs="*", default=VERSIONS)
    parser.add_argument("--path", action="append", choices=[*PATHS, PROBE])
    asked = parser.parse_args()
    paths = asked.path or [*PATHS, PROBE]
    for version in asked.versions:
        seen = {}
        if taken := [path for path in paths if path != PROBE]:
            with tempfile.TemporaryDirectory() as folder:
                seen = seen_on(version, Path(folder), taken)
        if PROBE in paths:
            seen[PROBE] = probed_on(version)
        write(release_of(version), seen)


if __name__ == "__main__":
    main()
