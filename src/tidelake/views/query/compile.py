"""A query as a plan: the entry of the compiler, and how the clauses of SELECT follow each other.

Owns the order of the clauses, set operations, WITH and LIMIT; must not know the collections that are read but
by their columns.

Any node of the parser, or argument of one, that is not listed is refused; and DuckDB must read the parser's
text as it reads the user's. So a newer parser may cause errors, but never another view.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from sqlglot import exp

from tidelake.errors import UsageError
from tidelake.views.plan import PlanColumn, ViewPlan
from tidelake.views.query.analyzer import Analyzer
from tidelake.views.query.engine import DuckAnalyzer
from tidelake.views.query.frame import Expr, Relation, column
from tidelake.views.query.grouping import Grouping, grouping_sets, has_aggregate
from tidelake.views.query.prune import pruned
from tidelake.views.query.scope import Cte, Query, QueryStage, Surroundings
from tidelake.views.query.sets import casts, combined, type_of_both
from tidelake.views.query.stages import Stages, check_kept, ref
from tidelake.views.query.subqueries import bind, is_query, rebuilt, restrict
from tidelake.views.query.tables import check_arguments, read_from, refuse
from tidelake.views.query.windows import WindowCalls, first_rows

_SELECT = {
    "with_", "expressions", "distinct", "from_", "joins", "laterals", "where", "group", "having", "qualify",
    "windows", "order", "limit", "offset",
}  # fmt: skip
_SET = {"with_", "this", "expression", "distinct"}
_CUT = ("order", "limit", "offset")
_CHARACTERS_MAX = 100_000


def compiled(
    text: str,
    schema_of: Callable[[str], Mapping[str, str] | None],
    analyzer: Callable[[], Analyzer] = DuckAnalyzer,
) -> ViewPlan:
    """The plan of a query; the schema of a collection is None if there is none.

    Raises:
        UsageError: the query is wrong, or a view cannot have a part of it; names the part and what to write.
    """
    if len(text) > _CHARACTERS_MAX:
        raise UsageError(
            f"the query has {len(text):,} characters, more than {_CHARACTERS_MAX:,}: split it into views"
        )
    made = analyzer()
    try:
        return _compiled(text, schema_of, made)
    except RecursionError as error:
        raise UsageError("the query is nested too deeply: split it into views") from error
    finally:
        made.close()


def _compiled(
    text: str, schema_of: Callable[[str], Mapping[str, str] | None], analyzer: Analyzer
) -> ViewPlan:
    node = analyzer.read(text)
    if not is_query(node):
        raise UsageError("a view is a query: write SELECT ...")
    for parameter in node.find_all(exp.Placeholder, exp.Parameter):
        raise refuse(f"the parameter {parameter.sql(analyzer.dialect)}", "write the value in its place")
    ctes = {cte.alias.lower() for cte in node.find_all(exp.CTE)}
    for name in (str(t.name) for t in node.find_all(exp.Table) if not isinstance(t.this, exp.Func)):
        columns = schema_of(name)
        if columns is not None:
            analyzer.define(name, columns)
        elif name.lower() not in ctes:
            raise UsageError(f"the query reads {name!r}, and there is no collection of this name now")
    for one in node.find_all(exp.Identifier):
        if one.name.startswith("#"):
            raise refuse(f"the name {one.name!r}", "give the column or table a name that begins otherwise")
    _check_recursion(node)
    told = analyzer.answered(text)
    analyzer.check_read(text, node)
    compiler = _Compiler(Stages(analyzer), schema_of)
    answer = compiler.query(node, Surroundings())
    return _finished(compiler, answer, told)


def _finished(compiler: "_Compiler", answer: QueryStage, told: Sequence[PlanColumn]) -> ViewPlan:
    """The plan whose last stage has the columns and types that the engine gives the query."""
    stages = compiler.stages
    if len(told) != len(answer.columns):
        title = stages.analyzer.title
        raise UsageError(
            f"{title} finds {len(told)} columns in the query, and Tidelake {len(answer.columns)}"
        )
    twice = {one.name for i, one in enumerate(told) if one.name.lower() in {o.name.lower() for o in told[:i]}}
    if twice:
        raise UsageError(f"the query has two columns {min(twice)!r}: give one another name with AS")
    texts = []
    for name, one in zip(answer.columns, told, strict=True):
        is_ = stages.type_of(answer.stage, name)
        texts.append(ref(name) if is_ == one.type else f"CAST({ref(name)} AS {one.type})")
    last = stages.map(answer.stage, texts)
    plan = pruned(stages, last)
    check_kept(tuple(told), "column")
    return ViewPlan(tuple(plan), tuple(told), tuple(compiler.notes))


def _check_recursion(node: Expr) -> None:
    for cte in node.find_all(exp.CTE):
        if any(table.name.lower() == cte.alias.lower() for table in cte.this.find_all(exp.Table)) and (
            cte.parent.args.get("recursive")
        ):
            raise refuse(f"a recursive query ({cte.alias!r})", "write as many joins as there are levels")


class _Compiler:
    """The stages of a query, and what was decided on the way."""

    def __init__(self, stages: Stages, schema_of: Callable[[str], Mapping[str, str] | None]) -> None:
        self.stages, self.schema_of = stages, schema_of
        self.notes: dict[str, None] = {}

    def query(self, node: Query, env: Surroundings) -> QueryStage:
        """Make the stages of a query."""
        while isinstance(node, exp.Paren | exp.Subquery) and not _has_modifiers(node):
            env = self._with(node, env)
            node = node.this
        if not isinstance(node, exp.Select) and _has_modifiers(node):
            # LIMIT of a set operation is that of a query that selects all of it.
            inner = node.copy()
            cut = {name: inner.args.pop(name, None) for name in _CUT}
            source = exp.From(this=exp.Subquery(this=inner))
            return self.query(exp.Select(expressions=[exp.Star()], from_=source, **cut), env)
        match node:
            case exp.Select():
                check_arguments(node, _SELECT, "a query")
                return _Block(self, self._with(node, env), node).answer()
            case exp.SetOperation():
                check_arguments(node, _SET, "a set operation")
                return self._set(node, self._with(node, env))
            case exp.Values():
                item = read_from(self, env, node, [])
                ids = [one.id for one in item.names]
                return self.finished(item, ids, [one.name for one in item.names])
            case _:
                raise refuse(f"{node.key.upper()} in place of a query", "write SELECT ...")

    def finished(
        self, frame: Relation, ids: Sequence[str], names: Sequence[str], *, single: bool = False
    ) -> QueryStage:
        """An answer whose stage has the columns of the domain, and then those that are asked for."""
        frame.fold()
        texts = [ref(frame.place[id_][1]) for id_ in (*frame.domain.values(), *ids)]
        stage = self.stages.map(frame.inputs[0], texts)
        columns = [one.name for one in self.stages.columns(stage)]
        domain = dict(zip(frame.domain, columns, strict=False))
        return QueryStage(stage, tuple(names), tuple(columns[len(domain) :]), domain, single)

    def _with(self, node: Query, env: Surroundings) -> Surroundings:
        given = node.args.get("with_")
        if given is None:
            return env
        ctes = dict(env.ctes)
        for one in given.expressions:
            names = tuple(str(name.name) for name in one.args["alias"].args.get("columns") or [])
            ctes[one.alias.lower()] = Cte(one.this, names, Surroundings(dict(ctes)))
        return replace(env, ctes=ctes)

    def _set(self, node: Query, env: Surroundings) -> QueryStage:
        left, right = self.query(node.this, env), self.query(node.expression, env)
        if len(left.columns) != len(right.columns):
            raise UsageError(f"{node.key.upper()} has {len(left.columns)} and {len(right.columns)} columns")
        width, stages = len(env.free), self.stages
        types = [
            type_of_both(self.stages, stages.type_of(left.stage, a), stages.type_of(right.stage, b))
            for a, b in zip(left.columns, right.columns, strict=True)
        ]
        one, other = (
            stages.map(side.stage, [*map(ref, side.domain.values()), *casts(self.stages, side, types)])
            for side in (left, right)
        )
        stage = combined(self.stages, node, one, other)
        columns = [c.name for c in stages.columns(stage)]
        domain = dict(zip(env.free, columns, strict=False))
        return QueryStage(stage, left.names, tuple(columns[width:]), domain)

    def note_limit(self) -> None:
        self.notes["LIMIT: where ORDER BY leaves ties, the other columns decide, the first one first"] = None


def _has_modifiers(node: Expr) -> bool:
    return any(node.args.get(name) for name in _CUT)


def limits(node: Query) -> tuple[int, int] | None:
    """LIMIT and OFFSET of a query; None: it has neither, so its order has no meaning.

    Raises:
        UsageError: they are no whole numbers.
    """
    limit, offset = node.args.get("limit"), node.args.get("offset")
    if limit is None and offset is None:
        return None
    if isinstance(limit, exp.Limit | exp.Fetch):
        options = limit.args.get("limit_options")
        if options and (options.args.get("percent") or options.args.get("with_ties")):
            raise refuse("LIMIT in percent, or WITH TIES", "write QUALIFY rank() OVER (ORDER BY ...) <= 10")
    most = 2**62
    if limit is not None:
        most = _whole(limit.args.get("expression") or limit.args.get("count"))
    return most, 0 if offset is None else _whole(offset.expression)


def _is_needless(stages: Stages, stage: int, cut: tuple[int, int], order: Expr | None) -> bool:
    """Whether LIMIT leaves nothing out.

    Raises:
        UsageError: it does, and there is no order that says what.
    """
    rows = stages.rows_most(stage)
    if rows is not None and rows <= cut[0] and not cut[1]:
        return True
    if order is None:
        raise refuse("LIMIT without ORDER BY", "rows have no order; write ORDER BY columns LIMIT ...")
    return False


def _whole(node: Expr) -> int:
    if not isinstance(node, exp.Literal) or not node.is_int:
        raise refuse(f"LIMIT {node.sql('duckdb')}", "write a whole number")
    return int(node.name)


def _is_bare(node: Expr) -> bool:
    """Whether a node is a name without a table."""
    return isinstance(node, exp.Column) and not node.table and not isinstance(node.this, exp.Star)


class _Block:
    """One SELECT, clause by clause."""

    def __init__(self, compiler: _Compiler, env: Surroundings, node: Expr) -> None:
        self._compiler, self._env, self._node = compiler, env, node
        self._aliases: dict[str, Expr] = {}

    def answer(self) -> QueryStage:
        node, compiler, env = self._node, self._compiler, self._env
        given = node.args.get("from_")
        joins = [*(node.args.get("joins") or []), *(node.args.get("laterals") or [])]
        frame = read_from(compiler, env, given.this if given else None, joins)
        items = self._items(frame)
        self._aliases = {name.lower(): value for name, value in items if value is not None}
        if node.args.get("where"):
            restrict(compiler, frame, env, self._expanded(frame, node.args["where"].this))
        outputs = self._chained(frame, items)
        having, qualify = (
            self._expanded(frame, node.args[name].this) if node.args.get(name) else None
            for name in ("having", "qualify")
        )
        order = self._ordered(frame, outputs)
        parts = [
            *outputs,
            *(one.this for one in order),
            *(one for one in (having, qualify) if one is not None),
        ]
        parts = [self._with_windows(one) for one in parts]
        grouped = node.args.get("group") is not None or having is not None or any(map(has_aggregate, parts))
        single = grouped and node.args.get("group") is None and having is None and qualify is None
        if grouped:
            frame, parts = self._grouped(frame, parts, outputs)
        if having is not None:
            at = len(outputs) + len(order)
            restrict(compiler, frame, env, parts.pop(at))
        windows = WindowCalls(compiler, frame, env)
        parts = [windows.lift(one) for one in parts]
        windows.compute()
        if qualify is not None:
            restrict(compiler, frame, env, parts.pop())
        bound = [bind(compiler, frame, env, one) for one in parts]
        ids = frame.fold(bound)
        terms = [
            exp.Ordered(**{**one.args, "this": column(id_)})
            for one, id_ in zip(order, ids[len(outputs) :], strict=True)
        ]
        return self._finished(frame, ids[: len(outputs)], [name for name, _ in items], terms, single=single)

    def _items(self, frame: Relation) -> list[tuple[str, Expr]]:
        """The columns that are selected, by name; `*` is written out."""
        found: list[tuple[str, Expr]] = []
        for one in self._node.expressions:
            star = one.this if isinstance(one, exp.Column) and isinstance(one.this, exp.Star) else one
            if isinstance(star, exp.Star):
                found += self._starred(frame, star, one.table if star is not one else "")
            elif isinstance(one, exp.Alias):
                found.append((str(one.alias), one.this))
            elif isinstance(one, exp.Aliases):
                raise refuse(f"{one.sql('duckdb')!r}", "write one name for each column")
            else:
                name = (
                    one.name
                    if isinstance(one, exp.Column | exp.Dot)
                    else str(one.sql(self._compiler.stages.analyzer.dialect)).lower()
                )
                found.append((str(name), one))
        return found

    def _starred(self, frame: Relation, star: Expr, table: str) -> list[tuple[str, Expr]]:
        check_arguments(star, {"except_", "replace", "rename"}, "*")
        left_out = {str(one.name).lower() for one in star.args.get("except_") or []}
        other = {str(one.alias).lower(): one.this for one in star.args.get("replace") or []}
        called = {str(one.this.name).lower(): str(one.alias) for one in star.args.get("rename") or []}
        found = []
        for one in frame.names:
            name = one.name.lower()
            if (one.table != table.lower() if table else not one.alone) or name in left_out:
                continue
            found.append((called.get(name, one.name), other.get(name, column(one.id))))
        return found

    def _expanded(self, frame: Relation, node: Expr, *, first: bool = False) -> Expr:
        """An expression in which names of selected columns stand for what they name.

        As in ORDER BY, selected columns may come before those of the frame; the engine says whether also
        within an expression.
        """
        if is_query(node):
            return node
        value = self._aliases.get(node.name.lower()) if _is_bare(node) else None
        if value is not None and (first or frame.find("", node.name) is None):
            return node if value == node else exp.Paren(this=self._expanded(frame, value.copy()))
        first = first and (isinstance(node, exp.Paren) or self._compiler.stages.analyzer.orders_by_selected)
        return rebuilt(node, lambda child: self._expanded(frame, child, first=first))

    def _chained(self, frame: Relation, items: Sequence[tuple[str, Expr]]) -> list[Expr]:
        """The selected expressions; each may name those before it."""
        known, self._aliases = self._aliases, {}
        found = []
        for name, value in items:
            found.append(self._expanded(frame, value))
            self._aliases.setdefault(name.lower(), found[-1])
        self._aliases = known
        return found

    def _ordered(self, frame: Relation, outputs: Sequence[Expr]) -> list[Expr]:
        """The terms of ORDER BY, if it has a meaning."""
        node = self._node
        order, distinct = node.args.get("order"), node.args.get("distinct")
        on = distinct is not None and distinct.args.get("on") is not None
        if limits(node) is None and not on:
            return []
        found = []
        for one in order.expressions if order else []:
            inner = one.this
            if isinstance(inner, exp.Literal) and inner.is_int:
                inner = outputs[int(inner.name) - 1]
            elif isinstance(inner, exp.Column | exp.Var | exp.All) and inner.sql().upper() == "ALL":
                found += [exp.Ordered(**{**one.args, "this": output.copy()}) for output in outputs]
                continue
            else:
                inner = self._expanded(frame, inner, first=True)
            found.append(exp.Ordered(**{**one.args, "this": inner}))
        return found

    def _with_windows(self, node: Expr) -> Expr:
        """An expression whose windows are written out, not named."""
        named = {one.name.lower(): one for one in self._node.args.get("windows") or []}

        def changed(one: Expr) -> Expr:
            if is_query(one):
                return one
            if isinstance(one, exp.Window) and one.args.get("alias") is not None:
                known = named.get(str(one.args["alias"].name).lower())
                if known is None:
                    raise UsageError(f"the query has no WINDOW {one.args['alias'].name!r}")
                parts = {**known.args, **{k: v for k, v in one.args.items() if v}, "alias": None}
                return changed(exp.Window(**parts))
            return rebuilt(one, changed)

        return changed(node)

    def _grouped(
        self, frame: Relation, parts: Sequence[Expr], outputs: Sequence[Expr]
    ) -> tuple[Relation, list[Expr]]:
        group = self._node.args.get("group")
        grouping = Grouping(self._compiler, frame, self._env, self._aliases)
        if group is not None and group.args.get("all"):
            given = [one for one in outputs if not has_aggregate(one)]
            sets = [[grouping.add_key(one) for one in given]]
        else:

            def add(one: Expr) -> str:
                if isinstance(one, exp.Literal) and one.is_int:
                    return grouping.add_key(outputs[int(one.name) - 1])
                return grouping.add_key(self._expanded(frame, one))

            sets = grouping_sets(group, add)
        lifted = [grouping.lift(one) for one in parts]
        return grouping.grouped(sets), lifted

    def _finished(
        self,
        frame: Relation,
        ids: Sequence[str],
        names: Sequence[str],
        order: Sequence[Expr],
        *,
        single: bool,
    ) -> QueryStage:
        compiler, node, stages = self._compiler, self._node, self._compiler.stages
        distinct, cut = node.args.get("distinct"), limits(node)
        if distinct is None and cut is None:
            return compiler.finished(frame, ids, names, single=single)
        if distinct is not None and distinct.args.get("on") is not None:
            given = distinct.args["on"]
            given = given.expressions if isinstance(given, exp.Tuple) else [given]
            on = [bind(compiler, frame, self._env, self._expanded(frame, one, first=True)) for one in given]
            keys = [frame.place[id_][1] for id_ in (*frame.domain.values(), *frame.fold(on))]
            if not order:
                raise refuse("DISTINCT ON without ORDER BY", "rows have no order; write ORDER BY")
            text = ", ".join(frame.text(one) for one in order)
            frame.replace(first_rows(stages, frame.inputs[0], list(dict.fromkeys(keys)), text, (1, 0)))
            compiler.note_limit()
        elif distinct is not None:
            if not {one.this.name for one in order} <= set(ids):
                raise refuse("DISTINCT with another ORDER BY", "select what the order is by")
            frame.narrow([*frame.domain.values(), *ids])
            frame.replace(stages.distinct(frame.inputs[0]))
        frame.fold()
        if cut is not None and not cut[0]:
            frame.conditions.append(exp.false())
        elif cut is not None and not _is_needless(stages, frame.inputs[0], cut, node.args.get("order")):
            frame.narrow([*frame.domain.values(), *ids, *(one.this.name for one in order)])
            keys = [frame.place[id_][1] for id_ in frame.domain.values()]
            text = ", ".join(frame.text(one) for one in order)
            frame.replace(first_rows(stages, frame.inputs[0], keys, text, cut))
            compiler.note_limit()
        return compiler.finished(frame, ids, names)
