"""UNION, INTERSECT and EXCEPT: what the two sides have in common, and how they are put together.

Owns their stages; must not know how a side is made.
"""

from collections.abc import Sequence

from sqlglot import exp

from tidelake.views.plan import LinearSum
from tidelake.views.query.scope import Query, QueryStage
from tidelake.views.query.stages import Stages, of_group, ref


def combined(stages: Stages, node: Query, one: int, other: int) -> int:
    """The stage of a set operation over two stages with the same types."""
    distinct = bool(node.args.get("distinct"))
    if isinstance(node, exp.Union):
        whole = stages.union([one, other])
        return stages.distinct(whole) if distinct else whole
    one_, other_ = of_group("l"), of_group("r")
    if isinstance(node, exp.Intersect):
        times = (
            f"CASE WHEN {one_} > 0 AND {other_} > 0 THEN 1 ELSE 0 END"
            if distinct
            else f"least({one_}, {other_})"
        )
    else:
        left = f"greatest({one_} - greatest({other_}, 0), 0)"
        times = f"CASE WHEN {one_} > 0 AND {other_} <= 0 THEN 1 ELSE 0 END" if distinct else left
    sides = []
    for stage, mark in ((one, "TRUE"), (other, "FALSE")):
        sides.append(stages.map(stage, [*(ref(c.name) for c in stages.columns(stage)), mark]))
    both = stages.union(sides)
    *keys, mark = (c.name for c in stages.columns(both))
    sums = [
        LinearSum(name, f"CAST(CASE WHEN {ref(mark)} THEN {yes} ELSE {1 - yes} END AS HUGEINT)")
        for name, yes in (("l", 1), ("r", 0))
    ]
    return stages.count(both, keys, sums, times)


def casts(stages: Stages, side: QueryStage, types: Sequence[str]) -> list[str]:
    """The columns of a side, as texts of these types."""
    return [
        ref(name) if stages.type_of(side.stage, name) == type_ else f"CAST({ref(name)} AS {type_})"
        for name, type_ in zip(side.columns, types, strict=True)
    ]


def type_of_both(stages: Stages, one: str, other: str) -> str:
    """The type that a column has whose sides have these."""
    if one == other:
        return one
    text = f"SELECT CAST(NULL AS {one}) UNION ALL SELECT CAST(NULL AS {other})"
    return stages.analyzer.described(text)[0].type
