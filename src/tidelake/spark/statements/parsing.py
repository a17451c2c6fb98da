"""Statements as Spark's own parser reads them.

Owns which names of a text are tables where sqlglot does not know all of Spark's SQL: `TABLE orders`,
`IDENTIFIER('orders')`, `GROUP BY window(...)`. Spark's parser says where tables stand; what is between stays
as it was written. Without it (Spark Connect, Spark before 4.1) a text is what sqlglot reads.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from pyspark.errors import ParseException
from pyspark.sql import SparkSession
from sqlglot import exp
from sqlglot.errors import SqlglotError

from tidelake.data.sql.statement import CHANGES, Kind, Statement, TableReference, reference, statement
from tidelake.errors import UsageError
from tidelake.spark.installed import VERSION
from tidelake.spark.tasks import remote

_CHANGING: dict[str, tuple[Kind, type[exp.Expr]]] = {
    "UpdateTable": ("update", exp.Update),
    "DeleteFromTable": ("delete", exp.Delete),
    "MergeIntoTable": ("merge", exp.Merge),
}
_INSERT = "InsertIntoStatement"


@dataclass(frozen=True)
class _Node:
    """A node of Spark's plan.

    Attributes:
        kind: the name of its class.
        plan: the node.
        above: those above it, the nearest last.
        is_table: whether it is a name that Spark would look up.
    """

    kind: str
    plan: Any
    above: tuple[Any, ...]
    is_table: bool


def parsed(spark: SparkSession, text: str) -> Statement:
    """Parse a statement of Spark's SQL."""
    try:
        ours: Statement | UsageError = statement(text, "spark")
    except UsageError as error:
        if not isinstance(error.__cause__, SqlglotError):
            raise
        ours = error
    # For `${name}` Spark puts a setting into the text, so that its places are others.
    if remote(spark) or VERSION < (4, 1) or "${" in str(text):
        return _known(ours)
    if isinstance(ours, Statement) and ours.tree is None:
        return ours  # of another kind
    try:
        plan: Any = spark._jsparkSession.sessionState().sqlParser().parsePlan(text)
    except ParseException:
        return _known(ours)
    nodes = list(_nodes(plan, frozenset()))
    theirs = [_table(text, one) for one in nodes if one.is_table]
    inserts = [one.plan for one in nodes if one.kind == _INSERT]
    if isinstance(ours, Statement) and ours.kind in ("query", "insert", "update", "delete", "merge"):
        target = ours.tree.this if ours.kind == "insert" else None
        target = target.this if isinstance(target, exp.Schema) else target
        here = {one.start: one for one in ours.tables if one.node is not target}
        if set(here) == {one.start for one in theirs}:
            return ours
        kept = [one for one in ours.tables if one.node is target]
        return _joined(ours, kept, [here.get(one.start, one) for one in theirs])
    if nodes[0].kind in _CHANGING:
        return _change(text, nodes[0], theirs) or _known(ours)
    if any(one.kind in _CHANGING for one in nodes) or len(inserts) > 1:
        return _known(ours)
    if not inserts:
        return _joined(Statement(text, "spark", "query", (), None), [], theirs)
    # sqlglot reads all but the query.
    end = int(inserts[0].origin().stopIndex().get()) + 1
    head = statement(f"{text[:end]} SELECT 1", "spark")
    if head.kind != "insert":
        return _known(ours)
    begun = [one for one in head.tables if one.start < end]
    starts = {one.start for one in begun}
    return _joined(replace(head, text=text), begun, [one for one in theirs if one.start not in starts])


def _change(text: str, top: _Node, tables: list[TableReference]) -> Statement | None:
    """An UPDATE, a DELETE or a MERGE, of which the tree says what table is changed; None: it does more."""
    kind, made = _CHANGING[top.kind]
    plan, more = top.plan, {}
    if kind == "merge":
        if plan.withSchemaEvolution():
            return None
        more = {"using": exp.Table(this=exp.to_identifier(_alias(plan.sourceTable()))), "on": exp.Null()}
    target = plan.targetTable() if kind == "merge" else plan.table()
    while str(target.getClass().getSimpleName()) == "SubqueryAlias":
        target = target.child()
    start = int(target.origin().startIndex().get())
    found = [one.node for one in tables if one.start == start]
    if not found:
        return None
    return _joined(Statement(text, "spark", kind, (), made(this=found[0], **more)), [], tables)


def _alias(plan: Any) -> str:
    """The name of a table after USING."""
    kind = str(plan.getClass().getSimpleName())
    if kind == "SubqueryAlias":
        return str(plan.identifier().name())
    return str(_listed(plan.multipartIdentifier())[-1]) if kind == "UnresolvedRelation" else ""


def _known(ours: Statement | UsageError) -> Statement:
    if isinstance(ours, UsageError):
        raise ours
    return ours


def _joined(base: Statement, some: list[TableReference], others: list[TableReference]) -> Statement:
    """A statement of which sqlglot does not know all: its tables are read whole."""
    tables = sorted([*some, *others], key=lambda one: one.start)
    return replace(base, tables=tuple(tables), is_understood=False)


def _nodes(plan: Any, defined: frozenset[str], above: tuple[Any, ...] = ()) -> Iterator[_Node]:
    """The nodes of a plan; names that a WITH clause defines are no tables where they can be seen."""
    kind = str(plan.getClass().getSimpleName())
    is_table = False
    if kind == "UnresolvedRelation":
        parts = _listed(plan.multipartIdentifier())
        is_table = len(parts) > 1 or parts[0].casefold() not in defined
    elif kind == "UnresolvedTableValuedFunction":
        is_table = [part.casefold() for part in _listed(plan.name())] == [CHANGES]
    yield _Node(kind, plan, above, is_table)
    inner = _listed(plan.innerChildren())
    if kind == "UnresolvedWith":
        for one in inner:
            name = str(one.identifier().name()).casefold()
            yield from _nodes(one, defined | {name} if plan.allowRecursion() else defined, (*above, plan))
            defined |= {name}
        inner = []
    if kind == "RelationTimeTravel":
        inner = [plan.relation()]  # which is no child
    for one in [*_listed(plan.children()), *inner]:
        yield from _nodes(one, defined, (*above, plan))


def _table(text: str, node: _Node) -> TableReference:
    origin = node.plan.origin()
    start, end = int(origin.startIndex().get()), int(origin.stopIndex().get())
    near = [str(one.getClass().getSimpleName()) for one in node.above]
    version = None
    if near and near[-1] == "RelationTimeTravel":
        near, version = near[:-1], exp.Version(this="VERSION", kind="AS OF", expression=exp.Null())
    while near and near[-1] == "Sample":
        near = near[:-1]
    alias = None
    if near and near[-1] == "SubqueryAlias":
        alias = exp.TableAlias(this=exp.to_identifier(str(node.above[len(near) - 1].identifier().name())))
    if node.kind != "UnresolvedRelation":
        called = exp.Anonymous(this=CHANGES)
        called.meta["start"] = start
        return reference(text, exp.Table(this=called, alias=alias), "spark")
    is_quoted = "`" in text[start : end + 1]
    parts = [exp.to_identifier(part, quoted=is_quoted) for part in _listed(node.plan.multipartIdentifier())]
    parts[0].meta["start"], parts[-1].meta["end"] = start, end
    names = dict(zip(("this", "db", "catalog"), reversed(parts), strict=False))
    return reference(text, exp.Table(**names, alias=alias, version=version), "spark")


def _listed(found: Any) -> list[Any]:
    """A sequence of Scala."""
    return [found.apply(i) for i in range(found.size())]
