"""Texts of stages: which columns they name, and the same text over other columns.

Owns how references are found in a text; must not know what a stage is.
"""

import re
from collections.abc import Callable

# A text in quotes is no reference.
_TOKEN = re.compile(r"""'(?:[^']|'')*'|\b(i\d+|g)\.("(?:[^"]|"")*")""")


def replaced(text: str, other: Callable[[int, str], str]) -> str:
    """A text with other references: `other` gets the number of the input, -1 for `g`, and the name."""

    def one(match: re.Match[str]) -> str:
        if match[1] is None:
            return match[0]
        return other(-1 if match[1] == "g" else int(match[1][1:]), match[2][1:-1].replace('""', '"'))

    return _TOKEN.sub(one, text)


def references(text: str) -> list[tuple[int, str]]:
    """The references in a text: the number of the input, -1 for `g`, and the name."""
    found: list[tuple[int, str]] = []

    def one(number: int, name: str) -> str:
        found.append((number, name))
        return ""

    replaced(text, one)
    return found
