"""A statement of SQL, and the tables that it names.

Owns where tables stand in a text, so that other names can be put there, and the versions that a text asks
for; sqlglot does the parsing. The rest of a text reaches its engine as it was written. Must not know
collections.

INVARIANT: every table that an engine would look up by its name is in `Statement.tables`, except for names
that the statement itself defines in a WITH clause, where these can be seen.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from sqlglot import TokenType, exp, parse, tokenize
from sqlglot.errors import SqlglotError

from tidelake.data.query.where import parse_error
from tidelake.errors import UsageError

Engine: TypeAlias = Literal["spark", "duckdb"]
Kind: TypeAlias = Literal["query", "insert", "update", "delete", "merge", "show tables", "other"]

CHANGES = "table_changes"
_CHARACTERS_MAX = 1_000_000
_SHOWN_MAX = 200
_QUOTES = {"spark": "`", "duckdb": '"'}
_KINDS: tuple[tuple[type[Any], Kind], ...] = (
    (exp.Insert, "insert"),
    (exp.Update, "update"),
    (exp.Delete, "delete"),
    (exp.Merge, "merge"),
    (exp.Values, "query"),
    (exp.Query, "query"),
)
# A value that says a version. A backslash means different things to different engines.
_VALUE = r"(?:(?:TIMESTAMP|DATE)\s*)?'([^'\\]*)'|(-?\d+)"
_VERSION = re.compile(rf"\s+(?:FOR\s+)?(TIMESTAMP|SYSTEM_TIME|VERSION)\s+AS\s+OF\s+(?:{_VALUE})", re.I)
_CHANGES = re.compile(rf"{CHANGES}\s*\(\s*'([^'\\]+)'\s*,\s*(?:{_VALUE})\s*(?:,\s*(?:{_VALUE})\s*)?\)", re.I)
_SAMPLE = re.compile(r"\s+(TABLESAMPLE|USING\s+SAMPLE)\b", re.I)
# What sqlglot reads of other words is a guess, and it warns of it.
_SPACE = r"(?:\s|--[^\n]*(?:\n|$)|/\*(?:[^*]|\*(?!/))*+\*/)*+"
_FIRST = re.compile(rf"(?:{_SPACE}\()*{_SPACE}(\w+)", re.S)
_READ = re.compile(
    r"SELECT|WITH|FROM|VALUES|TABLE|INSERT|UPDATE|DELETE|MERGE|DESC(RIBE)?|SUMMARIZE|(UN)?PIVOT", re.I
)
_EXPLAIN = re.compile(rf"{_SPACE}EXPLAIN(?:\s+ANALYZE)?\b", re.I | re.S)
_SHOW_TABLES = re.compile(rf"{_SPACE}SHOW\s+TABLES{_SPACE};?{_SPACE}", re.I | re.S)
# Behind these a name stands alone, without an alias.
_ALONE = re.compile(r"\b(?:TABLE\s*\(?|DESCRIBE|DESC|SUMMARIZE)\s*$", re.I)


@dataclass(frozen=True)
class VersionClause:
    """The version of a table that a text asks for.

    Attributes:
        kind: `timestamp` or `version`.
        text: the literal: a number, or what stands between the quotes.
    """

    kind: Literal["timestamp", "version"]
    text: str


@dataclass(frozen=True)
class TableReference:
    """A table that a statement names.

    Attributes:
        name: as it was written, without quotes; parts are joined by dots.
        alias: the name by which the statement refers to its columns.
        is_alone: whether it stands where no alias may be, as in `TABLE orders`.
        start, end: the characters of the text to be replaced.
        version: the version asked for; None: none.
        changes: the first and the last time of `table_changes(...)`; the last is None if it is open.
    """

    name: str
    quoted: bool
    alias: str
    is_alone: bool
    start: int
    end: int
    version: VersionClause | None
    changes: tuple[str, str | None] | None
    node: exp.Table = field(repr=False)

    @property
    def has_alias(self) -> bool:
        """Whether the text gives the alias."""
        return self.node.args.get("alias") is not None


@dataclass(frozen=True)
class Statement:
    """One parsed statement.

    Attributes:
        kind: what it does; DESCRIBE, SUMMARIZE and EXPLAIN of DuckDB are queries.
        tables: the tables that it names, in the order of the text.
        tree: sqlglot's tree; None: there is none.
        is_understood: whether the tree says all that the text says.
    """

    text: str
    engine: Engine
    kind: Kind
    tables: tuple[TableReference, ...]
    tree: Any = field(repr=False)
    is_understood: bool = True

    def replaced(self, names: Mapping[int, str], start: int = 0, end: int | None = None) -> str:
        """The text, or a piece of it, with other names for some tables; columns are called as before."""
        pieces, at, end = [], start, len(self.text) if end is None else end
        for index, table in enumerate(self.tables):
            if index in names and start <= table.start and table.end <= end:
                alias = "" if table.has_alias or table.is_alone else f" AS {quoted(table.alias, self.engine)}"
                pieces += [self.text[at : table.start], names[index], alias]
                at = table.end
        return "".join([*pieces, self.text[at:end]])


def quoted(name: str, engine: Engine) -> str:
    """A name in the quotes of an engine."""
    mark = _QUOTES[engine]
    return f"{mark}{name.replace(mark, mark * 2)}{mark}"


def statement(text: str, engine: Engine) -> Statement:
    """Parse one statement."""
    if not isinstance(text, str):
        raise UsageError(f"{text!r} is not the text of a statement")
    if len(text) > _CHARACTERS_MAX:
        raise UsageError(f"the statement has {len(text):,} characters, more than {_CHARACTERS_MAX:,}")
    first = _FIRST.match(text)
    if engine == "duckdb" and _SHOW_TABLES.fullmatch(text):
        return Statement(text, engine, "show tables", (), None)
    explained = _EXPLAIN.match(text) if engine == "duckdb" else None
    if first is not None and _READ.fullmatch(first[1]) is None and explained is None:
        return Statement(text, engine, "other", (), None)
    # In the place of EXPLAIN stand as many spaces, so that all places are those of the text.
    read = text if explained is None else " " * explained.end() + text[explained.end() :]
    try:
        text.encode()
        found = [tree for tree in parse(read, dialect=engine) if tree is not None]
    except UnicodeEncodeError as error:
        raise UsageError(f"the statement is not valid text: {error.reason}") from error
    except SqlglotError as error:
        why = parse_error(error)
        raise UsageError(f"{shown(text)} cannot be parsed as SQL of {engine}: {why}") from error
    except RecursionError as error:
        raise UsageError(f"{shown(text)} is nested too deeply") from error
    if len(found) != 1:
        raise UsageError(f"{shown(text)} has {len(found)} statements: give one")
    tree: Any = found[0]
    kinds: list[Kind] = [kind for type_, kind in _KINDS if isinstance(tree, type_)]
    if engine == "duckdb" and isinstance(tree, exp.Describe | exp.Summarize | exp.Pivot):
        kinds = ["query"]
    if explained is not None and kinds[:1] != ["query"]:
        kinds = []  # nothing is changed by asking how
    nodes = sorted(_tables(tree), key=_start)
    return Statement(
        text,
        engine,
        kinds[0] if kinds else "other",
        tuple(reference(text, node, engine) for node in nodes),
        tree,
    )


def split(text: str, engine: Engine, *, is_all: bool = False) -> list[str] | None:
    """The statements of a text, without semicolons and empty ones; None if more text has to follow."""
    try:
        tokens = tokenize(text, read=engine)
    except SqlglotError:
        return [text.strip()] if is_all else None
    ends = [token.start for token in tokens if token.token_type is TokenType.SEMICOLON]
    if not is_all and (not ends or tokens[-1].start != ends[-1]):
        return None
    found, start = list[str](), 0
    for end in [*ends, len(text)]:
        if any(start <= token.start < end for token in tokens):
            found.append(text[start:end].strip())
        start = end + 1
    return found


def shown(text: str) -> str:
    """The beginning of a text, for messages."""
    return repr(text) if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]!r}..."


def _tables(tree: exp.Expression) -> Iterator[exp.Table]:
    for node in tree.find_all(exp.Table):
        named = isinstance(node.this, exp.Identifier) or is_changes(node)
        if named and node.find_ancestor(exp.Hint) is None and not _is_defined(node):
            yield node


def is_changes(node: exp.Table) -> bool:
    """Whether it is a call of `table_changes`."""
    return isinstance(node.this, exp.Anonymous) and str(node.this.this).casefold() == CHANGES


def _is_defined(node: exp.Table) -> bool:
    """Whether the name is one of a WITH clause that can be seen from here."""
    if len(node.parts) > 1 or not isinstance(node.this, exp.Identifier):
        return False
    name = node.name.casefold()
    child: Any = node
    parent: Any = node.parent
    while parent is not None:
        if isinstance(parent, exp.With):
            seen = list(parent.expressions[: _place(parent.expressions, child)])
            if parent.args.get("recursive"):
                seen.append(child)
        else:
            clause = parent.args.get("with_")
            seen = [] if clause is None or clause is child else clause.expressions
        if any(cte.alias.casefold() == name for cte in seen):
            return True
        child, parent = parent, parent.parent
    return False


def _place(nodes: list[exp.Expression], node: exp.Expression) -> int:
    # Nodes are equal if their texts are.
    return next(i for i, one in enumerate(nodes) if one is node)


def _start(node: exp.Table) -> int:
    first = node.parts[0] if isinstance(node.this, exp.Identifier) else node.this
    return int(first.meta["start"])


def reference(text: str, node: exp.Table, engine: Engine) -> TableReference:
    """A table of a text, at the places that its node says."""
    start = _start(node)
    if isinstance(node.this, exp.Anonymous):
        call = _CHANGES.match(text, start)
        if call is None:
            raise UsageError(
                f"{shown(text[start : start + 60])}: write {CHANGES}('orders', 3, 5), with the name of a "
                "table, the first and the last time; each a number or a text in single quotes"
            )
        first = call[3] if call[2] is None else call[2]
        last = call[5] if call[4] is None else call[4]
        alias = node.alias or CHANGES
        return TableReference(call[1], True, alias, False, start, call.end(), None, (first, last), node)
    parts = [part for part in node.parts if isinstance(part, exp.Identifier)]
    name, end = ".".join(part.name for part in parts), int(parts[-1].meta["end"]) + 1
    version = None
    if node.args.get("when") is not None:
        raise UsageError(f"table {name!r}: write FOR TIMESTAMP AS OF '...' or FOR VERSION AS OF 3, not AT")
    if node.args.get("version") is not None:
        clause = _VERSION.match(text, end)
        if clause is None:
            raise UsageError(
                f"table {name!r}: its version must be a literal, such as FOR TIMESTAMP AS OF "
                "'2026-11-01 12:00:00Z' or FOR VERSION AS OF 3"
            )
        kind: Literal["timestamp", "version"] = "version" if clause[1].lower() == "version" else "timestamp"
        version = VersionClause(kind, clause[2] if clause[2] is not None else clause[3])
        end = clause.end()
    if node.args.get("alias") is None and _SAMPLE.match(text, end) and engine == "spark":
        raise UsageError(f"table {name!r}: give it an alias behind TABLESAMPLE (...)")
    is_quoted = any(part.args.get("quoted") for part in parts)
    is_alone = _ALONE.search(text, 0, start) is not None
    return TableReference(
        name, is_quoted, node.alias or parts[-1].name, is_alone, start, end, version, None, node
    )
