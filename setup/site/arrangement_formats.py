"""The formats of arrangements, for the site: the docstrings of the modules that own them."""

import ast
from pathlib import Path

_SOURCE = Path(__file__).resolve().parent.parent.parent / "src" / "tidelake"
MODULES = (
    "arrangement/batch/fileformat.py",
    "arrangement/batch/filters.py",
    "data/keys/bloom.py",
    "data/keys/keyhash.py",
    "arrangement/checkpoint/checkpoint.py",
)


def sections() -> str:
    """A section for each module."""
    found = []
    for name in MODULES:
        told = ast.get_docstring(ast.parse((_SOURCE / name).read_text(encoding="utf-8"))) or ""
        found += [f"### `{name}`", "", told, ""]
    return "\n".join([*found, ""])
