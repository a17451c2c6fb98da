"""Filters of Arrow, as DuckDB gives them to a dataset, as predicates.

Owns which filters mean the same to Arrow and to `tidelake.data.query.comparing`. The scan applies the filter
itself, so a predicate may let too many rows through, but never too few. The only way to look into an
expression is the form in which Arrow pickles it: its nodes, one after the other, are the metadata of a batch
that has the literals. What is not known here is left out.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidelake.data.query.comparing import Sign, among, compared, null
from tidelake.data.sql.polarsfilter import UNEXPECTED, Unknown, all_known, placed
from tidelake.model.predicate import Predicate, all_of, any_of
from tidelake.model.schema import Column, Schema

_SIGNS: dict[str, Sign] = {
    "equal": "=",
    "not_equal": "<>",
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
}
_JOINS = ("and_kleene", "or_kleene")
_ENTRY = re.compile(r"(call|field_ref|literal|options|end): '(.*)'")


@dataclass(frozen=True)
class _Node:
    """A call, a column or a literal.

    Attributes:
        kind: `call`, `field_ref` or `literal`.
        value: of a literal, or the options of a call.
    """

    kind: str
    name: str = ""
    of: tuple["_Node", ...] = ()
    value: Any = None


@dataclass(frozen=True)
class KnownFilter:
    """What is known of a filter.

    Attributes:
        where: a predicate that is true of all rows that the filter keeps; None: no such one is known.
        columns: names of all columns that the filter looks at; None: not known.
    """

    where: Predicate | None
    columns: frozenset[str] | None


def known(expression: pc.Expression, schema: Schema) -> KnownFilter:
    """What is known of a filter of rows of this schema."""
    try:
        tree = _tree(expression, schema)
    except UNEXPECTED:
        return KnownFilter(None, None)
    columns = {column.name: column for column in schema.columns}
    where = all_known(_conjuncts(tree), lambda node: _predicate(node, columns))
    return KnownFilter(where, frozenset(_names(tree)))


def _tree(expression: pc.Expression, schema: Schema) -> _Node:
    if any("'" in column.name or not column.name.isprintable() for column in schema.columns):
        raise Unknown  # could look like the end of an entry
    _, (pickled,) = expression.__reduce__()
    batch = pa.ipc.open_file(pickled).get_batch(0)
    text = batch.schema.to_string(show_schema_metadata=True, truncate_metadata=False)
    _, _, nodes = text.partition("-- schema metadata --\n")
    entries = [_ENTRY.fullmatch(line) for line in nodes.splitlines()]
    return _node([one.groups() if one else ("", "") for one in entries], batch)


def _node(entries: list[tuple[str, ...]], batch: pa.RecordBatch) -> _Node:
    """The tree of nodes that come before their arguments."""
    open_: list[tuple[str, list[_Node], list[Any]]] = [("", [], [])]
    for kind, name in entries:
        _, of, options = open_[-1]
        if kind == "call":
            open_.append((name, [], []))
        elif kind == "field_ref":
            of.append(_Node(kind, name))
        elif kind == "literal":
            of.append(_Node(kind, value=batch.column(int(name))[0]))
        elif kind == "options":
            options.append(batch.column(int(name))[0])
        elif kind == "end":
            open_.pop()
            open_[-1][1].append(_Node("call", name, tuple(of), options[0] if options else None))
        else:
            raise Unknown
    ((_, (root,), _),) = open_
    return root


def _conjuncts(node: _Node) -> Iterator[_Node]:
    if node.name == "and_kleene" and node.kind == "call":
        for part in node.of:
            yield from _conjuncts(part)
    else:
        yield node


def _names(node: _Node) -> Iterator[str]:
    if node.kind == "field_ref":
        yield node.name
    for part in node.of:
        yield from _names(part)


def _predicate(node: _Node, columns: dict[str, Column], *, negated: bool = False) -> Predicate:
    """What is true where the filter is true, or false with `negated`."""
    if node.kind != "call":
        raise Unknown
    if node.name in _JOINS:
        join = all_of if (node.name == "and_kleene") != negated else any_of
        return join([_predicate(part, columns, negated=negated) for part in node.of])
    if node.name == "invert":
        return _predicate(node.of[0], columns, negated=not negated)
    if node.name == "if_else":
        # As DuckDB writes IN: null where the column is null, as in SQL.
        given, then, other = node.of
        is_same = given.name == "is_valid" and given.of[0] == then.of[0] and then.name == "is_in"
        if not is_same or other.value.is_valid:
            raise Unknown
        return _predicate(then, columns, negated=negated)
    if node.of[0].kind != "field_ref":
        raise Unknown
    column = columns[node.of[0].name]
    if node.name == "is_valid":
        return null(column, negated=not negated)
    if node.name == "is_null":
        # The option is about NaN.
        if node.value["nan_is_null"].as_py():
            raise Unknown
        return null(column, negated=negated)
    if node.name == "is_in":
        values = node.value["value_set"].as_py()
        if not values or None in values:
            raise Unknown
        return among(column, [placed(value, column) for value in values], negated=negated)
    sign, literal = _SIGNS[node.name], node.of[1]
    # A NaN is greater than all numbers here, and neither greater nor less in Arrow.
    if literal.kind != "literal" or (sign in (">", ">=") and column.type.name.startswith("float")):
        raise Unknown
    return compared(column, sign, placed(literal.value.as_py(), column), negated=negated)
