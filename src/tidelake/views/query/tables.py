"""FROM: tables, queries beside them, and joins.

Owns what each kind of join is made of; must not know what is selected from it.
"""

from collections.abc import Sequence
from typing import Any

from sqlglot import exp, parse_one

from tidelake.errors import UsageError
from tidelake.views.plan import Call, PlanColumn
from tidelake.views.query.frame import Expr, Named, Relation, column, conjuncts, ids, new_id, same
from tidelake.views.query.scope import Compiler, Cte, QueryStage, Surroundings
from tidelake.views.query.stages import TIES, of_group, ref
from tidelake.views.query.subqueries import bind, correlated, has_query, is_query, link, restrict, semi

_JOIN_ARGUMENTS = {"this", "on", "side", "kind", "using", "method"}
_TABLE_ARGUMENTS = {"this", "alias", "joins"}


def refuse(what: str, instead: str) -> UsageError:
    """The error that a piece of SQL is not understood."""
    return UsageError(f"a view cannot have {what}: {instead}")


def check_arguments(node: Expr, known: set[str], what: str) -> None:
    """Refuse what a node has beside the arguments that are understood."""
    for name, value in node.args.items():
        if value not in (None, False, []) and name not in known:
            told = name.strip("_").upper()
            raise refuse(f"{told} in {what}", _INSTEAD.get(name, "write the query without it"))


_INSTEAD = {
    "sample": "a sample differs each time; write WHERE with a condition, such as on hash columns of your own",
    "pivots": "write an aggregate with FILTER (WHERE ...) for each column",
    "locks": "a view locks nothing; leave it out",
    "when": "leave AT out; ask the view for a time when it is read",
    "version": "leave AT out; ask the view for a time when it is read",
    "by_name": "name the columns of both sides in one order",
    "ordinality": "write row_number() OVER (ORDER BY ...)",
}


def read_from(compiler: Compiler, env: Surroundings, node: Expr, joins: Sequence[Expr]) -> Relation:
    """The relation of a FROM, whose first item may be None, with its joins."""
    frame = env.begin(compiler.stages)
    if node is None:
        return frame
    _beside(compiler, frame, env, node)
    for join in joins:
        _join(compiler, frame, env, join)
    return frame


def _beside(compiler: Compiler, frame: Relation, env: Surroundings, node: Expr) -> None:
    """Take an item of FROM in; it may name columns of the items before it."""
    if isinstance(node, exp.Unnest | exp.Lateral) and _unnested(compiler, frame, env, node):
        return
    item, conditions = _item(compiler, frame, env, node)
    frame.merge(item)
    frame.conditions += conditions


def _item(compiler: Compiler, frame: Relation, env: Surroundings, node: Expr) -> tuple[Relation, list[Expr]]:
    """An item of FROM alone, and how it hangs together with the frame that it may name columns of."""
    match node:
        case exp.Table() if isinstance(node.this, exp.Func):
            check_arguments(node, _TABLE_ARGUMENTS, "FROM")
            return _named(compiler, _function(compiler, node.this), node), []
        case exp.Table():
            if node.args.get("db") is not None:
                raise refuse(f"{node.sql('duckdb')!r} in FROM", "name the collection without a schema")
            check_arguments(node, _TABLE_ARGUMENTS, "FROM")
            item = _table(compiler, env, node)
        case exp.Values():
            item = _named(compiler, _constant(compiler, node), node)
        case exp.Unnest():
            text = ", ".join(f"unnest({one.sql('duckdb')})" for one in node.expressions)
            item = _named(compiler, _constant_text(compiler, f"SELECT {text}", ("unnest",)), node)
        case exp.Lateral() if is_query(node.this):
            return _query(compiler, frame, env, node.this, node)
        case exp.Subquery() if isinstance(node.this, exp.Table):
            item = _nested(compiler, frame, env, node)
        case exp.Subquery():
            check_arguments(node, {"this", "alias", "with_", "joins"}, "FROM")
            if not node.args.get("joins"):
                return _query(compiler, frame, env, node.this, node)
            item, conditions = _query(compiler, frame, env, node.this, node)
            if conditions:
                raise refuse("a correlated query within a join in parentheses", "write LATERAL")
        case _:
            raise refuse(f"{node.sql('duckdb')!r} in FROM", "name a collection, or write a query there")
    for join in node.args.get("joins") or []:
        _join(compiler, item, env, join)
    return item, []


