"""SQL conditions bound to a schema: text in, `Predicate` out.

Owns the SQL that is understood, and the messages about all other SQL; sqlglot does the parsing. Must not know
rows. Invariant: the predicate is true of a row iff SQL's result is true, neither false nor NULL.

Any node of the parser, or argument of one, that is not listed here is refused. So a newer parser may cause
errors, but never other rows.
"""

import math
import re
from collections.abc import Callable, Iterator
from decimal import Decimal, InvalidOperation
from typing import Any, ClassVar

from sqlglot import Dialect, exp, parse_one, tokens
from sqlglot.errors import SqlglotError

from tidelake.data.query.comparing import (
    COMPARISONS_MAX,
    FLIPPED,
    Sign,
    among,
    compared,
    is_too_long,
    null,
    starting,
)
from tidelake.data.query.literal import Day, Double, Place, Value, day, place
from tidelake.errors import UsageError
from tidelake.model.instants import Moment, moment
from tidelake.model.predicate import FALSE, TRUE, Predicate, all_of, any_of, comparisons
from tidelake.model.schema import Column, Schema

_SUPPORTED = (
    "supported are columns compared with literals (= <> < <= > >=), IN, BETWEEN, IS NULL, LIKE with a prefix "
    "such as 'abc%', AND, OR, NOT, and the literals 1, 1.5, 'text', TRUE, FALSE, X'00FF', DATE '2024-01-31', "
    "TIMESTAMP '2024-01-31 12:00:00', DOUBLE 'NaN'"
)
_SIGNS: dict[type[exp.Expression], Sign] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
# Reading a text costs time and memory in proportion to its length.
_CHARACTERS_MAX = 2_000_000
_PIECE = re.compile(r"Required keyword: '\w+' missing for <class '[\w.]*'>")
_SHOWN_MAX = 200
_FLOATS = {"nan": math.nan, "inf": math.inf, "infinity": math.inf, "-inf": -math.inf, "-infinity": -math.inf}


class _Sql(Dialect):
    """SQL in which nothing means different things to different engines: see docs/guide.md."""

    class Tokenizer(tokens.Tokenizer):
        """Names in double quotes or backticks; in texts only a doubled quote is special."""

        IDENTIFIERS: ClassVar = ['"', "`"]
        STRING_ESCAPES: ClassVar = ["'"]
        HEX_STRINGS: ClassVar = [("x'", "'"), ("X'", "'")]


def predicate(sql: str, schema: Schema) -> Predicate:
    """Bind a condition to the schema that the read uses.

    A condition has at most 2,000,000 characters, and at most 10,000 comparisons after those of one column are
    joined: `id IN (...)` and `id = 1 OR id = 2` count as one each.
    """
    if len(sql) > _CHARACTERS_MAX:
        raise UsageError(
            f"where has {len(sql):,} characters, more than {_CHARACTERS_MAX:,}: read in several parts, or "
            "look keys up with keys=..."
        )
    try:
        sql.encode()
        tree: Any = parse_one(sql, dialect=_Sql, into=exp.Condition)
        bound = _Binder(schema).bound(tree, negated=False)
    except UnicodeEncodeError as error:
        raise UsageError(f"where={_cut(sql)} is not valid text: {error.reason}") from error
    except SqlglotError as error:
        raise UsageError(f"where={_cut(sql)} cannot be parsed: {parse_error(error)}; {_SUPPORTED}") from error
    except RecursionError as error:
        raise UsageError("where=... is nested too deeply: write IN for many values of one column") from error
    if is_too_long(bound):
        raise UsageError(
            f"where makes {comparisons(bound):,} comparisons of several columns, more than "
            f"{COMPARISONS_MAX:,}: write IN for many values of one column, look keys up with keys=..., or "
            "read in several parts"
        )
    return bound


def parse_error(error: SqlglotError) -> str:
    """What is wrong with a text, and where, in few words."""
    found: list[dict[str, object]] = getattr(error, "errors", [])
    what = "; ".join(f"{e['description']} in line {e['line']}, column {e['col']}" for e in found)
    return _short(_PIECE.sub("a piece is missing", what or str(error)))


def _cut(text: str) -> str:
    return repr(text) if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]!r}..."


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}..."


