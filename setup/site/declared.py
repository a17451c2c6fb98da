"""Tables of what is declared in a module as a dictionary, for the site: read without importing the module."""

import ast
from pathlib import Path

_SOURCE = Path(__file__).resolve().parent.parent.parent / "src" / "tidelake"


def table(head: str, module: str, name: str) -> str:
    """The dictionary of this name, a row for each entry."""
    body = ast.parse((_SOURCE / module).read_text(encoding="utf-8")).body
    (found,) = (
        ast.literal_eval(one.value)
        for one in body
        if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == name
    )
    rows = [f"| {key} | {meaning} |" for key, meaning in found.items()]
    return "\n".join([head, "|---|---|", *rows, ""])


def read_options() -> str:
    """Every option of a batch read by Spark's format."""
    return table("| option of a read | meaning |", "spark/source/options.py", "MEANINGS")


def findings() -> str:
    """Every kind of finding of fsck."""
    return table("| kinds | what is wrong |", "shard/care/finding.py", "KINDS")
