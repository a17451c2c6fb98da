"""What a statement needs of each of its tables: some columns, and rows that a condition lets through.

Owns which filters may be applied where a table is read. The engine applies all filters again, so a condition
here may let too many rows through, but never leave out a row that the engine would use.

INVARIANT: the answer of a statement is the same when only this is read of its tables as with whole tables.
A condition is taken only if every engine agrees with `tidelake.data.query.where` about it: see `_comparable`.
Whatever this module does not know leaves a table whole.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from tidelake.data.query.literal import exact_number
from tidelake.data.query.where import predicate
from tidelake.data.sql.statement import Engine, Statement, TableReference, is_changes
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
# Pieces of a statement that use the columns that stand in them, and no others.
_KNOWN = (
    *(exp.Select, exp.SetOperation, exp.Subquery, exp.With, exp.CTE, exp.Values, exp.From, exp.Lateral),
    *(exp.Where, exp.Group, exp.Cube, exp.Rollup, exp.GroupingSets, exp.Having, exp.Qualify, exp.Distinct),
    *(exp.Order, exp.Ordered, exp.Sort, exp.Cluster, exp.Limit, exp.Offset, exp.Window, exp.WindowSpec),
    *(exp.Filter, exp.WithinGroup, exp.IgnoreNulls, exp.RespectNulls, exp.Hint, exp.JoinHint, exp.Version),
    *(exp.Column, exp.Identifier, exp.Alias, exp.Aliases, exp.Dot, exp.Bracket, exp.Slice, exp.Tuple),
    *(exp.Literal, exp.Boolean, exp.Null, exp.Placeholder, exp.Parameter, exp.Var, exp.Interval),
    *(exp.IntervalSpan, exp.DataType, exp.DataTypeParam, exp.ColumnDef, exp.Paren, exp.Binary, exp.Unary),
    *(exp.Between, exp.In, exp.Any, exp.Escape, exp.AtTimeZone, exp.Func, exp.Lambda, exp.JSONPath),
    *(exp.JSONPathPart, exp.Merge, exp.Whens, exp.When, exp.Insert, exp.Update, exp.Delete, exp.Schema),
)
_WORD = re.compile(r"\w+")
_PLAIN = re.compile(r"[A-Za-z0-9_]+")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_CLOCK = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,6})?")
_ZONE = re.compile(r"[+-]\d\d:\d\d")


@dataclass(frozen=True)
class Needs:
    """What is needed of a table.

    Attributes:
        columns: names, in the order of the schema; None: all.
        where: a condition in the SQL of `tidelake.data.query.where`; None: all rows.
    """

    columns: tuple[str, ...] | None = None
    where: str | None = None


WHOLE = Needs()


def needs_of(statement: Statement, schemas: Mapping[int, Schema]) -> dict[int, Needs]:
    """What the statement needs of those of its tables whose schemas are given."""
    if (
        not statement.is_understood
        or "|>" in statement.text
        or (statement.engine == "spark" and "${" in statement.text)
    ):
        # In a pipe the order of clauses matters, and the tree does not show it. For `${name}` Spark puts a
        # setting into the text, which may be anything.
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
    """The columns that a statement may use: those whose names stand in its text.

    A name stands for the columns of all tables, since a column that is not read would be taken from a table
    outside. So a text is narrowed only if every piece of it is known to name the columns that it uses.
    """

    def __init__(self, statement: Statement) -> None:
        tree, text = statement.tree, statement.text
        self._is_all = not all(map(_names_its_columns, tree.walk()))
        # The words of the text: what is a function to the parser, such as `user`, may be a column.
        self._names = {_folded(word) for word in _WORD.findall(text)}
        # `SELECT o FROM orders o` is a row with all columns, as `o.*` is.
        columns = tree.find_all(exp.Column)
        self._whole = {_folded(n.table if isinstance(n.this, exp.Star) else n.name) for n in columns}
        # Spark can be told to take names in quotes for patterns.
        self._patterns = [
            node.name
            for node in tree.find_all(exp.Identifier)
            if node.args.get("quoted") and not node.name.replace(" ", "_").isidentifier()
        ]
        self._engine = statement.engine

    def columns(self, table: TableReference, schema: Schema) -> tuple[str, ...] | None:
        names = [column.name for column in schema.columns]
        if self._is_all or _folded(table.alias) in self._whole or not _is_plain(table.node):
            return None
        if self._engine == "spark" and any(name not in names for name in self._patterns):
            return None
        # Names of other characters may be written in many ways.
        found = [name for name in names if _folded(name) in self._names or not _PLAIN.fullmatch(name)]
        if table.changes is not None:
            found = [c.name for c in schema.columns if c in schema.key or c.name in found]
        return tuple(found or names[:1])


def _folded(name: str) -> str:
    """A name without its case, for every engine: names that any of them takes for one are equal."""
    return name.upper().replace("\u0130", "I").casefold()


def _is_plain(node: exp.Table) -> bool:
    """Whether a table is only named, with or without an alias: no sample, no pivot, no other columns."""
    alias = node.args.get("alias")
    if alias is not None and alias.args.get("columns"):
        return False
    return all(name in _TABLE or not value for name, value in node.args.items())


def _names_its_columns(node: exp.Expression) -> bool:
    """Whether a piece of a statement is known to use no columns but those that it names."""
    parent = node.parent
    if isinstance(node, exp.Star):
        is_of_one = isinstance(parent, exp.Column) and bool(parent.table)
        return is_of_one or (isinstance(parent, exp.Count) and not any(node.args.values()))
    if isinstance(node, exp.Table):
        # INSERT INTO t TABLE d
        is_query = isinstance(parent, exp.Insert) and node.arg_key != "this"
        return not is_query and (isinstance(node.this, exp.Identifier) or is_changes(node))
    if isinstance(node, exp.Anonymous | exp.AnonymousAggFunc):
        # A function that may choose columns, such as IDENTIFIER('name'), or that is not known.
        return (isinstance(parent, exp.Table) and is_changes(parent)) or bool(node.find_ancestor(exp.Hint))
    if isinstance(node, exp.Join):
        return (node.method or "").upper() in ("", "ASOF")
    if isinstance(node, exp.TableAlias):
        # Other names for columns that a sub-query does not name.
        is_query = isinstance(parent, exp.Subquery) and isinstance(parent.this, exp.Query | exp.Values)
        return not node.args.get("columns") or is_query or isinstance(parent, exp.CTE | exp.UDTF)
    return isinstance(node, _KNOWN) and not isinstance(node, exp.Columns | exp.DynamicIdentifier)


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
    """The condition as a text of `tidelake.data.query.where`; None if it is not certain to mean the same."""
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
        self._alias, self._columns = _folded(table.alias), schema.columns
        self._engine, self._text = statement.engine, statement.text
        self._is_alone = not select.args.get("joins") and not select.args.get("laterals")
        # DuckDB also takes a name of the SELECT list.
        self._given = {_folded(node.alias) for node in select.expressions if node.alias}

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
        name, of = _folded(node.name), _folded(node.table)
        if of != self._alias and not (not of and self._is_alone and name not in self._given):
            raise _Uncertain
        found = [column for column in self._columns if _folded(column.name) == name]
        # Spark can be told that case matters, and then this may be a column of another table.
        if len(found) != 1 or (self._engine == "spark" and found[0].name != node.name):
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
    """A literal in the SQL of `tidelake.data.query.where`; None if engines might compare it otherwise.

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