class _Binder:
    """Binds a parsed condition; with `negated` the predicate is true where the condition is false."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    def bound(self, node: exp.Expression, *, negated: bool) -> Predicate:
        """What is true of a row iff SQL says that the node is true, or false with `negated`."""
        kind = type(node)
        if kind in (exp.Paren, exp.Not):
            _only(node, "this")
            return self.bound(node.this, negated=negated != (kind is exp.Not))
        if kind in (exp.And, exp.Or):
            join = all_of if (kind is exp.And) != negated else any_of
            return join([self.bound(part, negated=negated) for part in _operands(node)])
        if kind is exp.Boolean:
            return FALSE if node.this == negated else TRUE
        if kind is exp.Null:
            return FALSE
        if kind is exp.Column:
            return self._flag(node, negated)
        if kind in _SIGNS:
            return self._comparison(node, negated)
        of: dict[type[exp.Expression], Callable[[exp.Expression, bool], Predicate]] = {
            exp.In: self._in,
            exp.Between: self._between,
            exp.Is: self._is,
            exp.Like: self._like,
            exp.Escape: self._escape,
        }
        if kind in of:
            return of[kind](node, negated)
        raise _unsupported(node)

    def _flag(self, node: exp.Expression, negated: bool) -> Predicate:
        column = self._column(node)
        if column.type.name != "bool":
            raise UsageError(
                f"where: column {column.name!r} is a {column.type}, not a bool: compare it with a literal"
            )
        return among(column, [_placed(not negated, column, node)])

    def _comparison(self, node: exp.Expression, negated: bool) -> Predicate:
        _only(node, "this", "expression")
        sign, left, right = _SIGNS[type(node)], _bare(node.this), _bare(node.expression)
        if type(left) is not exp.Column:
            sign, left, right = FLIPPED[sign], right, left
        if type(left) is not exp.Column:
            raise _unsupported(node)
        column, value = self._column(left), _literal(right)
        if value is None:
            return FALSE
        return compared(column, sign, _placed(value, column, right), negated=negated)

    def _in(self, node: exp.Expression, negated: bool) -> Predicate:
        _only(node, "this", "expressions")
        items = [_bare(item) for item in node.expressions]
        if not items:
            raise _unsupported(node)
        column, values = self._column(_bare(node.this)), [(_literal(item), item) for item in items]
        if negated and any(value is None for value, _ in values):
            # Never true: one of the values is unknown.
            return FALSE
        places = [_placed(value, column, item) for value, item in values if value is not None]
        return among(column, places, negated=negated)

    def _between(self, node: exp.Expression, negated: bool) -> Predicate:
        _only(node, "this", "low", "high")
        low = exp.GTE(this=node.this, expression=node.args["low"])
        high = exp.LTE(this=node.this, expression=node.args["high"])
        join = any_of if negated else all_of
        return join([self._comparison(part, negated) for part in (low, high)])

    def _is(self, node: exp.Expression, negated: bool) -> Predicate:
        _only(node, "this", "expression")
        if type(node.expression) is not exp.Null:
            raise _unsupported(node)
        return null(self._column(_bare(node.this)), negated=negated)

    def _escape(self, node: exp.Expression, negated: bool) -> Predicate:
        _only(node, "this", "expression")
        escape = _bare(node.expression)
        if type(node.this) is not exp.Like or type(escape) is not exp.Literal or len(escape.this) != 1:
            raise _unsupported(node)
        return self._like(node.this, negated, escape.this)

    def _like(self, node: exp.Expression, negated: bool, escape: str = "") -> Predicate:
        _only(node, "this", "expression", "negate")
        negated = negated != bool(node.args.get("negate"))
        column, pattern = self._column(_bare(node.this)), _bare(node.expression)
        if type(pattern) is exp.Null:
            return FALSE
        if type(pattern) is not exp.Literal or not pattern.is_string:
            raise _unsupported(node)
        if column.type.name != "string":
            raise UsageError(f"where: column {column.name!r} is a {column.type}, and LIKE takes a string")
        prefix, open_ = _pattern(pattern.this, escape)
        if not open_:
            return among(column, [_placed(prefix, column, node)], negated=negated)
        return starting(column, prefix, negated=negated)

    def _column(self, node: exp.Expression) -> Column:
        if type(node) is not exp.Column or type(node.this) is not exp.Identifier:
            raise _unsupported(node)
        _only(node, "this")
        name, columns = node.this.name, self._schema.columns
        same = [c for c in columns if c.name == name]
        # As in every SQL engine, unless two names differ only in case.
        found = same or [c for c in columns if c.name.casefold() == name.casefold()]
        if len(found) == 1:
            return found[0]
        names = ", ".join(repr(c.name) for c in columns)
        if found:
            raise UsageError(f"where: {_cut(name)} could be several columns: there are {names}")
        if node.this.args.get("quoted"):
            names += "; a text stands in single quotes"
        elif name.startswith("_"):
            names += "; where says nothing of times and _diff"
        raise UsageError(f"where: no column named {_cut(name)}: there are {names}")


def _operands(node: exp.Expression) -> Iterator[exp.Expression]:
    """The operands of a chain of one operator, in order, however long it is."""
    kind, left = type(node), [node]
    while left:
        part = left.pop()
        if type(part) is kind:
            _only(part, "this", "expression")
            left += [part.expression, part.this]
        else:
            yield part


def _bare(node: exp.Expression) -> exp.Expression:
    while type(node) is exp.Paren:
        _only(node, "this")
        node = node.this
    return node


def _placed(value: Value, column: Column, node: exp.Expression) -> Place:
    found = place(value, column)
    if found is None:
        raise UsageError(
            f"where: column {column.name!r} is a {column.type}: it cannot be compared with {_shown(node)}"
            f"{_remedy(value, column)}"
        )
    return found


def _remedy(value: Value, column: Column) -> str:
    name = column.type.name
    if name == "timestamp" and isinstance(value, Day | Moment | str):
        zone = "+00:00" if len(column.type.params) > 1 else ""
        return f"; write TIMESTAMP '2024-01-31 12:00:00{zone}', {'with' if zone else 'without'} a zone"
    if name in ("date32", "date64"):
        return "; write DATE '2024-01-31'"
    if name == "string":
        return "; write a text in single quotes"
    if name == "bool":
        return "; write TRUE or FALSE"
    if name in ("binary", "fixed_size_binary"):
        return "; write X'00FF'"
    if name.startswith(("int", "uint", "float", "decimal")):
        return "; write a number"
    return "; it can only be compared with NULL, by IS NULL"


def _literal(node: exp.Expression) -> Value | None:
    """The value of a literal; None for NULL."""
    kind = type(node)
    if kind is exp.Paren:
        return _literal(_bare(node))
    if kind is exp.Null:
        return None
    if kind is exp.Boolean:
        return bool(node.this)
    if kind is exp.Literal:
        return str(node.this) if node.is_string else _decimal(node)
    if kind is exp.Neg:
        _only(node, "this")
        value = _literal(node.this)
        if isinstance(value, Decimal):
            return value.copy_negate()
    if kind is exp.HexString:
        _only(node, "this")
        return _bytes(node)
    if kind is exp.Cast:
        _only(node, "this", "to")
        return _cast(node)
    if kind is exp.Column:
        raise UsageError(f"where: {_shown(node)} is a column where a literal is expected; {_SUPPORTED}")
    raise _unsupported(node)


def _decimal(node: exp.Expression) -> Decimal:
    try:
        value = Decimal(node.this)
    except InvalidOperation as error:
        raise _unsupported(node) from error
    if not value.is_finite():
        raise _unsupported(node)
    return value


def _bytes(node: exp.Expression) -> bytes:
    try:
        return bytes.fromhex(node.this)
    except ValueError as error:
        raise _unsupported(node) from error


def _cast(node: exp.Expression) -> Value:
    """The value of a text with a type before it."""
    text, to = _bare(node.this), node.args["to"]
    if type(text) is not exp.Literal or not text.is_string or to.expressions:
        raise _unsupported(node)
    value: Value | None = None
    if to.this == exp.DataType.Type.DATE:
        value = day(text.this)
    elif to.this in _CLOCKS:
        value = moment(text.this)
    elif to.this == exp.DataType.Type.DOUBLE:
        value = _double(text.this.strip())
    else:
        raise _unsupported(node)
    if value is None:
        raise UsageError(f"where: {_cut(text.this)} is no {to.this.value.lower()}; {_SUPPORTED}")
    return value


_CLOCKS = (exp.DataType.Type.TIMESTAMP, exp.DataType.Type.TIMESTAMPTZ)


def _double(text: str) -> Double | None:
    if text.lower() in _FLOATS:
        return Double(_FLOATS[text.lower()])
    try:
        value = float(text)
    except ValueError:
        return None
    return Double(value) if math.isfinite(value) else None


def _pattern(pattern: str, escape: str) -> tuple[str, bool]:
    """The text that a LIKE pattern begins with, and whether anything may follow it."""
    if "\\" in pattern and escape != "\\":
        raise UsageError(
            f"where: engines differ about the \\ in LIKE {_cut(pattern)}: write the pattern with "
            "ESCAPE '!', say"
        )
    prefix: list[str] = []
    i = 0
    while i < len(pattern):
        char = pattern[i]
        if char == escape and i + 1 < len(pattern):
            prefix.append(pattern[i + 1])
            i += 2
        elif char not in ("%", "_", escape):
            prefix.append(char)
            i += 1
        elif set(pattern[i:]) == {"%"}:
            return "".join(prefix), True
        else:
            raise UsageError(
                f"where: LIKE {_cut(pattern)} is not a prefix such as 'abc%': a _ or % before the end is "
                "matched as itself with LIKE 'a!_b%' ESCAPE '!'"
            )
    return "".join(prefix), False


def _only(node: exp.Expression, *names: str) -> None:
    """Refuse a node with any argument except these."""
    if any(value not in (None, False, []) for name, value in node.args.items() if name not in names):
        raise _unsupported(node)


def _unsupported(node: exp.Expression) -> UsageError:
    return UsageError(f"where: {_shown(node)} is not supported here; {_SUPPORTED}")


def _shown(node: exp.Expression) -> str:
    return f"`{node.sql(dialect=_Sql, comments=False)[:80]}`"
