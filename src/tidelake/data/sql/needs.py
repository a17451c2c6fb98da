"""What a statement needs of each of its tables: some columns, and rows that a condition lets through.

Owns which filters may be applied where a table is read. The engine applies all filters again, so a condition
here may let too many rows through, but never leave out a row that the engine would use.

INVARIANT: the answer of a statement is the same when only this is read of its tables as with whole tables.
A condition is taken only if every engine agrees with `tidelake.data.where` about it: see `_comparable`.
Whatever this module does not know leaves a table whole.
"""

import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from sqlglot import exp

from tidelake.data.sql.statement import Engine, Statement, TableReference
from tidelake.data.where import predicate
from tidelake.errors import UsageError
from tidelake.model.schema import Column, Schema

# Clauses of a SELECT, and properties of a table, with which a filter may be applied before all else.
_SELECT = {
    *("with_", "kind", "hint", "distinct", "expressions", "from_", "joins", "laterals", "where", "group"),
    *("having", "qualify", "windows", "order", "limit", "offset", "sort", "cluster", "distribute"),
}
_TABLE = {"this", "db", "catalog", "alias", "version"}
_INNER = ("", "INNER", "CROSS")
_COMPARISONS: dict[type[exp.Expression], str] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
_WORD = re.compile(r"\w+")
_WHOLE = re.compile(r"\d{1,18}")
_NUMBER = re.compile(r"(\d{1,15})(?:\.(\d{1,15}))?")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_CLOCK = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,6})?")
_ZONE = re.compile(r"[+-]\d\d:\d\d")
_DIGITS_MAX = 38  # of a decimal, in all engines


@dataclass(frozen=True)
class Needs:
    """What is needed of a table.

    Attributes:
        columns: names, in the order of the schema; None: all.
        where: a condition in the SQL of `tidelake.data.where`; None: all rows.
    """

    columns: tuple[str, ...] | None = None
    where: str | None = None


WHOLE = Needs()


def needs_of(statement: Statement, schemas: Mapping[int, Schema]) -> dict[int, Needs]:
    """What the statement needs of those of its tables whose schemas are given.

    Args:
        statement: any.
        schemas: by position in `statement.tables`.
    """
    if "|>" in statement.text:
        # In a pipe the order of clauses matters, and the tree does not show it.
        return dict.fromkeys(schemas, WHOLE)
    used = _Used(statement)
    found = {}
    for index, schema in schemas.items():
        table = statement.tables[index]
        columns = used.columns(table, schema)
        if table.changes is not None:
            # Which changes are updates depends on all rows of a key.
            found[index] = Needs(columns)
            continue
        conditions = [text for node in _conjuncts(table) if (text := _bound(node, table, schema, statement))]
        found[index] = Needs(columns, " AND ".join(conditions) or None)
    return found


class _Used:
    """The columns that a statement names, wherever it does: a name stands for the columns of all tables."""

    def __init__(self, statement: Statement) -> None:
        tree = statement.tree
        # The words of the text as well: what is a function to the parser, such as `user`, may be a column.
        self._names = {word.casefold() for word in _WORD.findall(statement.text)}
        self._names |= {node.name.casefold() for node in tree.find_all(exp.Identifier)}
        self._is_all = any(map(_takes_all, tree.walk()))
        self._whole = {
            node.table.casefold()
            for node in tree.find_all(exp.Column)
            if isinstance(node.this, exp.Star) and node.table
        }
        # `SELECT o FROM orders o` is a row with all columns.
        self._whole |= {n.name.casefold() for n in tree.find_all(exp.Column) if not n.table}
        # Spark can be told to take names in quotes for patterns.
        self._patterns = [
            node.name
            for node in tree.find_all(exp.Identifier)
            if node.args.get("quoted") and not node.name.replace(" ", "_").isidentifier()
        ]
        self._engine = statement.engine

    def columns(self, table: TableReference, schema: Schema) -> tuple[str, ...] | None:
        names = [column.name for column in schema.columns]
        if self._is_all or table.alias.casefold() in self._whole or not _is_plain(table.node):
            return None
        if self._engine == "spark" and any(name not in names for name in self._patterns):
            return None
        found = [name for name in names if name.casefold() in self._names]
        if table.changes is not None:
            found = [c.name for c in schema.columns if c in schema.key or c.name in found]
        return tuple(found or names[:1])


