"""Earlier versions of Tidelake, built from the commits that `before.json` names, each in a folder of its own.

`before` is the version before this one. There is none as long as no other version has its lakes. Needs the
history of the repository, and no network: what a version requires is taken from this environment.
"""

import functools
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import pytest

HERE = Path(__file__).parent
REPOSITORY = HERE.parent.parent
COMMITS: dict[str, str] = json.loads((HERE / "before.json").read_text())
NEW = REPOSITORY / "src"


@functools.cache
def installed(version: str, kept: Path) -> Path:
    """The folder that a version is installed in, for `PYTHONPATH`; skips the test without history."""
    commit = COMMITS[version]
    archive = subprocess.run(["git", "archive", commit], cwd=REPOSITORY, capture_output=True, check=False)
    if archive.returncode:
        pytest.skip(f"no commit {commit[:7]} here: {archive.stderr.decode(errors='replace').strip()}")
    folder = kept / version.replace(" ", "-")
    with tempfile.TemporaryDirectory() as scratch:
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tree:
            tree.extractall(scratch, filter="data")
        _run("-m", "hatchling", "build", "--target", "wheel", "--directory", f"{scratch}/wheel", cwd=scratch)
        (wheel,) = Path(scratch, "wheel").glob("*.whl")
        _run(
            "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(folder), str(wheel)
        )
    return folder


def _run(*arguments: str, cwd: str | None = None) -> None:
    done = subprocess.run([sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr


def environment(sources: Path, *more: Path) -> dict[str, str]:
    """The environment of a process of the version in `sources`."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (sources, *more)))}