def _nested(compiler: Compiler, frame: Relation, env: Surroundings, node: Expr) -> Relation:
    """A join in parentheses. Its tables see no other ones."""
    del frame
    if node.args.get("alias"):
        raise refuse("an alias of a join in parentheses", "write (SELECT * FROM ...) AS name")
    item, _ = _item(compiler, Relation(compiler.stages), env, node.this)
    return item


def _query(
    compiler: Compiler, frame: Relation, env: Surroundings, query: Expr, node: Expr
) -> tuple[Relation, list[Expr]]:
    seen = frame if frame.names or frame.domain else Relation(compiler.stages, domain=frame.domain)
    answer = correlated(compiler, seen, env, query)
    item = Relation(compiler.stages)
    found, conditions = link(item, answer)
    _call(item, found, answer.names, node)
    return item, conditions


def _named(compiler: Compiler, answer: QueryStage, node: Expr) -> Relation:
    item = Relation(compiler.stages)
    found, _ = link(item, answer)
    _call(item, found, answer.names, node)
    return item


def _call(item: Relation, found: Sequence[str], names: Sequence[str], node: Expr) -> None:
    """Give the columns of an item the names that its alias says."""
    alias = node.args.get("alias")
    table = (alias.name if alias else "") or (node.name if isinstance(node, exp.Table) else "")
    given = [str(one.name) for one in (alias.args.get("columns") or [])] if alias else []
    if len(given) == 0 and alias and len(names) == 1 and isinstance(node, exp.Unnest):
        given = [alias.name]
    told = [*given, *names[len(given) :]]
    item.names += [Named(table.lower(), name, id_) for name, id_ in zip(told, found, strict=True)]


def _table(compiler: Compiler, env: Surroundings, node: Expr) -> Relation:
    name = str(node.name)
    if (cte := env.ctes.get(name.lower())) is not None:
        return _named(compiler, _with(compiler, name, cte), node)
    columns = compiler.schema_of(name)
    if columns is None:
        raise UsageError(f"the query reads {name!r}, and there is no collection of this name now")
    if odd := [one for one in columns if one.startswith("#")]:
        raise refuse(f"the column {odd[0]!r} of {name!r}", "rename it, so that it begins otherwise")
    told = tuple(PlanColumn(one, type_) for one, type_ in columns.items())
    stage = compiler.stages.source(name, told)
    own = tuple(column.name for column in compiler.stages.columns(stage))
    return _named(compiler, QueryStage(stage, tuple(columns), own, {}), node)


def _with(compiler: Compiler, name: str, cte: Cte) -> QueryStage:
    try:
        answer = compiler.query(cte.query, cte.env)
    except UsageError as error:
        raise UsageError(f"in {name!r} of WITH: {error}") from error
    return QueryStage(answer.stage, (*cte.names, *answer.names[len(cte.names) :]), answer.columns, {})


def _constant(compiler: Compiler, node: Expr) -> QueryStage:
    rows = ", ".join(one.sql(compiler.stages.analyzer.dialect) for one in node.expressions)
    return _constant_text(compiler, f"SELECT * FROM (VALUES {rows})", ())


def _constant_text(compiler: Compiler, text: str, names: tuple[str, ...]) -> QueryStage:
    """Rows that depend on no collection.

    Raises:
        UsageError: they do: a query is within the text.
    """
    parsed = parse_one(text, dialect=compiler.stages.analyzer.dialect)
    if any(isinstance(one.this, exp.Identifier) for one in parsed.find_all(exp.Table)):
        raise refuse(
            f"a query within {text.removeprefix('SELECT ').removeprefix('* FROM ')!r}",
            "write the query in FROM, and unnest(range(...)) or its columns in SELECT",
        )
    names = names or tuple(one.name for one in compiler.stages.analyzer.described(text))
    stage = compiler.stages.constant(text)
    columns = tuple(one.name for one in compiler.stages.columns(stage))
    return QueryStage(stage, names, columns, {})


def _function(compiler: Compiler, node: Expr) -> QueryStage:
    text = node.sql("duckdb")
    name = text.partition("(")[0].lower()
    if name not in ("range", "generate_series"):
        raise refuse(f"the table function {name}()", "append its rows to a collection, and read that")
    return _constant_text(compiler, f"SELECT * FROM {text}", ())