def _is_plain(node: exp.Table) -> bool:
    """Whether a table is only named, with or without an alias: no sample, no pivot, no other columns."""
    alias = node.args.get("alias")
    if alias is not None and alias.args.get("columns"):
        return False
    return all(name in _TABLE or not value for name, value in node.args.items())


def _takes_all(node: exp.Expression) -> bool:
    """Whether a piece of a statement uses columns that it does not name."""
    if isinstance(node, exp.Star):
        parent = node.parent
        return not (isinstance(parent, exp.Count) or (isinstance(parent, exp.Column) and parent.table))
    if isinstance(node, exp.Join):
        return (node.method or "").upper() == "NATURAL"
    return isinstance(node, exp.Columns | exp.Pivot | exp.Command | exp.QueryTransform)


def _conjuncts(table: TableReference) -> Iterator[exp.Expression]:
    """The conditions that all rows of the query must satisfy in which the table stands.

    Nothing if a filter on the table might change anything else: an outer join that adds rows where the
    table has none, a join by position or to the nearest row, a sample.
    """
    source: Any = table.node.parent
    join = source if isinstance(source, exp.Join) else None
    select = None if source is None else source.parent
    if not isinstance(source, exp.From | exp.Join) or not isinstance(select, exp.Select):
        return
    where, joins = select.args.get("where"), select.args.get("joins") or []
    if where is None or not _is_plain(table.node):
        return
    if any(name not in _SELECT and value for name, value in select.args.items()):
        return
    place = -1 if join is None else next(i for i, one in enumerate(joins) if one is join)
    for index, one in enumerate(joins):
        if (one.method or "").upper() not in ("", "NATURAL"):
            return
        side, kind = (one.side or "").upper(), (one.kind or "").upper()
        if index > place and side in ("RIGHT", "FULL"):
            return
        if index == place and (side or kind not in _INNER):
            return
    pending = [where.this]
    while pending:
        node = pending.pop()
        if type(node) is exp.And:
            pending += [node.expression, node.this]
        elif type(node) is exp.Paren and type(node.this) in (exp.And, exp.Paren):
            pending.append(node.this)
        else:
            yield node


def _bound(node: exp.Expression, table: TableReference, schema: Schema, statement: Statement) -> str | None:
    """The condition as a text of `tidelake.data.where`; None if it is not certain to mean the same."""
    select: Any = table.node.parent.parent if table.node.parent is not None else None
    try:
        text = _Writer(table, schema, statement, select).condition(node)
        predicate(text, schema)
    except (_Uncertain, UsageError, RecursionError):
        return None
    return text


class _Uncertain(Exception):  # no error: the condition stays with the engine
    """A condition about which engines may differ."""


class _Writer:
    """Writes conditions on the columns of one table."""

    def __init__(
        self, table: TableReference, schema: Schema, statement: Statement, select: exp.Select
    ) -> None:
        self._alias, self._columns = table.alias.casefold(), schema.columns
        self._engine, self._text = statement.engine, statement.text
        self._is_alone = not select.args.get("joins") and not select.args.get("laterals")
        # DuckDB also takes a name of the SELECT list.
        self._given = {node.alias.casefold() for node in select.expressions if node.alias}

    def condition(self, node: exp.Expression) -> str:
        kind = type(node)
        if kind is exp.Paren:
            return self.condition(node.this)
        if kind is exp.Not:
            return f"(NOT {self.condition(node.this)})"
        if kind in (exp.And, exp.Or):
            word = "AND" if kind is exp.And else "OR"
            return f"({self.condition(node.this)} {word} {self.condition(node.expression)})"
        if kind in _COMPARISONS:
            return self._comparison(node)
        if kind is exp.Between and not node.args.get("symmetric"):
            column = self._column(node.this)
            low, high = (self._literal(node.args[end], column) for end in ("low", "high"))
            return f"({_name(column)} BETWEEN {low} AND {high})"
        if kind is exp.In and not any(v for k, v in node.args.items() if k not in ("this", "expressions")):
            column = self._column(node.this)
            values = ", ".join(self._literal(item, column) for item in node.expressions)
            return f"({_name(column)} IN ({values}))"
        if kind is exp.Is and type(node.expression) is exp.Null:
            return f"({_name(self._column(node.this))} IS NULL)"
        if kind is exp.Like and not node.args.get("negate"):
            column = self._column(node.this)
            return f"({_name(column)} LIKE {self._literal(node.expression, column)})"
        if kind is exp.Column:
            column = self._column(node)
            if column.type.name == "bool":
                return _name(column)
        raise _Uncertain

    def _comparison(self, node: exp.Expression) -> str:
        sign, left, right = _COMPARISONS[type(node)], node.this, node.expression
        if type(left) is exp.Column:
            column = self._column(left)
            return f"({_name(column)} {sign} {self._literal(right, column)})"
        column = self._column(right)
        return f"({self._literal(left, column)} {sign} {_name(column)})"

    def _column(self, node: exp.Expression) -> Column:
        if type(node) is not exp.Column or type(node.this) is not exp.Identifier or node.args.get("db"):
            raise _Uncertain
        name, of = node.name.casefold(), node.table.casefold()
        if of != self._alias and not (not of and self._is_alone and name not in self._given):
            raise _Uncertain
        found = [column for column in self._columns if column.name.casefold() == name]
        if len(found) != 1:
            raise _Uncertain
        return found[0]

    def _literal(self, node: exp.Expression, column: Column) -> str:
        text = _comparable(node, column, self._engine, self._text)
        if text is None:
            raise _Uncertain
        return text


