"""Sub-queries: in expressions, as conditions, and beside a table.

Owns decorrelation: every sub-query becomes a join with its answer for each row of its domain. Must not know
FROM.
"""

from collections.abc import Callable, Sequence

from sqlglot import exp

from tidelake.errors import UsageError
from tidelake.views.plan import Call, Equal, LinearSum
from tidelake.views.query.frame import Expr, JoinParts, Relation, column, conjuncts, new_id, same
from tidelake.views.query.scope import Compiler, Free, Query, QueryStage, Surroundings, resolve
from tidelake.views.query.stages import of_group, ref
from tidelake.views.query.texts import references, replaced

_COMPARISONS = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE)
_NEGATED = {
    exp.EQ: exp.NEQ,
    exp.NEQ: exp.EQ,
    exp.LT: exp.GTE,
    exp.GTE: exp.LT,
    exp.GT: exp.LTE,
    exp.LTE: exp.GT,
}
_TWO_ROWS = "a sub-query that is used as a value has more than one row"


def is_query(node: object) -> bool:
    """Whether a node is a query, in parentheses or not."""
    while isinstance(node, exp.Subquery | exp.Paren):
        node = node.this
    return isinstance(node, exp.Select | exp.SetOperation | exp.Values)


def has_query(node: Expr) -> bool:
    """Whether a query is part of an expression."""
    return any(is_query(one) for one in node.find_all(exp.Select, exp.SetOperation))


def bind(compiler: Compiler, frame: Relation, env: Surroundings, node: Expr) -> Expr:
    """An expression over ids. A sub-query in it is joined to the frame, and becomes a column of that.

    Raises:
        UsageError: a name or a kind of expression is not understood.
    """
    match node:
        case exp.Column() if str(node.name).startswith("#"):
            return node.copy()
        case exp.Column() if not isinstance(node.this, exp.Star):
            return resolve(frame, env, node)
        case exp.Exists():
            return column(_existence(compiler, frame, env, node.this))
        case exp.In() if node.args.get("query") is not None:
            return column(_membership_value(compiler, frame, env, node))
        case exp.EQ() | exp.NEQ() | exp.LT() | exp.LTE() | exp.GT() | exp.GTE() if _quantified(node):
            return column(_membership_value(compiler, frame, env, node))
        case exp.Subquery() | exp.Select() | exp.SetOperation() if is_query(node):
            return column(_scalar(compiler, frame, env, node))
        case exp.Window():
            raise UsageError(f"the window {node.sql('duckdb')!r} stands where SQL allows none")
        case exp.Comprehension():
            raise UsageError(
                f"a view cannot have {node.sql('duckdb')!r}: write list_filter and list_transform"
            )
        case exp.Columns():
            raise UsageError(f"a view cannot have {node.sql('duckdb')!r}: name the columns")
        case exp.Dot() if isinstance(node.expression, exp.Func):
            raise UsageError(
                f"a view cannot have {node.sql('duckdb')!r}: write the function around its argument"
            )
        case exp.Collate():
            raise UsageError("COLLATE cannot be in a view, as equal texts differ under it: write lower(x)")
        case _:
            return rebuilt(node, lambda child: bind(compiler, frame, env, child))


def rebuilt(node: Expr, change: Callable[[Expr], Expr]) -> Expr:
    """A node with other children."""

    def changed(value: object) -> object:
        if isinstance(value, exp.Expr):
            return change(value)
        return [changed(one) for one in value] if isinstance(value, list) else value

    made = type(node)(**{name: changed(value) for name, value in node.args.items()})
    if node.type is not None:
        made.type = node.type
    return made


def restrict(compiler: Compiler, frame: Relation, env: Surroundings, condition: Expr) -> None:
    """Keep the rows for which a condition is true. Those of its parts that have a sub-query come last."""
    parts = list(conjuncts(condition))
    for part in sorted(parts, key=has_query):
        negated, inner = _stripped(part)
        if isinstance(inner, exp.Exists):
            _keep_existing(compiler, frame, env, inner.this, negated=negated)
        elif _membership(inner):
            matched, _, rest = _members(compiler, frame, env, inner)
            frame.replace(rest() if negated else matched())
        else:
            # A sub-query in it may fold the frame, which begins a new list.
            bound = bind(compiler, frame, env, part)
            frame.conditions.append(bound)


def _stripped(node: Expr) -> tuple[bool, Expr]:
    negated = False
    while isinstance(node, exp.Not | exp.Paren):
        negated ^= isinstance(node, exp.Not)
        node = node.this
    return negated, node


def _quantified(node: Expr) -> bool:
    return isinstance(node, _COMPARISONS) and any(
        isinstance(side, exp.Any | exp.All) and is_query(side.this) for side in (node.this, node.expression)
    )


def _membership(node: Expr) -> bool:
    return (isinstance(node, exp.In) and node.args.get("query") is not None) or _quantified(node)


