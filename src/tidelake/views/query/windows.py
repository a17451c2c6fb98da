"""Window functions, and rows that are kept by their place in an order.

Owns what breaks ties, so that a result is a function of the rows; must not know aggregates of groups.
"""

from collections.abc import Sequence

from sqlglot import exp

from tidelake.errors import UsageError
from tidelake.views.functions import LINEAR, POSITIONAL, RANKING
from tidelake.views.plan import Call
from tidelake.views.query.frame import Expr, Relation, column, id_of, new_id
from tidelake.views.query.grouping import function_name, ordered_text
from tidelake.views.query.scope import Compiler, Surroundings
from tidelake.views.query.stages import BUCKETS, FAN_OUT, TIES, Stages, of_group, ref
from tidelake.views.query.subqueries import bind, is_query, rebuilt
from tidelake.views.query.tables import refuse
from tidelake.views.query.texts import replaced

_ZERO = "CAST(0 AS HUGEINT)"
_TREE_ROWS_MAX = 10_000


class WindowCalls:
    """The windows of a query as they are found."""

    def __init__(self, compiler: Compiler, frame: Relation, env: Surroundings) -> None:
        self._compiler, self._frame, self._env = compiler, frame, env
        self._found: dict[str, tuple[str, Expr]] = {}

    def lift(self, node: Expr) -> Expr:
        """An expression in which windows are columns."""
        if is_query(node):
            return node
        if isinstance(node, exp.Window):
            parts = {name: value for name, value in node.args.items() if name != "this"}
            made = exp.Window(this=node.this, **parts)
            bound = rebuilt(made, self._bound)
            text = str(bound.sql(self._frame.stages.analyzer.dialect))
            if text not in self._found:
                self._found[text] = (new_id(), bound)
            return column(self._found[text][0])
        return rebuilt(node, self.lift)

    def _bound(self, child: Expr) -> Expr:
        if isinstance(child, exp.WindowSpec | exp.Identifier):
            return child
        return bind(self._compiler, self._frame, self._env, child)

    def compute(self) -> None:
        """Add the results to the frame: one stage for all windows that have the same partitions."""
        frame = self._frame
        if not self._found:
            return
        by: dict[tuple[str, ...], list[tuple[str, Expr]]] = {}
        for id_, node in self._found.values():
            keys = frame.fold(node.args.get("partition_by") or [])
            by.setdefault(tuple(sorted({*keys, *frame.domain.values()})), []).append((id_, node))
        for keys_, nodes in by.items():
            self._partition(keys_, nodes)

    def _partition(self, keys: Sequence[str], nodes: Sequence[tuple[str, Expr]]) -> None:
        frame, stages = self._frame, self._compiler.stages
        calls: list[Call] = []
        results: list[str] = []
        for _, node in nodes:
            made, result = self._calls(node, len(calls))
            calls += made
            results.append(result)
        own = stages.columns(frame.inputs[0])
        stage = stages.redo(
            frame.inputs[0],
            list(dict.fromkeys(frame.place[key][1] for key in keys)),
            calls,
            [*(of_group(one.name) for one in own), *results],
            aggregate=False,
        )
        frame.replace(stage)
        for (id_, _), one in zip(nodes, stages.columns(stage)[len(own) :], strict=True):
            frame.place[id_] = (0, one.name)

    def _calls(self, node: Expr, number: int) -> tuple[list[Call], str]:
        """What a window computes, and its result over `g`."""
        frame = self._frame
        function, where = node.this, None
        if isinstance(function, exp.Filter):
            where, function = function.expression.this, function.this
        inner = function.this if isinstance(function, exp.IgnoreNulls | exp.RespectNulls) else function
        name = function_name(inner)
        order, spec = node.args.get("order"), node.args.get("spec")
        over = frame.text(order) if order else ""
        kind = "RANGE" if spec is None else str(spec.args.get("kind")).upper()
        peers = spec is not None and str(spec.args.get("exclude")).upper() in ("GROUP", "TIES")
        # Ties are no peers any more once they are broken.
        rows = kind == "ROWS" and not (peers and _is_whole(spec))
        if (peers and (rows or name in POSITIONAL)) or (
            name in POSITIONAL and (kind == "GROUPS" or (spec is not None and kind == "RANGE"))
        ):
            raise refuse(f"{name}() with this frame of {kind}", "write ROWS BETWEEN ... without EXCLUDE")
        if name in POSITIONAL or (rows and name not in RANKING):
            if not order:
                raise UsageError(
                    f"{name}() OVER needs an order, as rows have none: write ORDER BY in OVER (...)"
                )
            if name in ("last_value", "last", "nth_value") and spec is None:
                raise refuse(f"{name}() with a RANGE", "write ROWS BETWEEN ... in its OVER (...)")
            over += f", {TIES}"
        if spec is not None:
            over = f"{over} {spec.sql(frame.stages.analyzer.dialect)}".strip()
        if name not in LINEAR or _is_distinct(inner):
            whole = ordered_text(frame, name, function, order=inner.find(exp.Order) is not None)
            if name in POSITIONAL | RANKING:
                whole = frame.text(function)
            if where is not None:
                whole = f"{whole} FILTER (WHERE {frame.text(where)})"
            return [Call(f"w{number}", whole, over)], of_group(f"w{number}")
        argument = None if inner.this is None or isinstance(inner.this, exp.Star) else inner.this
        present = "TRUE" if where is None else f"coalesce({frame.text(where)}, FALSE)"
        text: str | None = None
        type_ = ""
        if argument is not None:
            text = frame.text(argument)
            type_ = frame.stages.analyzer.described(f"SELECT {text} FROM __s{frame.inputs[0]} i0")[0].type
            text = text if id_of(argument) else f"({text})"
        found = frame.stages.analyzer.linear(name, text, type_, present)
        listed = None if text is None else frame.stages.analyzer.of_list(name, text, type_, present)
        if found is None and listed is not None and (order is None or kind != "ROWS"):
            if order is not None:
                # Ties come together, and in any order.
                return [Call(f"w{number}", listed[0], over)], listed[1].format(of_group(f"w{number}"))
            over = f"ORDER BY {text}, {TIES} ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING"
        if found is None:
            whole = frame.text(function)
            whole = whole if where is None else f"{whole} FILTER (WHERE {present})"
            return [Call(f"w{number}", whole, over)], of_group(f"w{number}")
        calls = [Call(f"w{number + i}", f"sum({value})", over) for i, value in enumerate(found.values)]
        return calls, found.of([f"coalesce({of_group(call.name)}, {_ZERO})" for call in calls])