def _name(column: Column) -> str:
    return '"' + column.name.replace('"', '""') + '"'


def _comparable(node: exp.Expression, column: Column, engine: Engine, text: str) -> str | None:
    """A literal in the SQL of `tidelake.data.where`; None if engines might compare it otherwise.

    Numbers are taken only if they are exact in the type of the column, texts only if no escapes can be meant,
    instants only if both the literal and the column have a zone.
    """
    if type(node) is exp.Paren:
        return _comparable(node.this, column, engine, text)
    name = column.type.name
    if type(node) is exp.Boolean:
        return str(node).upper() if name == "bool" else None
    if type(node) is exp.Cast:
        return _instant(node, column, engine)
    sign, number = "", node
    if type(node) is exp.Neg:
        sign, number = "-", node.this
    if type(number) is not exp.Literal:
        return None
    if number.is_string:
        if sign or name != "string" or "\\" in text or (engine == "spark" and '"' in text):
            return None
        return "'" + str(number.this).replace("'", "''") + "'"
    return f"{sign}{number.this}" if exact_number(number.this, column) else None


def exact_number(digits: str, column: Column) -> bool:
    """Whether a number is compared with the values of a column without rounding, in every engine."""
    name, params = column.type.name, column.type.params
    if name.startswith(("int", "uint")):
        return _WHOLE.fullmatch(digits) is not None
    found = _NUMBER.fullmatch(digits)
    if found is None:
        return False
    if name == "float64":
        return Decimal(float(digits)) == Decimal(digits)
    if name == "float32":
        return Decimal(struct.unpack("f", struct.pack("f", float(digits)))[0]) == Decimal(digits)
    if name.startswith("decimal"):
        precision, scale = int(params[0]), int(params[1])
        whole, places = max(precision - scale, len(found[1])), max(scale, len(found[2] or ""))
        return scale >= 0 and whole + places <= _DIGITS_MAX
    return False


def _instant(node: exp.Cast, column: Column, engine: Engine) -> str | None:
    text: Any = node.this
    to, params = node.args["to"].this, column.type.params
    if type(text) is not exp.Literal or not text.is_string:
        return None
    value = str(text.this)
    if to == exp.DataType.Type.DATE and column.type.name == "date32" and _DATE.fullmatch(value):
        return f"DATE '{value}'"
    if column.type.name != "timestamp" or params[0] == "ns":
        return None
    is_zoned = len(params) > 1
    if is_zoned and to == exp.DataType.Type.TIMESTAMPTZ and _ZONE.fullmatch(value[-6:]):
        return f"TIMESTAMP '{value}'" if _CLOCK.fullmatch(value[:-6]) else None
    naive = (exp.DataType.Type.TIMESTAMP, exp.DataType.Type.TIMESTAMPNTZ)
    if engine == "duckdb" and not is_zoned and to in naive and _CLOCK.fullmatch(value):
        return f"TIMESTAMP '{value}'"
    return None