def _unnested(compiler: Compiler, frame: Relation, env: Surroundings, node: Expr) -> bool:
    """Repeat the rows of the frame for the items of its lists; False: no list of the frame is meant."""
    unnest = node.this if isinstance(node, exp.Lateral) else node
    if not isinstance(unnest, exp.Unnest) or not any(unnest.find_all(exp.Column)):
        return False
    if node.args.get("offset"):
        raise refuse("WITH ORDINALITY", "number the items with list_zip and range")
    bound = [bind(compiler, frame, env, one) for one in unnest.expressions]
    frame.fold()
    found = frame.fold([exp.Explode(this=one) for one in bound])
    _call(frame, found, ["unnest"] * len(found), node)
    return True


def _join(compiler: Compiler, frame: Relation, env: Surroundings, node: Any) -> None:
    check_arguments(node, _JOIN_ARGUMENTS, "a join")
    method, side, kind = (str(node.args.get(name) or "") for name in ("method", "side", "kind"))
    if method not in ("", "NATURAL", "ASOF") or kind not in ("", "INNER", "OUTER", "CROSS", "SEMI", "ANTI"):
        raise refuse(f"a {method or kind} JOIN", "join by an equality, or by row_number() of both sides")
    if not side and kind in ("", "INNER", "CROSS") and method == "" and not node.args.get("using"):
        _beside(compiler, frame, env, node.this)
        if node.args.get("on") is not None:
            restrict(compiler, frame, env, node.args["on"])
        return
    if isinstance(node.this, exp.Unnest | exp.Lateral) and any(node.this.find_all(exp.Unnest)):
        raise refuse(
            f"{side or kind} JOIN of UNNEST", "write CROSS JOIN, and UNION ALL the rows without items"
        )
    item, conditions = _item(compiler, frame, env, node.this)
    both = frame.copied()
    both.merge(item)
    using = [str(one.name) for one in node.args.get("using") or []]
    if method == "NATURAL":
        theirs = {one.name.lower() for one in item.names if one.alone}
        using = list(
            dict.fromkeys(one.name for one in frame.names if one.alone and one.name.lower() in theirs)
        )
    pairs = []
    for name in using:
        left, right = frame.find("", name), item.find("", name)
        if left is None or right is None:
            raise UsageError(f"USING ({name}): a side of the join has no such column")
        pairs.append((name, left, right))
        conditions.append(exp.EQ(this=column(left), expression=column(right)))
    if node.args.get("on") is not None:
        if has_query(node.args["on"]):
            raise refuse(
                f"a sub-query in ON of a {side or kind or method} JOIN", "join a query with its condition"
            )
        conditions += [bind(compiler, both, env, one) for one in conjuncts(node.args["on"])]
    if method == "ASOF":
        conditions = _nearest(compiler, frame, item, conditions)
    if kind in ("SEMI", "ANTI"):
        frame.fold()
        item.fold()
        two = frame.copied()
        two.merge(item)
        two.conditions = conditions
        kept = semi(two)
        frame.replace(kept if kind == "SEMI" else compiler.stages.minus(frame.inputs[0], kept))
        _order_names(frame, pairs)
        return
    if not side:
        frame.merge(item)
        frame.conditions += conditions
    else:
        _outer(frame, item, conditions, side, env)
    _merge_names(frame, pairs, side)
    _order_names(frame, pairs)


def _merge_names(frame: Relation, pairs: Sequence[tuple[str, str, str]], side: str) -> None:
    """After USING, a name without a table means the column of the side that always has one."""
    for name, left, right in pairs:
        hidden = left if side == "RIGHT" else right
        merged = None
        if side == "FULL":
            both = exp.Coalesce(this=column(left), expressions=[column(right)])
            merged = frame.fold([both])[0]
        names = []
        for one in frame.names:
            if merged is not None and one.id == left and one.alone:
                names.append(Named("", name, merged))
            gone = one.id in (left, right) if merged else one.id == hidden
            if side == "RIGHT" and one.id == left and one.alone:
                names.append(Named("", name, right))
                gone = True
            elif side == "RIGHT" and one.id == right:
                gone = True
            names.append(Named(one.table, one.name, one.id, one.alone and not gone))
        frame.names = names


def _order_names(frame: Relation, pairs: Sequence[tuple[str, str, str]]) -> None:
    """After USING, `*` may begin with its columns."""
    if not frame.stages.analyzer.has_using_first:
        return
    # What both sides of a FULL JOIN have in common has a name without a table.
    using = [(name.lower(), {left, right}) for name, left, right in pairs]
    place = {
        one: at
        for at, (name, ids_) in reversed([*enumerate(using)])
        for one in frame.names
        if one.id in ids_ or (one.alone and one.name.lower() == name)
    }
    frame.names = sorted(frame.names, key=lambda one: place.get(one, len(using)))


