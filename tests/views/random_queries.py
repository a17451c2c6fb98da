"""Queries at random, over all that a view may have, nested as deep as asked.

Their answers are the same in each engine: sums are of numbers that need no rounding, and orders are total.
"""

from random import Random
from typing import NamedTuple

from query_cases import TABLES

KINDS = {"k": "i", "x": "i", "f": "f", "s": "s", "y": "d"}
BASE = {name: {c: KINDS[c] for c in columns} for name, columns in TABLES.items() if name in ("a", "b", "e")}
_SUMMED = ("i", "d", "f")


class Made(NamedTuple):
    """A query, and the kinds of its columns: int, decimal, float, text, bool; g is a rounded float."""

    sql: str
    columns: dict[str, str]


class Queries:
    """A source of queries."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._names = 0

    def query(self, depth: int, outer: dict[str, str] | None = None) -> Made:
        """A query that may name the columns `outer`, which are those of a query around it."""
        outer = outer or {}
        if depth <= 0:
            return self._plain(depth, outer)
        forms = [self._plain, self._plain, self._joined, self._joined, self._grouped, self._grouped]
        forms += [
            self._distinct,
            self._set,
            self._window,
            self._limited,
            self._lateral,
            self._cte,
            self._sets,
            self._half_joined,
            self._latest,
            self._shared,
            self._listed,
            self._framed,
        ]
        return self._random.choice(forms)(depth, outer)

    def _name(self) -> str:
        self._names += 1
        return f"q{self._names}"

    def _flip(self, share: float) -> bool:
        return self._random.random() < share

    def _item(self, depth: int, outer: dict[str, str]) -> tuple[str, dict[str, str]]:
        """An item of FROM, and its columns with the name of the item before them."""
        name = self._name()
        if depth <= 0 or self._flip(0.5):
            table = self._random.choice(["a", "a", "b", "b", "e"])
            return f"{table} AS {name}", {f"{name}.{c}": k for c, k in BASE[table].items()}
        if self._flip(0.1):
            return f"(VALUES (1, 'p'), (2, NULL), (NULL, 'q')) AS {name}(i, t)", {
                f"{name}.i": "i",
                f"{name}.t": "s",
            }
        made = self.query(depth - 1, outer if self._flip(0.1) else {})
        return f"({made.sql}) AS {name}", {f"{name}.{c}": k for c, k in made.columns.items()}

    def _of_kind(self, columns: dict[str, str], kinds: tuple[str, ...]) -> str | None:
        fitting = [c for c, kind in columns.items() if kind in kinds]
        return self._random.choice(fitting) if fitting else None

    def _value(self, kind: str) -> str:
        choice = self._random.choice
        return {
            "i": lambda: str(choice([0, 1, 2, 3, 5])),
            "d": lambda: choice(["1.50", "2.25", "0.00"]),
            "f": lambda: choice(["0.5::DOUBLE", "1.5::DOUBLE", "-1::DOUBLE"]),
            "g": lambda: "1.5::DOUBLE",
            "s": lambda: choice(["'p'", "'q'", "'z'"]),
            "b": lambda: choice(["TRUE", "FALSE"]),
        }[kind]()

    def _expression(self, columns: dict[str, str], depth: int) -> tuple[str, str]:
        column, kind = self._random.choice(list(columns.items()))
        draw = self._random.random()
        if draw < 0.55:
            return column, kind
        if draw < 0.7 and kind in ("i", "d"):
            return f"{column} + {self._value('i')}", kind
        if draw < 0.8:
            return f"CASE WHEN {self._condition(columns, 0)} THEN {column} END", kind
        if draw < 0.87 and depth > 0:
            return f"({self._scalar(columns, depth - 1)})", "i"
        if draw < 0.92 and depth > 0:
            return self._predicate_with_query(columns, depth - 1), "b"
        return f"coalesce({column}, {self._value(kind)})", kind

    def _comparison(self, columns: dict[str, str]) -> str:
        column, kind = self._random.choice(list(columns.items()))
        operator = self._random.choice(["=", "<>", "<", ">=", "IS DISTINCT FROM", "IS NOT DISTINCT FROM"])
        other = self._of_kind(columns, (kind,)) if self._flip(0.5) else self._value(kind)
        return f"{column} {operator} {other}"

    def _condition(self, columns: dict[str, str], depth: int) -> str:
        draw = self._random.random()
        if depth > 0 and draw < 0.35:
            return self._predicate_with_query(columns, depth - 1)
        if draw < 0.6:
            return self._comparison(columns)
        if draw < 0.7:
            return f"{self._random.choice(list(columns))} IS {self._random.choice(['NULL', 'NOT NULL'])}"
        joint = self._random.choice(["AND", "AND", "OR"])
        parts = [self._condition(columns, depth - 1), self._comparison(columns)]
        self._random.shuffle(parts)
        return f"{'NOT ' if self._flip(0.15) else ''}({parts[0]} {joint} {parts[1]})"

    def _scalar(self, columns: dict[str, str], depth: int) -> str:
        """A query with one number, whatever the contents."""
        item, own = self._item(depth, columns)
        number = self._of_kind(own, ("i",))
        calls = ["count(*)"] + (
            [f"max({number})", f"sum({number})", f"count(DISTINCT {number})"] if number else []
        )
        return f"SELECT {self._random.choice(calls)} FROM {item} WHERE {self._linked(columns, own, depth)}"

    def _linked(self, columns: dict[str, str], own: dict[str, str], depth: int) -> str:
        """A condition that often compares with a column of the query around."""
        parts = []
        for _ in range(self._random.choice([0, 1, 1, 2])):
            mine, kind = self._random.choice(list(own.items()))
            theirs = self._of_kind(columns, (kind,))
            if theirs is not None:
                parts.append(f"{mine} {self._random.choice(['=', '=', '=', '>', '<>'])} {theirs}")
        if not parts or self._flip(0.3):
            parts.append(self._condition({**own, **columns} if self._flip(0.3) else own, depth))
        return " AND ".join(parts)

    def _predicate_with_query(self, columns: dict[str, str], depth: int) -> str:
        draw = self._random.random()
        negation = self._random.choice(["", "NOT "])
        item, own = self._item(depth, columns)
        where = self._linked(columns, own, depth)
        if draw < 0.35:
            return f"{negation}EXISTS (SELECT 1 FROM {item} WHERE {where})"
        if draw < 0.45:
            return f"{self._value('i')} <= ({self._scalar(columns, depth)})"
        mine, kind = self._random.choice(list(columns.items()))
        theirs = self._of_kind(own, (kind,))
        if theirs is None:
            return f"{negation}EXISTS (SELECT 1 FROM {item} WHERE {where})"
        if draw < 0.85:
            return f"{mine} {negation}IN (SELECT {theirs} FROM {item} WHERE {where})"
        operator = self._random.choice(["=", "<>", "<", ">="])
        word = self._random.choice(["ANY", "ALL"])
        return f"{mine} {operator} {word} (SELECT {theirs} FROM {item} WHERE {where})"

    def _select(self, columns: dict[str, str], depth: int, most: int = 3) -> tuple[str, dict[str, str]]:
        found = [self._expression(columns, depth) for _ in range(self._random.randint(1, most))]
        kinds = {f"c{i}": kind for i, (_, kind) in enumerate(found)}
        return ", ".join(f"{text} AS c{i}" for i, (text, _) in enumerate(found)), kinds

    def _where(self, columns: dict[str, str], depth: int) -> str:
        return f" WHERE {self._condition(columns, depth)}" if self._flip(0.6) else ""

    def _plain(self, depth: int, outer: dict[str, str]) -> Made:
        item, own = self._item(depth - 1, outer)
        seen = {**own, **outer} if self._flip(0.5) else own
        select, kinds = self._select(seen, depth)
        return Made(f"SELECT {select} FROM {item}{self._where(seen, depth)}", kinds)

    def _joined(self, depth: int, outer: dict[str, str]) -> Made:
        left, own = self._item(depth - 1, outer)
        text = left
        for _ in range(self._random.choice([1, 1, 2])):
            right, theirs = self._item(depth - 1, outer)
            kind = self._random.choice(
                ["JOIN", "LEFT JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "CROSS JOIN"]
            )
            text += f" {kind} {right}"
            if kind != "CROSS JOIN":
                text += f" ON {self._on(own, theirs, plain=kind == 'FULL JOIN')}"
            own = {**own, **theirs}
        select, kinds = self._select({**own, **outer}, depth)
        return Made(f"SELECT {select} FROM {text}{self._where(own, depth)}", kinds)

    def _on(self, left: dict[str, str], right: dict[str, str], *, plain: bool) -> str:
        parts = []
        for _ in range(1 if self._flip(0.7) else 2):
            column, kind = self._random.choice(list(left.items()))
            other = self._of_kind(right, (kind,))
            if other is not None:
                parts.append(f"{column} = {other}")
        if not parts:
            return "TRUE" if plain else self._comparison({**left, **right})
        if not plain and self._flip(0.3):
            parts.append(self._comparison({**left, **right}))
        return " AND ".join(parts)

    def _calls(self, own: dict[str, str]) -> list[tuple[str, str]]:
        """Aggregates of all kinds."""
        found = []
        for _ in range(self._random.randint(1, 3)):
            column, kind = self._random.choice(list(own.items()))
            number = self._of_kind(own, _SUMMED)
            calls = [("count(*)", "i"), (f"count({column})", "i"), (f"count(DISTINCT {column})", "i")]
            calls += [(f"max({column})", kind), (f"min({column})", kind)]
            if number is not None:
                calls += [
                    (f"sum({number})", own[number]),
                    (f"sum({number})", own[number]),
                    (f"avg({number})", "g"),
                ]
                calls.append((f"sum(DISTINCT {number})", own[number]))
                calls.append((f"median({number})", "g"))
            if kind == "i":
                calls += [(f"bit_or({column})", "i"), (f"quantile_disc({column}, 0.5)", "i")]
                calls.append((f"string_agg(CAST({column} AS VARCHAR), '|' ORDER BY {column})", "s"))
            calls.append((f"first({column} ORDER BY {column} DESC NULLS LAST)", kind))
            if kind == "s":
                calls.append((f"string_agg({column}, ',' ORDER BY {column})", "s"))
            if kind == "b":
                calls += [(f"bool_and({column})", "b"), (f"count_if({column})", "i")]
            text, result = self._random.choice(calls)
            if self._flip(0.15):
                text += f" FILTER (WHERE {self._comparison(own)})"
            found.append((text, result))
        return found

    def _grouped(self, depth: int, outer: dict[str, str]) -> Made:
        item, own = self._item(depth - 1, outer)
        keys = self._random.sample(list(own), self._random.choice([0, 1, 1, 2]) if len(own) > 1 else 1)
        calls = self._calls(own)
        found = [(key, own[key]) for key in keys] + calls
        select = ", ".join(f"{text} AS c{i}" for i, (text, _) in enumerate(found))
        kinds = {f"c{i}": kind for i, (_, kind) in enumerate(found)}
        group = f" GROUP BY {', '.join(keys)}" if keys else ""
        having = ""
        if self._flip(0.3):
            having = f" HAVING count(*) {self._random.choice(['>', '<='])} {self._random.choice([0, 1, 2])}"
        where = self._where({**own, **outer}, depth)
        return Made(f"SELECT {select} FROM {item}{where}{group}{having}", kinds)

    def _sets(self, depth: int, outer: dict[str, str]) -> Made:
        item, own = self._item(depth - 1, outer)
        keys = self._random.sample(list(own), min(2, len(own)))
        text, kind = self._calls(own)[0]
        form = self._random.choice(["ROLLUP", "CUBE", "GROUPING SETS"])
        select = ", ".join([*(f"{key} AS c{i}" for i, key in enumerate(keys)), f"{text} AS c8"])
        kinds = {**{f"c{i}": own[key] for i, key in enumerate(keys)}, "c8": kind, "c9": "i"}
        sql = f"SELECT {select}, grouping({keys[0]}) AS c9 FROM {item}{self._where(own, depth)}"
        if form == "GROUPING SETS":
            wanted = [f"({', '.join(keys)})", self._random.choice([f"({keys[-1]})", f"({keys[0]})", "()"])]
            return Made(f"{sql} GROUP BY {form} ({', '.join(wanted)})", kinds)
        return Made(f"{sql} GROUP BY {form} ({', '.join(keys)})", kinds)

    def _distinct(self, depth: int, outer: dict[str, str]) -> Made:
        item, own = self._item(depth - 1, outer)
        select, kinds = self._select({**own, **outer}, depth)
        return Made(f"SELECT DISTINCT {select} FROM {item}{self._where(own, depth)}", kinds)

    def _set(self, depth: int, outer: dict[str, str]) -> Made:
        left, right = (self.query(depth - 1, outer) for _ in range(2))
        shared = [(a, b) for a in left.columns for b in right.columns if left.columns[a] == right.columns[b]]
        if not shared:
            return left
        a, b = self._random.choice(shared)
        word = self._random.choice(["UNION", "INTERSECT", "EXCEPT"]) + self._random.choice(["", " ALL"])
        sql = f"SELECT {a} AS c0 FROM ({left.sql}) {word} SELECT {b} AS c0 FROM ({right.sql})"
        return Made(sql, {"c0": left.columns[a]})

    def _window(self, depth: int, outer: dict[str, str]) -> Made:
        item, own = self._item(depth - 1, outer)
        by = self._random.choice(list(own))
        total = ", ".join(own)
        number = self._of_kind(own, _SUMMED)
        calls = [(f"row_number() OVER (PARTITION BY {by} ORDER BY {total})", "i")]
        calls += [(f"rank() OVER (PARTITION BY {by} ORDER BY {self._random.choice(list(own))})", "i")]
        calls += [
            (f"lag({by}) OVER (ORDER BY {total})", own[by]),
            (f"count(*) OVER (PARTITION BY {by})", "i"),
        ]
        if number is not None:
            calls.append((f"sum({number}) OVER (PARTITION BY {by} ORDER BY {total})", own[number]))
            calls.append((f"max({number}) OVER (ORDER BY {by})", own[number]))
        text, kind = self._random.choice(calls)
        kept = self._random.choice(list(own))
        sql = f"SELECT {kept} AS c0, {text} AS c1 FROM {item}{self._where({**own, **outer}, depth)}"
        # Which of two equal rows is the first is open, so it must not meet another window.
        if "ORDER BY" not in text and self._flip(0.7):
            most = self._random.choice([1, 2])
            sql += f" QUALIFY row_number() OVER (PARTITION BY {by} ORDER BY {total}) <= {most}"
        return Made(sql, {"c0": own[kept], "c1": kind})

    def _limited(self, depth: int, outer: dict[str, str]) -> Made:
        made = self.query(depth - 1, outer)
        order = ", ".join(f"{c}{self._random.choice(['', ' DESC', ' NULLS FIRST'])}" for c in made.columns)
        offset = " OFFSET 1" if self._flip(0.3) else ""
        return Made(
            f"SELECT * FROM ({made.sql}) ORDER BY {order} LIMIT {self._random.choice([1, 3])}{offset}",
            made.columns,
        )

    def _lateral(self, depth: int, outer: dict[str, str]) -> Made:
        item, own = self._item(depth - 1, outer)
        name = self._name()
        inner = self.query(depth - 1, own)
        theirs = {f"{name}.{c}": k for c, k in inner.columns.items()}
        select, kinds = self._select({**own, **theirs}, 0)
        kind = "CROSS JOIN LATERAL" if self._flip(0.6) else "LEFT JOIN LATERAL"
        on = "" if kind.startswith("CROSS") else " ON TRUE"
        return Made(f"SELECT {select} FROM {item} {kind} ({inner.sql}) AS {name}{on}", kinds)

    def _half_joined(self, depth: int, outer: dict[str, str]) -> Made:
        left, own = self._item(depth - 1, outer)
        right, theirs = self._item(depth - 1, outer)
        kind = self._random.choice(["SEMI JOIN", "ANTI JOIN"])
        select, kinds = self._select(own, depth)
        on = self._on(own, theirs, plain=False)
        return Made(f"SELECT {select} FROM {left} {kind} {right} ON {on}{self._where(own, depth)}", kinds)

    def _latest(self, depth: int, outer: dict[str, str]) -> Made:
        """An AS OF join; it shows of the right side only what decides which row is met."""
        left, own = self._item(depth - 1, outer)
        name, kind = self._name(), self._random.choice(["ASOF JOIN", "ASOF LEFT JOIN"])
        number = self._of_kind(own, ("i",))
        if number is None:
            return self._plain(depth, outer)
        theirs = {f"{name}.k": "i", f"{name}.x": "i"}
        operator = self._random.choice([">=", ">", "<", "<="])
        on = f"{number} = {name}.k AND {number} {operator} {name}.x"
        select, kinds = self._select({**own, **theirs}, 0)
        return Made(
            f"SELECT {select} FROM {left} {kind} {self._random.choice('ae')} AS {name} ON {on}", kinds
        )

    def _shared(self, depth: int, outer: dict[str, str]) -> Made:
        """A join that names the columns which both sides have."""
        one, other = self._random.choice([("a", "b"), ("a", "e"), ("b", "e"), ("b", "a")])
        kind = self._random.choice(["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"])
        columns = {"k": "i"}
        how = f"{kind} {other} USING (k)"
        where = self._where(columns, depth)
        if self._flip(0.5):
            return Made(
                f"SELECT k AS c0, count(*) AS c1 FROM {one} {how}{where} GROUP BY k", {"c0": "i", "c1": "i"}
            )
        return Made(f"SELECT k AS c0 FROM {one} {how}{where}", {"c0": "i"})

    def _listed(self, depth: int, outer: dict[str, str]) -> Made:
        """A row for each item of a list, or the first row of each group."""
        item, own = self._item(depth - 1, outer)
        column, kind = self._random.choice(list(own.items()))
        where = self._where({**own, **outer}, depth)
        if self._flip(0.5):
            kept = self._random.choice(list(own))
            items = f"unnest([{column}, {self._value(kind)}])"
            return Made(
                f"SELECT {kept} AS c0, {items} AS c1 FROM {item}{where}", {"c0": own[kept], "c1": kind}
            )
        order = ", ".join([column, *(f"{one} DESC" for one in own if one != column)])
        kinds = {f"c{i}": one for i, one in enumerate(own.values())}
        select = ", ".join(f"{one} AS c{i}" for i, one in enumerate(own))
        return Made(f"SELECT DISTINCT ON ({column}) {select} FROM {item}{where} ORDER BY {order}", kinds)

    def _framed(self, depth: int, outer: dict[str, str]) -> Made:
        """A window with a frame that depends on the multiset of rows only."""
        item, own = self._item(depth - 1, outer)
        by, total = self._random.choice(list(own)), ", ".join(own)
        number = self._of_kind(own, ("i",))
        calls = [(f"dense_rank() OVER (PARTITION BY {by} ORDER BY {total})", "i")]
        calls.append((f"percent_rank() OVER (ORDER BY {by})", "g"))
        if number is not None:
            frames = [
                "RANGE BETWEEN 1 PRECEDING AND 1 FOLLOWING",
                "RANGE BETWEEN CURRENT ROW AND 2 FOLLOWING",
            ]
            frames.append("GROUPS BETWEEN 1 PRECEDING AND CURRENT ROW")
            calls += [
                (f"sum({number}) OVER (PARTITION BY {by} ORDER BY {number} {frame})", "i") for frame in frames
            ]
            calls.append((f"count(*) OVER (ORDER BY {number} {self._random.choice(frames)})", "i"))
        text, kind = self._random.choice(calls)
        kept = self._random.choice(list(own))
        most = self._random.choice([1, 2])
        sql = f"SELECT {kept} AS c0, {text} AS c1 FROM {item}{self._where({**own, **outer}, depth)}"
        if self._flip(0.3):
            sql += f" QUALIFY rank() OVER (PARTITION BY {by} ORDER BY {kept}) <= {most}"
        return Made(sql, {"c0": own[kept], "c1": kind})

    def _cte(self, depth: int, outer: dict[str, str]) -> Made:
        inner, name = self.query(depth - 1), self._name()
        one, other = self._name(), self._name()
        columns = {f"{x}.{c}": k for x in (one, other) for c, k in inner.columns.items()}
        select, kinds = self._select({**columns, **outer}, depth)
        first = next(iter(inner.columns))
        join = f"{name} AS {one} LEFT JOIN {name} AS {other} ON {one}.{first} = {other}.{first}"
        sql = f"SELECT {select} FROM {join}"
        return Made(f"WITH {name} AS ({inner.sql}) {sql}", kinds)


def rows(seed: int, name: str) -> list[tuple[object, ...]]:
    """Rows of a table with nulls, duplicates, ties and NaN; the last item is the multiplicity."""
    random = Random(f"{seed} {name}")
    values = {
        "i": [None, 0, 1, 1, 2, 3],
        "f": [None, 0.5, -1.5, 0.0, float("nan"), 2.0],
        "s": [None, "p", "q", "q", "z"],
        "d": [None, "1.50", "-2.25", "66.67", "0.00"],
    }
    count = 0 if name == "e" and random.random() < 0.5 else random.randint(0, 7)
    kinds = BASE[name].values()
    return [
        (*(random.choice(values[kind]) for kind in kinds), random.choice([1, 1, 1, 2, 3]))
        for _ in range(count)
    ]
