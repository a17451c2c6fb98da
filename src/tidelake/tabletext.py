"""Tables for people, as plain text and as HTML, whatever the cells hold.

Owns how a cell is made safe and short, and how cells are set; must not know what they tell.

INVARIANT: no character of a cell moves a cursor, changes the direction or colour of other text, or is read as
HTML. Cells of different texts that are not cut are different.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import Field, fields
from html import escape
from itertools import groupby
from typing import Any, TypeVar

from tidelake.timetext import shown

CELL_MAX = 60
Row = TypeVar("Row")


# Parts of words and of emoji, which move and turn nothing: joiners, the space of Chinese and Japanese, emoji
# that are newer than this Python, and the letters of flags.
_SHOWN = re.compile(
    "[\u200c\u200d\u3000\U0001f000-\U0001faff]"
    "|(?<=\U0001f3f4)[\U000e0030-\U000e0039\U000e0061-\U000e007a]{1,6}\U000e007f"
)
_LOOKS_ESCAPED = re.compile(r"\\[\\nrtxuU]")


def harmless(text: str) -> str:
    """A sentence with control and format characters (of terminals, of right-to-left text) as escapes."""
    if text.isprintable():
        return text
    pieces, at = [], 0
    for found in _SHOWN.finditer(text):
        pieces += [_escaped(text[at : found.start()]), found[0]]
        at = found.end()
    return "".join([*pieces, _escaped(text[at:])])


def printable(text: str) -> str:
    """A value or a name as `harmless` shows it; where that might be mistaken, backslashes are doubled."""
    is_plain = "\\" not in text or (text.isprintable() and _LOOKS_ESCAPED.search(text) is None)
    return harmless(text if is_plain else text.replace("\\", "\\\\"))


def _escaped(text: str) -> str:
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def cell(value: object) -> str:
    """The text of a value, printable and at most `CELL_MAX` characters long; a dash if there is none."""
    if value is None:
        return "–"
    # Cut before, since an escape is longer than its character, and after.
    text = printable(str(value)[: CELL_MAX + 1])
    return text if len(text) <= CELL_MAX else text[: CELL_MAX - 1] + "…"


def removals_first(
    rows: Iterable[Row], key: Callable[[Row], object], diff: Callable[[Row], int]
) -> Iterator[Row]:
    """Rows that are sorted by key; of each key, those that went come before those that came."""
    for _, found in groupby(rows, key):
        same = list(found)
        yield from (row for row in same if diff(row) < 0)
        yield from (row for row in same if diff(row) >= 0)


def as_text(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Lines of columns that are set one below the other; the first line is `head`.

    Args:
        head: names of the columns.
        rows: the cells of each row.
    """
    # Imported here: `import tidelake` does not print.
    from rich.cells import cell_len

    lines = [[cell(value) for value in row] for row in [head, *rows]]
    widths = [max(cell_len(line[i]) for line in lines) for i in range(len(head))]

    def padded(line: list[str]) -> str:
        cells = zip(line, widths, strict=True)
        return "  ".join(text + " " * (width - cell_len(text)) for text, width in cells).rstrip()

    return "\n".join(map(padded, lines))


def as_html(
    head: Sequence[str],
    rows: Iterable[Sequence[object]],
    title: str = "",
    note: str = "",
    *,
    is_cut: bool = True,
) -> str:
    """A table for notebooks, with a line of text above and one below; no script, no style of its own.

    Args:
        head: names of the columns.
        rows: the cells of each row.
        title: the line above.
        note: the line below.
        is_cut: whether cells are short, as those of unknown rows must be.
    """
    above = "".join(f"<th>{escape(cell(name))}</th>" for name in head)
    told = cell if is_cut else _whole
    lines = "".join(f"<tr>{''.join(f'<td>{escape(told(v))}</td>' for v in row)}</tr>" for row in rows)
    before = f"<p><b>{escape(harmless(title))}</b></p>" if title else ""
    after = f"<p>{escape(harmless(note))}</p>" if note else ""
    body = (
        f'<table border="1" class="dataframe"><thead><tr>{above}</tr></thead><tbody>{lines}</tbody></table>'
    )
    return f"<div>{before}{body if head else ''}{after}</div>"


def _whole(value: object) -> str:
    return "–" if value is None else printable(str(value))


def number(value: int) -> str:
    """The text of a number, in groups of three digits."""
    return f"{value:,}"


def _is_common(one: Field[Any]) -> bool:
    return one.kw_only is True


class FieldsAsHtml:
    """A dataclass that a notebook shows as a table of its fields; those named `..._ms` are wall clocks."""

    def __repr__(self) -> str:
        # Of a dataclass with repr=False, that is, one with a clock.
        told = (f"{name}={value if _is_clock(name) else repr(value)}" for name, value in self._shown())
        return f"{type(self).__name__}({', '.join(told)})"

    def _repr_html_(self) -> str:
        plain = [(name, number(value) if type(value) is int else value) for name, value in self._shown()]
        return as_html(["field", "value"], plain, title=type(self).__name__, is_cut=False)

    def _shown(self) -> Iterator[tuple[str, Any]]:
        """Names and values. Numbers that answers have in common come last."""
        this: Any = self
        for one in sorted(fields(this), key=_is_common):
            value = getattr(this, one.name)
            yield one.name, shown(value, "ms") if value and _is_clock(one.name) else value


def _is_clock(name: str) -> bool:
    return name.endswith("_ms")