def _is_distinct(node: Expr) -> bool:
    return isinstance(node.this, exp.Distinct) or any(
        isinstance(one, exp.Distinct) for one in node.expressions
    )


def _is_whole(spec: Expr | None) -> bool:
    ends = ("UNBOUNDED", "PRECEDING", "UNBOUNDED", "FOLLOWING")
    names = ("start", "start_side", "end", "end_side")
    return spec is not None and tuple(str(spec.args.get(name)).upper() for name in names) == ends


def first_rows(stages: Stages, stage: int, keys: Sequence[str], order: str, cut: tuple[int, int]) -> int:
    """The rows of each group that LIMIT and OFFSET keep in an order. Ties are broken by all columns."""
    most, skipped = cut
    last = most + skipped
    names = [one.name for one in stages.columns(stage)]
    call = Call("w", "row_number()", f"ORDER BY {order}, {TIES}")

    def kept(number: int, by: Sequence[str], where: str, rows_max: int | None) -> int:
        return stages.redo(
            number,
            by,
            (call,),
            [of_group(one.name) for one in stages.columns(number)],
            aggregate=False,
            where=where,
            rows_max=rows_max,
        )

    some = (
        f"{of_group('w')} > {skipped} AND {of_group('w')} <= {last}"
        if skipped
        else f"{of_group('w')} <= {last}"
    )
    if keys or last > _TREE_ROWS_MAX:
        return kept(stage, keys, some, None)
    rows_max, width = FAN_OUT * last, len(names)
    number = stages.map(
        stage, [*map(ref, names), stages.analyzer.bucket([ref(name) for name in names], BUCKETS)]
    )
    # The columns are the first ones of each level, in the same order.
    own = [one.name for one in stages.columns(number)]
    moved = dict(zip(names, own, strict=False))
    order = replaced(order, lambda _, name: ref(moved[name]))
    call = Call("w", "row_number()", f"ORDER BY {order}, {TIES}")
    number = kept(number, own[width:], f"{of_group('w')} <= {last}", None)
    number = stages.map(number, [*map(ref, own[:width]), f"{ref(own[width])} // {FAN_OUT}"])
    number = kept(number, own[width:], f"{of_group('w')} <= {last}", rows_max)
    return kept(stages.map(number, [ref(name) for name in own[:width]]), (), some, rows_max)