def _outer(frame: Relation, item: Relation, conditions: list[Expr], side: str, env: Surroundings) -> None:
    """Join, and keep the rows of one side, or of both, that have no partner."""
    stages = frame.stages
    if side not in ("LEFT", "RIGHT", "FULL"):
        raise refuse(f"a {side} JOIN", "write LEFT, RIGHT or FULL")
    domain: dict[str, str] = {}
    if frame.domain and side != "LEFT" and env.stage is not None:
        # A row of the right side without a partner is there for each row of the domain.
        own = item.add(env.stage)
        domain = dict(zip([frame.domain[one] for one in env.free], own, strict=True))
        conditions = [*conditions, *(same(a, b) for a, b in domain.items())]
    frame.fold()
    item.fold()
    left, right = list(frame.place), list(item.place)
    two = frame.copied()
    two.merge(item)
    two.conditions = conditions

    def shaped(one: Relation, known: Sequence[str], swap: dict[str, str]) -> int:
        """One column for each id; NULL for those that are not known."""
        one.fold()
        texts = []
        for id_ in (*left, *right):
            at = swap.get(id_, id_)
            if at in known:
                texts.append(one.text(column(at)))
            else:
                texts.append(f"CAST(NULL AS {(frame if id_ in frame.place else item).type_of(id_)})")
        return stages.map(one.inputs[0], texts)

    made = [shaped(two.copied(), [*left, *right], {})]
    for kept, known, turned in ((frame, left, False), (item, right, True)):
        if side not in ("FULL", "RIGHT" if turned else "LEFT"):
            continue
        ordered = kept.copied()
        ordered.merge(item if not turned else frame)
        ordered.conditions = [one.copy() for one in conditions]
        alone = kept.copied()
        alone.replace(stages.minus(kept.inputs[0], semi(ordered)))
        made.append(shaped(alone, known, domain if turned else {}))
    whole = stages.union(made)
    names = [one.name for one in stages.columns(whole)]
    frame.names += item.names
    frame.inputs, frame.conditions = [whole], []
    frame.place = {id_: (0, name) for id_, name in zip((*left, *right), names, strict=True)}


def _nearest(compiler: Compiler, frame: Relation, item: Relation, conditions: list[Expr]) -> list[Expr]:
    """Of the right rows of an AS OF join, keep for each combination of values the nearest.

    Returns the conditions between the frame and the item, which is changed.
    """
    stages = compiler.stages
    unequal = [one for one in conditions if not isinstance(one, exp.EQ | exp.NullSafeEQ)]
    if len(unequal) != 1 or not isinstance(unequal[0], exp.GTE | exp.GT | exp.LTE | exp.LT):
        raise refuse("an ASOF JOIN without one inequality", "write ON equalities AND left.time >= right.time")
    frame.fold()
    item.fold()
    nearest = unequal[0].expression
    if not set(ids(nearest)) <= set(item.place):
        raise refuse("this ASOF JOIN", "write the column of the left table first: left.time >= right.time")
    used = [id_ for id_ in dict.fromkeys(id_ for one in conditions for id_ in ids(one)) if id_ in frame.place]
    tried = Relation(stages)
    values = stages.map(frame.inputs[0], [ref(frame.place[id_][1]) for id_ in used])
    tried.place = {}
    at = dict(zip(used, tried.add(stages.distinct(values)), strict=True))
    theirs = list(item.place)
    tried.merge(item)
    tried.names = []
    tried.conditions = [
        one.copy().transform(
            lambda n: column(at[n.name]) if isinstance(n, exp.Column) and n.name in at else n
        )
        for one in conditions
    ]
    tried.fold([nearest.copy()])
    order = f"{tried.text(nearest)}{' DESC' if isinstance(unequal[0], exp.GTE | exp.GT) else ''}, {TIES}"
    keys = [tried.place[at[id_]][1] for id_ in used]
    kept = [tried.place[id_][1] for id_ in theirs]
    made = stages.redo(
        tried.inputs[0],
        keys,
        (Call("w", "row_number()", f"ORDER BY {order}"),),
        [of_group(name) for name in (*keys, *kept)],
        aggregate=False,
        where=f"{of_group('w')} = 1",
    )
    names = [one.name for one in stages.columns(made)]
    own = [new_id() for _ in used]
    item.inputs, item.conditions = [made], []
    item.place = {id_: (0, name) for id_, name in zip((*own, *theirs), names, strict=True)}
    return [same(outer, inner) for outer, inner in zip(used, own, strict=True)]
