"""Statements that change a table: INSERT, UPDATE, DELETE and MERGE, cut into their clauses.

Owns where clauses begin and end, and which columns they name; what is between stays as it was written. Pure:
texts in, places out. The grammar is Spark's, for DuckDB too: one text means the same to both.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlglot import TokenType, exp, tokenize

from tidelake.data.sql.statement import Statement, shown
from tidelake.errors import UsageError
from tidelake.model.schema import Schema

_TEXTS = (TokenType.STRING, TokenType.IDENTIFIER)
_QUERY = re.compile(r"\s*(\(|(SELECT|WITH|VALUES|FROM|TABLE)\b)", re.I)
_NOT_IN_INSERT = {"alternative": "OR", "conflict": "ON CONFLICT", "returning": "RETURNING"}
_OPEN, _SHUT = ("(", "[", "{"), (")", "]", "}")
# Of one row they make none or several, or a value that depends on other rows.
_OF_SEVERAL = (exp.Window, exp.AggFunc, exp.Explode, exp.Unnest)


@dataclass(frozen=True)
class TextSpan:
    """Characters `start` to just before `end` of a statement."""

    start: int
    end: int


@dataclass(frozen=True)
class Insertion:
    """INSERT INTO target.

    Attributes:
        target: position of the table in `Statement.tables`.
        columns: the names that the statement gives; None: all, in order.
        by_name: whether the columns of the query are taken by their names.
    """

    target: int
    columns: tuple[str, ...] | None
    by_name: bool
    before: TextSpan
    query: TextSpan


@dataclass(frozen=True)
class Action:
    """What happens to some rows.

    Attributes:
        kind: `update`, `delete` or `insert`.
        matched: of MERGE: to rows of the target that the source matches, or to rows of the source that
            match none.
        condition: which rows; None: all.
        columns: the columns that get a value; None: all columns of the source, by name.
        values: a value for each of `columns`.
    """

    kind: Literal["update", "delete", "insert"]
    matched: bool
    condition: TextSpan | None
    columns: tuple[str, ...] | None = ()
    values: tuple[TextSpan, ...] = ()


@dataclass(frozen=True)
class RowChange:
    """UPDATE, DELETE or MERGE.

    Attributes:
        target: position of the table in `Statement.tables`.
        actions: in the order of the text: the first that applies to a row is done.
        source: of MERGE: the table after USING, with its alias.
    """

    target: int
    actions: tuple[Action, ...]
    source: TextSpan | None = None
    on: TextSpan | None = None


def insertion(statement: Statement) -> Insertion:
    """The parts of an INSERT."""
    tree, text = statement.tree, statement.text
    if tree.args.get("overwrite"):
        raise UsageError(f"{shown(text)}: INSERT OVERWRITE replaces the contents: use {_replace(statement)}")
    odd = next((word for name, word in _NOT_IN_INSERT.items() if tree.args.get(name)), None)
    if odd is not None:
        raise UsageError(f"{shown(text)}: INSERT takes no {odd}: use MERGE INTO ... USING")
    target = target_of(statement)
    end, words = statement.tables[target].end, _Words(statement, target)
    columns = None
    if isinstance(tree.this, exp.Schema):
        columns = tuple(node.name for node in tree.this.expressions)
        end = words.closing(end)
    elif statement.tables[target].has_alias:
        raise UsageError(f"{shown(text)}: the table of an INSERT has no alias")
    by_name = bool(tree.args.get("by_name"))
    if by_name:
        end = words.after("NAME", end)
    if _QUERY.match(text, end) is None:
        raise UsageError(f"{shown(text)}: write INSERT INTO table [(columns)] query, or ... BY NAME query")
    return Insertion(
        target, columns, by_name, TextSpan(0, words.start_of("INSERT", 0)), TextSpan(end, words.end)
    )


def change(statement: Statement) -> RowChange:
    """The parts of an UPDATE, a DELETE or a MERGE. Errors as for `insertion`."""
    if statement.tree.args.get("with_"):
        raise UsageError(f"{shown(statement.text)}: put the WITH clause into a sub-query")
    for node in statement.tree.find_all(*_OF_SEVERAL):
        if node.find_ancestor(exp.Select) is None:
            what = shown(node.sql(dialect=statement.engine))
            raise UsageError(f"{what} is no value of one row: put it into a sub-query with a SELECT")
    target = target_of(statement)
    words = _Words(statement, target)
    begin = statement.tables[target].end
    if statement.kind == "merge":
        return _merge(statement, words, target, begin)
    if any(statement.tree.args.get(name) for name in ("from_", "using", "order", "limit", "returning")):
        raise UsageError(f"{shown(statement.text)}: rows of another table are joined by MERGE INTO ... USING")
    where = words.find("WHERE", begin)
    condition = None if where is None else TextSpan(words.after("WHERE", begin), words.end)
    if statement.kind == "delete":
        return RowChange(target, (Action("delete", True, condition),))
    last = words.end if where is None else where
    columns, values = words.assignments(TextSpan(words.after("SET", begin), last))
    return RowChange(target, (Action("update", True, condition, columns, values),))


def places(there: Sequence[str], names: Sequence[str], of: str, same: Callable[[str], str]) -> list[int]:
    """The places of columns by their names, which may differ in case."""
    found: list[int] = []
    for name in names:
        fits = [i for i, one in enumerate(there) if one == name]
        fits = fits or [i for i, one in enumerate(there) if same(one) == same(name)]
        if len(fits) != 1:
            raise UsageError(
                f"collection {of!r} has no one column {name!r}: there are {', '.join(map(repr, there))}"
            )
        if fits[0] in found:
            raise UsageError(f"column {name!r} gets two values")
        found.append(fits[0])
    return found


def in_order(schema: Schema, names: Sequence[str]) -> bool:
    """Whether values go by their places: the order is the declared one, or the names say the same."""
    ids = [column.id for column in schema.columns]
    return ids == sorted(ids) or [n.casefold() for n in names] == [c.name.casefold() for c in schema.columns]


def _replace(statement: Statement) -> str:
    return "ts.replace(collection, frame)" if statement.engine == "spark" else "collection.replace(table)"


def target_of(statement: Statement) -> int:
    """The position of the table that is changed. Errors as for `insertion`."""
    node = statement.tree.this
    node = node.this if isinstance(node, exp.Schema) else node
    for index, table in enumerate(statement.tables):
        if table.node is node:
            if table.version is not None or table.changes is not None:
                raise UsageError(f"table {table.name!r}: only the newest contents can be changed")
            return index
    raise UsageError(f"{shown(statement.text)}: its table is no collection")


def _merge(statement: Statement, words: "_Words", target: int, begin: int) -> RowChange:
    if statement.tree.args.get("returning"):
        raise UsageError(f"{shown(statement.text)}: MERGE takes no RETURNING: read the rows afterwards")
    source = words.after("USING", begin)
    on = words.find("ON", source)
    starts = words.all("WHEN", source)
    if on is None or not starts or on > starts[0]:
        raise UsageError(f"{shown(statement.text)}: write MERGE INTO t USING s ON ... WHEN ... THEN ...")
    spans = [TextSpan(a, b) for a, b in zip(starts, [*starts[1:], words.end], strict=True)]
    actions = tuple(words.action(span) for span in spans)
    return RowChange(target, actions, TextSpan(source, on), TextSpan(words.after("ON", on), starts[0]))


class _Words:
    """The words of a statement that stand in no brackets, text or CASE, and where they are."""

    def __init__(self, statement: Statement, target: int) -> None:
        self._statement = statement
        self._alias = statement.tables[target].alias.casefold()
        self._all: list[Any] = list(tokenize(statement.text, read=statement.engine))
        while self._all and self._all[-1].text == ";":
            self._all.pop()
        self.end = self._all[-1].end + 1
        self._outer = list(self._outside(self._all))

    @staticmethod
    def _outside(tokens: Sequence[Any]) -> Iterator[Any]:
        depth = cases = 0
        before = ""
        for token in tokens:
            word = "" if token.token_type in _TEXTS else token.text.upper()
            if word in _SHUT:
                depth -= 1
            if before != ".":
                cases += (word == "CASE") - (word == "END" and cases > 0)
            if not depth and not cases and word and before != ".":
                yield token
            if word in _OPEN:
                depth += 1
            before = word

    def all(self, word: str, start: int) -> list[int]:
        """Where a word stands, from a place on."""
        return [t.start for t in self._outer if t.start >= start and t.text.upper() == word]

    def find(self, word: str, start: int, end: int | None = None) -> int | None:
        """Where a word stands first, from a place on and before another one."""
        found = self.all(word, start)
        return found[0] if found and (end is None or found[0] < end) else None

    def start_of(self, word: str, start: int) -> int:
        """As `find`, of a word that must be there."""
        found = self.find(word, start)
        if found is None:
            raise UsageError(f"{shown(self._statement.text)}: {word} is missing")
        return found

    def after(self, word: str, start: int) -> int:
        """Just past a word that must be there."""
        return self.start_of(word, start) + len(word)

    def closing(self, start: int) -> int:
        """Just past the brackets that open first, from a place on."""
        depth = 0
        for token in self._all:
            if token.start >= start and token.token_type not in _TEXTS:
                depth += (token.text in _OPEN) - (token.text in _SHUT)
                if token.text in _SHUT and not depth:
                    return int(token.end) + 1
        raise UsageError(f"{shown(self._statement.text)}: a bracket is not closed")

    def pieces(self, span: TextSpan) -> list[TextSpan]:
        """What stands between the commas of a span."""
        inside = [t for t in self._all if span.start <= t.start < span.end]
        commas = [t.start for t in self._outside(inside) if t.text == ","]
        starts, ends = [span.start, *(at + 1 for at in commas)], [*commas, span.end]
        return [TextSpan(a, b) for a, b in zip(starts, ends, strict=True)]

    def assignments(self, span: TextSpan) -> tuple[tuple[str, ...] | None, tuple[TextSpan, ...]]:
        """The columns and values of `a = 1, b = 2`; no columns of `*`."""
        if self._statement.text[span.start : span.end].strip() == "*":
            return None, ()
        columns: list[str] = []
        values: list[TextSpan] = []
        for piece in self.pieces(span):
            inside = [t for t in self._all if piece.start <= t.start < piece.end]
            sign = next((i for i, t in enumerate(inside) if t.token_type is TokenType.EQ), 0)
            names = [t.text for t in inside[:sign] if t.text != "."]
            if not names or len(names) > 2 or (len(names) == 2 and names[0].casefold() != self._alias):
                raise UsageError(
                    f"{shown(self._statement.text[piece.start : piece.end].strip())} is no assignment: "
                    "write SET column = value; a field of a struct is changed with its whole struct"
                )
            columns.append(names[-1])
            values.append(TextSpan(int(inside[sign].end) + 1, piece.end))
        return tuple(columns), tuple(values)

    def action(self, span: TextSpan) -> Action:
        """A WHEN clause of MERGE."""
        text = self._statement.text
        then = self.find("THEN", span.start, span.end)
        if then is None:
            raise UsageError(f"{shown(text[span.start : span.end])}: THEN is missing")
        head = [t for t in self._outer if span.start <= t.start < then]
        words = [t.text.upper() for t in head]
        if words[:5] == ["WHEN", "NOT", "MATCHED", "BY", "SOURCE"]:
            instead = _replace(self._statement)
            raise UsageError(
                f"WHEN NOT MATCHED BY SOURCE is not supported: use {instead}, if the source has all rows, or "
                "a DELETE whose WHERE asks NOT EXISTS (...)"
            )
        matched = words[1] == "MATCHED"
        conjunction = self.find("AND", span.start, then)
        condition = None if conjunction is None else TextSpan(conjunction + 3, then)
        body = TextSpan(then + 4, span.end)
        what = text[body.start : body.end].split(None, 1)[0].upper().rstrip("(")
        if matched and what == "DELETE":
            return Action("delete", True, condition)
        if matched and what == "UPDATE":
            columns, values = self.assignments(TextSpan(self.after("SET", body.start), body.end))
            return Action("update", True, condition, columns, values)
        if not matched and what == "INSERT":
            return self._insert(body, condition)
        raise UsageError(
            f"{shown(text[span.start : span.end].strip())}: a matched row is updated or deleted, another one "
            "inserted"
        )

    def _insert(self, body: TextSpan, condition: TextSpan | None) -> Action:
        start = self.after("INSERT", body.start)
        values = self.find("VALUES", start, body.end)
        if values is None:
            if self._statement.text[start : body.end].strip() != "*":
                raise UsageError("write INSERT * or INSERT (columns) VALUES (values)")
            return Action("insert", False, condition, None)
        listed = TextSpan(*self._inside(start))
        names = [self._name(one) for one in self.pieces(listed)]
        given = self.pieces(TextSpan(*self._inside(values)))
        if listed.end > values or len(names) != len(given):
            raise UsageError("INSERT (columns) VALUES (values): give one value for each column")
        return Action("insert", False, condition, tuple(names), tuple(given))

    def _name(self, span: TextSpan) -> str:
        """The one name of a piece, or the last of two of which the first is the target."""
        found = [t.text for t in self._all if span.start <= t.start < span.end and t.text != "."]
        if not found or len(found) > 2 or (len(found) == 2 and found[0].casefold() != self._alias):
            wrong = shown(self._statement.text[span.start : span.end].strip())
            raise UsageError(f"{wrong} is no name of a column, as INSERT (columns) takes them")
        return str(found[-1])

    def _inside(self, start: int) -> tuple[int, int]:
        opening = next(int(t.start) for t in self._all if t.start >= start and t.text == "(")
        return opening + 1, self.closing(opening) - 1