def correlated(compiler: Compiler, frame: Relation, env: Surroundings, query: Query) -> QueryStage:
    """The answer of a query for each row of its domain, which is what it uses of the frame."""
    free: list[str] = []
    while True:
        stage = None
        if free:
            frame.fold()
            stage = frame.distinct(free)
        inner = Surroundings(env.ctes, frame, env, tuple(free), stage, object())
        try:
            return compiler.query(query, inner)
        except Free as found:
            if found.attempt is not inner.attempt:
                raise
            free.append(found.id)


def link(frame: Relation, answer: QueryStage) -> tuple[list[str], list[Expr]]:
    """Take an answer in as an input.

    Returns the ids of its columns, and the conditions that hold between its domain and the frame.
    """
    names = [one.name for one in frame.stages.columns(answer.stage)]
    by_name = dict(zip(names, frame.add(answer.stage), strict=True))
    conditions = [same(outer, by_name[name]) for outer, name in answer.domain.items()]
    return [by_name[name] for name in answer.columns], conditions


def _attached(frame: Relation, answer: QueryStage) -> str:
    """Join an answer with one column that has one row for each row of its domain."""
    found, conditions = link(frame, answer)
    frame.conditions += conditions
    return found[0]


def _marked(frame: Relation, answer: QueryStage, inner: Sequence[str], domain: int | None) -> int:
    """The rows of an answer, with TRUE behind them, and each row of its domain, with FALSE."""
    stages = frame.stages
    keys = list(answer.domain.values())
    rows = stages.map(answer.stage, [*map(ref, keys), *map(ref, inner), "TRUE"])
    if not keys or domain is None:
        return rows
    types = [stages.type_of(answer.stage, name) for name in inner]
    names = [ref(one.name) for one in stages.columns(domain)]
    return stages.union(
        [rows, stages.map(domain, [*names, *(f"CAST(NULL AS {type_})" for type_ in types), "FALSE"])]
    )


def _domain(frame: Relation, answer: QueryStage) -> int | None:
    if not answer.domain:
        return None
    frame.fold()
    return frame.distinct(answer.domain)


def _scalar(compiler: Compiler, frame: Relation, env: Surroundings, query: Query) -> str:
    answer = correlated(compiler, frame, env, query)
    if len(answer.columns) != 1:
        raise UsageError("a sub-query that is used as a value has one column: name the one that is meant")
    if answer.single:
        return _attached(frame, answer)
    stages, keys = frame.stages, [f"c{i}" for i in range(len(answer.domain))]
    marked = _marked(frame, answer, answer.columns, _domain(frame, answer))
    value, there = f"c{len(keys)}", f"FILTER (WHERE {ref(f'c{len(keys) + 1}')})"
    calls = (Call("v", f"min({ref(value)}) {there}"), Call("n", f"count(*) {there}"))
    only = f"CASE WHEN {of_group('n')} > 1 THEN error('{_TWO_ROWS}') ELSE {of_group('v')} END"
    type_ = stages.type_of(marked, value)
    made = stages.redo(
        marked,
        keys,
        calls,
        [*map(of_group, keys), f"CAST({only} AS {type_})"],
        aggregate=True,
        rows_max=None if keys else 2,
    )
    domain = dict(zip(answer.domain, keys, strict=True))
    return _attached(frame, QueryStage(made, answer.names, (f"c{len(keys)}",), domain))


def _existence(compiler: Compiler, frame: Relation, env: Surroundings, query: Query) -> str:
    answer = correlated(compiler, frame, env, _any_row(query))
    keys = [f"c{i}" for i in range(len(answer.domain))]
    marked = _marked(frame, answer, (), _domain(frame, answer))
    mark = ref(f"c{len(keys)}")
    sums = (
        LinearSum("n", f"CAST(CASE WHEN {mark} THEN 1 ELSE 0 END AS HUGEINT)"),
        LinearSum("d", f"CAST(CASE WHEN {mark} THEN 0 ELSE 1 END AS HUGEINT)"),
    )
    times = f"CASE WHEN {of_group('d')} > 0 THEN 1 ELSE 0 END" if keys else "1"
    made = frame.stages.count(marked, keys, sums, times, [*map(of_group, keys), f"{of_group('n')} > 0"])
    domain = dict(zip(answer.domain, keys, strict=True))
    return _attached(frame, QueryStage(made, ("exists",), (f"c{len(keys)}",), domain))


def _any_row(query: Query) -> Query:
    """A query of which only matters whether it has a row: which rows LIMIT keeps does not."""
    limit = query.args.get("limit")
    most = limit.args.get("expression") if isinstance(limit, exp.Limit) else None
    if query.args.get("offset") or not isinstance(most, exp.Literal) or not most.is_int or most.name == "0":
        return query
    found = query.copy()
    for name in ("limit", "order"):
        found.args.pop(name, None)
    return found


def _keep_existing(
    compiler: Compiler, frame: Relation, env: Surroundings, query: Query, *, negated: bool
) -> None:
    frame.fold()
    answer = correlated(compiler, frame, env, _any_row(query))
    frame.fold()
    kept = _semi_answer(frame, answer, lambda _: [])
    frame.replace(frame.stages.minus(frame.inputs[0], kept) if negated else kept)


