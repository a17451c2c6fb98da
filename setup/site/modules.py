"""What each module of the product is for: the first lines of their docstrings, for the site and a terminal.

python3 setup/site/modules.py            # all of them
python3 setup/site/modules.py lease      # those with this word
"""

import ast
import os
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent.parent / "src" / "tidelake"


def modules() -> list[tuple[str, str]]:
    """Each module by its path below the package, and the first sentence of its docstring."""
    found = []
    for path in sorted(SOURCE.rglob("*.py"), key=lambda x: (x.parent, x.name)):
        told = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        if told:
            found.append((path.relative_to(SOURCE).as_posix(), told.partition("\n\n")[0].replace("\n", " ")))
    return found


def table(shown: list[tuple[str, str]]) -> str:
    """The modules as a table."""
    rows = [f"| `{name}` | {told} |" for name, told in ((n, t.replace("|", "\\|")) for n, t in shown)]
    return "\n".join(["| module | what it is for |", "|---|---|", *rows, ""])


if __name__ == "__main__":
    word = " ".join(sys.argv[1:]).lower()
    try:
        for name, told in modules():
            if word in f"{name} {told}".lower():
                print(f"{name}: {told}", flush=True)
    except BrokenPipeError:
        # Its reader, such as `head`, has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
