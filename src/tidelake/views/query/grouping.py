"""Aggregates: GROUP BY with all its forms, and what is computed for each group.

Owns which aggregates are sums, which need the rows of a group, and how both are put together; must not know
windows.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations, product
from typing import Any

from sqlglot import exp

from tidelake.errors import UsageError
from tidelake.views.functions import GIVEN_ORDER, HOLISTIC, LINEAR, OWN_ORDER, REPEATS_DO_NOT_MATTER
from tidelake.views.query.frame import Expr, Relation, column, id_of, new_id
from tidelake.views.query.groups import Aggregate, GroupingSet, with_domain
from tidelake.views.query.scope import Compiler, Surroundings
from tidelake.views.query.stages import ref
from tidelake.views.query.subqueries import bind, has_query, is_query, rebuilt
from tidelake.views.query.tables import refuse

_HEAD = re.compile(r"([A-Za-z_]\w*)\s*\(")
_ALL = Aggregate("count", None, False, None, "")


def function_name(node: Expr) -> str:
    """What DuckDB calls the function of a node, in lower case; empty: it is none."""
    if isinstance(node, exp.Anonymous):
        return str(node.name).lower()
    if not isinstance(node, exp.Func) or isinstance(node, exp.And | exp.Or | exp.Case | exp.Cast):
        return ""
    match = _HEAD.match(node.sql("duckdb"))
    return match[1].lower() if match else ""


def is_aggregate(node: Expr) -> bool:
    """Whether a node is a call of an aggregate, with its FILTER or without."""
    if isinstance(node, exp.Filter | exp.WithinGroup):
        return is_aggregate(node.this)
    return function_name(node) in LINEAR | HOLISTIC


def has_aggregate(node: Expr) -> bool:
    """Whether an expression has an aggregate that is not of a window or of a sub-query."""
    if is_query(node):
        return False
    if isinstance(node, exp.Window):
        return any(has_aggregate(one) for one in _window_parts(node))
    return is_aggregate(node) or any(has_aggregate(one) for one in node.iter_expressions())


def _window_parts(node: Expr) -> list[Expr]:
    function = node.this
    while isinstance(function, exp.Filter | exp.IgnoreNulls | exp.RespectNulls):
        function = function.this
    parts = [*function.iter_expressions(), *(node.args.get("partition_by") or [])]
    return [*parts, node.args["order"]] if node.args.get("order") else parts


@dataclass
class Grouping:
    """The aggregates of a query as they are found, and its keys, by their texts over ids.

    The `aliases` are selected expressions, which HAVING may mean. `bits` has, by the positions of keys that
    GROUPING asks for, the id of its result.
    """

    compiler: Compiler
    frame: Relation
    env: Surroundings
    aliases: Mapping[str, Expr]
    keys: dict[str, str] = field(default_factory=dict)
    calls: dict[str, tuple[str, Expr]] = field(default_factory=dict)
    bits: dict[tuple[int, ...], str] = field(default_factory=dict)
    _arguments: dict[str, str] = field(default_factory=dict)

    @property
    def _dialect(self) -> Any:
        return self.compiler.stages.analyzer.dialect

    def lift(self, node: Expr) -> Expr:
        """An expression in which keys and aggregates are columns of the groups."""
        if is_query(node) or id_of(node):
            return node
        if is_aggregate(node):
            bound = bind(self.compiler, self.frame, self.env, node)
            text = bound.sql(self._dialect)
            if text not in self.calls:
                self.calls[text] = (new_id(), bound)
            return column(self.calls[text][0])
        if isinstance(node, exp.Grouping) or function_name(node) in ("grouping", "grouping_id"):
            at = tuple(self._key(one) for one in node.expressions) or tuple(range(len(self.keys)))
            return column(self.bits.setdefault(at, new_id()))
        if isinstance(node, exp.Window):
            return self._window(node)
        if (key := self._key_text(node)) in self.keys:
            return column(self.keys[key])
        if isinstance(node, exp.Column) and not node.table and node.name.lower() in self.aliases:
            return self.lift(self.aliases[node.name.lower()])
        return rebuilt(node, self.lift)

    def _window(self, node: Expr) -> Expr:
        """A window over groups: its function is none of theirs, but the arguments may be."""

        def inner(one: Expr) -> Expr:
            if isinstance(one, exp.Filter | exp.IgnoreNulls | exp.RespectNulls):
                return rebuilt(one, lambda child: inner(child) if child is one.this else self.lift(child))
            return rebuilt(one, self.lift)

        return rebuilt(node, lambda child: inner(child) if child is node.this else self._part(child))

    def _part(self, child: Expr) -> Expr:
        return child if isinstance(child, exp.WindowSpec | exp.Identifier) else self.lift(child)

    def _key_text(self, node: Expr) -> str:
        """The text over ids of an expression without aggregates; empty: it is no key."""
        if has_query(node) or has_aggregate(node) or any(node.find_all(exp.Window)):
            return ""
        if isinstance(node, exp.Ordered | exp.Order | exp.Where | exp.Distinct | exp.Star | exp.Identifier):
            return ""
        try:
            return str(_bare(bind(self.compiler, self.frame, self.env, node)).sql(self._dialect))
        except UsageError:
            return ""

    def _key(self, node: Expr) -> int:
        text = self._key_text(node)
        if text not in self.keys:
            raise UsageError(f"GROUPING names {node.sql('duckdb')!r}, which is no key of GROUP BY")
        return list(self.keys).index(text)

    def add_key(self, node: Expr) -> str:
        """Group by an expression as well; returns its text."""
        if has_query(node):
            raise refuse("a sub-query in GROUP BY", "compute it in a query in FROM")
        bound = _bare(bind(self.compiler, self.frame, self.env, node))
        text = str(bound.sql(self._dialect))
        if text not in self.keys:
            self.keys[text] = self.frame.fold([bound])[0]
        return text

    def grouped(self, sets: Sequence[Sequence[str]]) -> Relation:
        """The groups as a relation, by the keys of each grouping set, as texts."""
        frame, stages = self.frame, self.compiler.stages
        for _, bound in self.calls.values():
            self._parsed(bound)
        # All columns lie in one stage now, and keep their names.
        frame.fold()
        calls = [self._parsed(bound) for _, bound in self.calls.values()]
        where = {id_: name for id_, (_, name) in frame.place.items()}
        domain = list(dict.fromkeys(frame.domain.values()))
        outer = [where[id_] for id_ in domain]
        made = []
        for keys in sets:
            own = list(dict.fromkeys(where[self.keys[text]] for text in keys))
            some = not own and len(sets) > 1 and not stages.analyzer.has_group_of_nothing
            stage = self._groups(frame.inputs[0], outer, own, [*calls, _ALL] if some else calls)
            names = [one.name for one in stages.columns(stage)]
            there = f"{ref(names.pop())} > 0" if some else None
            at = dict(zip(own, names[len(outer) :], strict=False))
            texts = [ref(name) for name in names[: len(outer)]]
            for text, id_ in self.keys.items():
                type_ = stages.type_of(frame.inputs[0], where[id_])
                texts.append(ref(at[where[id_]]) if text in keys else f"CAST(NULL AS {type_})")
            texts += [ref(name) for name in names[len(outer) + len(own) :]]
            for asked in self.bits:
                texts.append(self._bits(asked, keys))
            made.append(stages.map(stage, texts, there))
        whole = stages.union(made)
        after = Relation(stages, [whole], domain=frame.domain)
        results = [id_ for id_, _ in self.calls.values()]
        kept = [*domain, *self.keys.values(), *results, *self.bits.values()]
        # Two keys may be one column.
        for id_, one in zip(kept, stages.columns(whole)[: len(kept)], strict=True):
            after.place[id_] = (0, one.name)
        grouped = set(self.keys.values())
        after.names = [one for one in frame.names if one.id in grouped]
        return after

    def _bits(self, asked: Sequence[int], keys: Sequence[str]) -> str:
        number = 0
        for at in asked:
            number = number * 2 + (list(self.keys)[at] not in keys)
        return f"CAST({number} AS BIGINT)"

    def _parsed(self, node: Expr) -> Aggregate:
        where = None
        if isinstance(node, exp.Filter):
            condition = node.expression.this
            where, node = self._column(exp.Cast(this=condition, to=exp.DataType.build("BOOLEAN"))), node.this
        if isinstance(node, exp.WithinGroup):
            raise refuse("WITHIN GROUP", "write the column as an argument, as quantile_cont(x, 0.5)")
        name = function_name(node)
        given = list(node.iter_expressions())
        first = given[0] if given else None
        order = isinstance(first, exp.Order)
        if order:
            first = given[0].this
        distinct = isinstance(first, exp.Distinct)
        if isinstance(first, exp.Distinct):
            first = first.expressions[0] if len(first.expressions) == 1 else None
        starred = first is None or isinstance(first, exp.Star)
        if name in LINEAR and not starred and len(given) == 1:
            return Aggregate(name, self._column(first), distinct, where, "")
        if name in LINEAR and starred and not distinct:
            return Aggregate(name, None, False, where, "")
        # Arguments that are computed become columns, so the text names columns only.
        self.frame.fold()
        text = ordered_text(self.frame, name, node, order=order)
        single = name in REPEATS_DO_NOT_MATTER and len(given) == 1 and not order
        return Aggregate(name, None, distinct, where, text, single)

    def _column(self, node: Expr) -> str:
        text = str(node.sql(self._dialect))
        if text not in self._arguments:
            self._arguments[text] = self.frame.fold([node])[0]
        return self.frame.place[self._arguments[text]][1]

    def _groups(self, stage: int, outer: list[str], keys: list[str], calls: Sequence[Aggregate]) -> int:
        """A stage with the columns of the domain, the keys, and a column for each call."""
        whole = not keys
        if whole and outer and self.env.stage is not None:
            stage, outer, calls = with_domain(self.compiler.stages, stage, outer, calls, self.env.stage)
        mark = f"c{len(self.compiler.stages.columns(stage)) - 1}" if whole and outer else None
        return GroupingSet(self.compiler.stages, stage, [*outer, *keys], mark).made(calls)


def ordered_text(frame: Relation, name: str, node: Expr, *, order: bool) -> str:
    """The text of a call over one stage that shows no other order of rows than that of its arguments.

    `order` says whether it has ORDER BY.
    """
    node = node.copy()
    if name in GIVEN_ORDER:
        found, shown = node.find(exp.Order), "string_agg" if name == "listagg" else name
        if not order or found is None:
            raise UsageError(
                f"{shown}() in a view needs an order, as rows have none: write {shown}(x ORDER BY x), "
                f"or min(x) if any value will do"
            )
        item = found.this
        item = item.expressions[0] if isinstance(item, exp.Distinct) else item
        found.append("expressions", exp.Ordered(this=item.copy(), nulls_first=False))
    text = frame.text(node)
    if name in OWN_ORDER and not order:
        arguments = [] if isinstance(node, exp.Anonymous) else [node.this, node.args.get("expression")]
        arguments += node.expressions
        told = [frame.text(one) for one in arguments if isinstance(one, exp.Expr)]
        text = f"{text[:-1]} ORDER BY {', '.join(told)})"
    return text


def _bare(node: Any) -> Any:
    while isinstance(node, exp.Paren):
        node = node.this
    return node


def grouping_sets(group: Expr | None, add: Any) -> list[list[str]]:
    """The keys of each grouping set, by the text that `add` gives for an expression."""
    if group is None:
        return [[]]
    parts: list[list[list[str]]] = []

    def listed(node: Expr) -> list[str]:
        if isinstance(node, exp.Tuple):
            return [add(one) for one in node.expressions]
        return [add(node.this if isinstance(node, exp.Paren) else node)]

    def sets(node: Expr) -> list[list[str]]:
        match node:
            case exp.Rollup():
                keys = [listed(one) for one in node.expressions]
                return [[*chain(*keys[:n])] for n in range(len(keys), -1, -1)]
            case exp.Cube():
                keys = [listed(one) for one in node.expressions]
                return [
                    [*chain(*chosen)] for n in range(len(keys), -1, -1) for chosen in combinations(keys, n)
                ]
            case exp.GroupingSets():
                return [one for inner in node.expressions for one in sets(inner)]
            case _:
                return [listed(node)]

    behind = [node for name in ("rollup", "cube", "grouping_sets") for node in group.args.get(name) or []]
    if behind:
        # Spark's GROUP BY a, b WITH ROLLUP, or GROUP BY a, b GROUPING SETS (...): the keys are no set.
        (node,) = behind
        for one in group.expressions:
            listed(one)
        if not node.expressions:
            return sets(type(node)(expressions=group.expressions))
        return [list(dict.fromkeys(one)) for one in sets(node)]
    for node in group.expressions:
        parts.append(sets(node))
    return [list(dict.fromkeys(chain(*chosen))) for chosen in product(*parts)]
