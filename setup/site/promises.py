"""The promises that stand beside the tests, as tables: for the site, and for a terminal.

    python3 setup/site/promises.py            # all of them
    python3 setup/site/promises.py erasure    # those with this word

A promise is a marker of a test; `docs/correctness.md` says how to write one. It is read from the source, so
nothing of the project is imported.
"""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent.parent
TESTS = REPOSITORY / "tests"


@dataclass(frozen=True)
class Promise:
    """What holds, the rule that keeps it, and the tests that check it.

    Attributes:
        text: what holds.
        rule: what keeps it, with names of the code in backquotes; may be empty where the test says all.
        file: the file of the test that has the marker, below `tests`.
        test: its function or class.
        also: further tests, as `file::test`, `::test` of the same file, or a whole file.
    """

    text: str
    rule: str
    file: str
    test: str
    also: tuple[str, ...]

    @property
    def tests(self) -> tuple[str, ...]:
        """All tests in full, the one with the marker first."""
        return (f"{self.file}::{self.test}", *(self.file + x if x.startswith("::") else x for x in self.also))

    @property
    def row(self) -> str:
        """One row of a table."""
        shown = ", ".join(f"`{x}`" for x in (f"{self.file}::{self.test}", *self.also))
        return " | ".join(["", *(x.replace("|", "\\|") for x in (self.text, self.rule, shown)), ""]).strip()


def _marked(node: ast.AST, file: str, test: str) -> Iterator[Promise]:
    for one in getattr(node, "decorator_list", ()):
        if isinstance(one, ast.Call) and ast.unparse(one.func) == "pytest.mark.promise":
            given = {key.arg: ast.literal_eval(key.value) for key in one.keywords}
            (text,) = (ast.literal_eval(x) for x in one.args)
            yield Promise(text, given.pop("rule", ""), file, test, tuple(given.pop("also", ())))
            if given:
                raise ValueError(f"{file}::{test}: a promise has no {', '.join(given)}")


def promises() -> list[Promise]:
    """Every promise, by the file of its test."""
    found = []
    for path in sorted(TESTS.rglob("*.py"), key=lambda x: (x.parent, x.name)):
        text = path.read_text(encoding="utf-8")
        if "mark.promise(" in text:
            file = path.relative_to(TESTS).as_posix()
            for node in ast.walk(ast.parse(text)):
                found += _marked(node, file, getattr(node, "name", ""))
    return found


def tables(shown: list[Promise]) -> str:
    """One table for each folder of tests."""
    lines = []
    for folder, rows in groupby(shown, key=lambda x: x.file.rpartition("/")[0] or "all of it"):
        lines += [f"### {folder}", "", "| promise | rule | test |", "|---|---|---|"]
        lines += [*(x.row for x in rows), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    word = " ".join(sys.argv[1:]).lower()
    print(tables([x for x in promises() if word in x.row.lower()]))
