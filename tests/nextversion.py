"""The sources of a version after this one, which differ in one thing only."""

import shutil
from pathlib import Path

import tidelake

SOURCES = Path(tidelake.__file__).parent
ADDED = """
    marks: Entries[str, int] = entries({format})
    size: Value[int] = value(0, {format})
"""


def next_version(folder, format_):
    """The sources of a version in which the state has two fields more, and nothing else is new."""
    package = folder / "tidelake"
    package.mkdir()
    for path in SOURCES.iterdir():
        if path.name == "state":
            shutil.copytree(path, package / "state", ignore=shutil.ignore_patterns("__pycache__"))
        elif path.name != "__pycache__":
            (package / path.name).symlink_to(path)
    state, formats = package / "state/core/state.py", package / "state/core/formats.py"
    found, declared = ADDED.format(format=format_), "    closed_ms: Declared["
    text = state.read_text(encoding="utf-8")
    assert text.count(declared) == 1
    state.write_text(text.replace(declared, found.lstrip("\n") + declared), encoding="utf-8")
    formats.write_text(formats.read_text().replace("NEWEST = 1\n", f"NEWEST = {format_}\n"))
    return folder