def _semi_answer(frame: Relation, answer: QueryStage, conditions: Callable[[list[str]], list[Expr]]) -> int:
    """The rows of the frame that have a partner in an answer. The frame is one stage."""
    two = frame.copied()
    found, linked = link(two, answer)
    two.conditions = [*linked, *conditions(found)]
    return semi(two)


def semi(two: Relation) -> int:
    """The rows of the first of two inputs that have a partner in the second."""
    stages = two.stages
    width = len(stages.columns(two.inputs[0]))
    split = JoinParts.of(two)
    left, right = split.inputs
    own = [ref(one.name) for one in stages.columns(left)[:width]]
    equals = [(one.left_column, one.right_column, one.nulls) for one in split.equals]
    if split.where is None:
        if equals:
            partners = stages.distinct(stages.map(right, [ref(b) for _, b, _ in equals]))
        else:
            partners = stages.exists(right)
        keys = [Equal(0, a, 1, f"c{i}", nulls) for i, (a, _, nulls) in enumerate(equals)]
        return stages.join([left, partners], keys, None, own)
    # The condition is tried for each combination of the values that it compares, not for each row.
    used = [name for number, name in references(split.where) if number == 0] + [a for a, _, _ in equals]
    used = list(dict.fromkeys(used)) or [stages.columns(left)[0].name]
    tried = stages.distinct(stages.map(left, [ref(name) for name in used]))
    at = {name: f"c{i}" for i, name in enumerate(used)}
    where = replaced(split.where, lambda n, name: ref(name, n) if n else ref(at[name]))
    met = stages.join(
        [tried, right],
        [Equal(0, at[a], 1, b, nulls) for a, b, nulls in equals],
        where,
        [ref(name) for name in at.values()],
    )
    keys = [Equal(0, name, 1, f"c{i}", True) for i, name in enumerate(used)]
    return stages.join([left, stages.distinct(met)], keys, None, own)


def _members(
    compiler: Compiler, frame: Relation, env: Surroundings, node: Expr
) -> tuple[Callable[[], int], Callable[[], int], Callable[[], int]]:
    """The rows of the frame for which IN, ANY or ALL is true, unknown and false.

    The frame is one stage then.
    """
    stages = frame.stages
    if isinstance(node, exp.In):
        operator: type[Expr] = exp.EQ
        query, swapped = node.args["query"], False
        given = node.this
        sides = given.expressions if isinstance(given, exp.Tuple) else [given]
    else:
        quantified = node.expression if isinstance(node.expression, exp.Any | exp.All) else node.this
        if quantified is node.this:
            raise UsageError("ANY and ALL stand behind the comparison: write x = ANY (SELECT ...)")
        query, operator, swapped = quantified.this, type(node), isinstance(quantified, exp.All)
        sides = [node.this]
    if swapped:
        operator = _NEGATED[operator]  # x > ALL (...) is NOT (x <= ANY (...))
    bound = [bind(compiler, frame, env, side) for side in sides]
    values = frame.fold(bound)
    answer = correlated(compiler, frame, env, query)
    frame.fold()
    if len(values) != len(answer.columns):
        raise UsageError(f"IN compares {len(values)} values with {len(answer.columns)} columns")

    def compared(found: list[str]) -> list[Expr]:
        return [
            operator(this=column(one), expression=column(other))
            for one, other in zip(values, found, strict=True)
        ]

    def matched() -> int:
        return _semi_answer(frame, answer, compared)

    def unmatched() -> tuple[int, int]:
        """The rows that do not match: those of which it is unknown, and the others."""
        if len(values) > 1:
            raise UsageError("NOT IN of several columns, or IN as a value: write NOT EXISTS (... AND ...)")
        rest = frame.copied()
        rest.replace(stages.minus(frame.inputs[0], matched()))
        unknown = []
        if operator is exp.EQ:
            tests = [lambda _: [_is_null(column(values[0]))], lambda found: [_is_null(column(found[0]))]]
        else:
            tests = [lambda found: [_is_null(exp.Paren(this=compared(found)[0]))]]
        for test in tests:
            unknown.append(_semi_answer(rest, answer, test))
            rest.replace(stages.minus(rest.inputs[0], unknown[-1]))
        return stages.union(unknown), rest.inputs[0]

    yes, unknown_, no = matched, lambda: unmatched()[0], lambda: unmatched()[1]
    return (no, unknown_, yes) if swapped else (yes, unknown_, no)


def _is_null(node: Expr) -> Expr:
    return exp.Is(this=node, expression=exp.Null())


def _membership_value(compiler: Compiler, frame: Relation, env: Surroundings, node: Expr) -> str:
    stages = frame.stages
    parts = _members(compiler, frame, env, node)
    made = []
    for stage_of, value in zip(parts, ("TRUE", "CAST(NULL AS BOOLEAN)", "FALSE"), strict=True):
        stage = stage_of()
        made.append(stages.map(stage, [*(ref(one.name) for one in stages.columns(stage)), value]))
    whole = stages.union(made)
    frame.replace(whole)
    id_ = new_id()
    frame.place[id_] = (0, stages.columns(whole)[-1].name)
    return id_
