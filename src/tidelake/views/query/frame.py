"""A relation in the making: inputs, conditions between them, and what its columns are called.

Owns how names are found, and how a product with conditions becomes one join with look-ups by key; must not
know which syntax of SQL asked for it.

Within an expression, a column is a node with an *id*, such as `#7`. The id stays when stages are made; the
frame knows in which column of which input it lies now.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count as counter
from typing import Any

from sqlglot import exp

from tidelake.errors import UsageError
from tidelake.views.plan import Equal
from tidelake.views.query.stages import Stages, ref
from tidelake.views.query.texts import replaced

_ids = counter()
Expr = Any  # a tree of sqlglot's, in which columns are ids


def new_id() -> str:
    """An id for a column, used once."""
    return f"#{next(_ids)}"


def column(id_: str) -> Expr:
    """The node of an id."""
    return exp.Column(this=exp.Identifier(this=id_, quoted=True))


def id_of(node: Expr) -> str | None:
    """The id that a node is, if it is one."""
    while isinstance(node, exp.Paren):
        node = node.this
    if isinstance(node, exp.Column) and str(node.name).startswith("#") and not node.table:
        return str(node.name)
    return None


def ids(node: Expr) -> list[str]:
    """The ids in an expression, in order, each once."""
    found = (id_of(one) for one in node.find_all(exp.Column))
    return list(dict.fromkeys(one for one in found if one))


def conjuncts(node: Expr) -> Iterator[Expr]:
    """The conditions that AND joins."""
    while isinstance(node, exp.Paren):
        node = node.this
    if isinstance(node, exp.And):
        yield from conjuncts(node.this)
        yield from conjuncts(node.expression)
    else:
        yield node


def same(one: str, other: str) -> Expr:
    """The condition that two columns are not distinct."""
    return exp.NullSafeEQ(this=column(one), expression=column(other))


@dataclass(frozen=True)
class Named:
    """A column that the query can name.

    Attributes:
        table: the name of its table, in lower case; empty: none.
        name: as the query shows it.
        id: its id.
        alone: whether it may be named without its table, and is part of `*`.
    """

    table: str
    name: str
    id: str
    alone: bool = True


@dataclass
class Relation:
    """Inputs with conditions between them: a product that is not made yet.

    Attributes:
        stages: where stages are made.
        inputs: numbers of stages.
        place: where each id lies: the number of the input, and the name of its column.
        names: what can be named, in the order of `*`.
        conditions: that hold between columns.
        domain: by the id of a column of the outer query, the id of the column here that has its value.
    """

    stages: Stages
    inputs: list[int] = field(default_factory=list)
    place: dict[str, tuple[int, str]] = field(default_factory=dict)
    names: list[Named] = field(default_factory=list)
    conditions: list[Expr] = field(default_factory=list)
    domain: dict[str, str] = field(default_factory=dict)

    def copied(self) -> "Relation":
        """A frame that can be changed without changing this one."""
        return dataclasses.replace(
            self,
            inputs=[*self.inputs],
            place={**self.place},
            names=[*self.names],
            conditions=[*self.conditions],
            domain={**self.domain},
        )

    def add(self, stage: int) -> list[str]:
        """Take a stage in as a further input; returns the ids of its columns."""
        number = len(self.inputs)
        self.inputs.append(stage)
        found = []
        for one in self.stages.columns(stage):
            found.append(new_id())
            self.place[found[-1]] = (number, one.name)
        return found

    def merge(self, other: "Relation") -> None:
        """Take in all inputs of another frame. Its domain is part of this frame's."""
        offset = len(self.inputs)
        self.inputs += other.inputs
        self.place |= {id_: (number + offset, name) for id_, (number, name) in other.place.items()}
        self.names += other.names
        self.conditions += other.conditions

    def find(self, table: str, name: str) -> str | None:
        """The id of a named column.

        Raises:
            UsageError: there are two.
        """
        name, table = name.lower(), table.lower()
        found = [
            one.id
            for one in self.names
            if one.name.lower() == name and (one.table == table if table else one.alone)
        ]
        if len(set(found)) > 1:
            told = f"{table}.{name}" if table else name
            raise UsageError(f"column {told!r} is ambiguous: write the table before it")
        return found[0] if found else None

    def has_table(self, table: str) -> bool:
        """Whether a table is called so."""
        return any(one.table == table.lower() for one in self.names)

    def type_of(self, id_: str) -> str:
        """DuckDB's name of the type of a column."""
        number, name = self.place[id_]
        return self.stages.type_of(self.inputs[number], name)

    def text(self, node: Expr) -> str:
        """An expression as text for a stage over the inputs."""
        texts = {id_: ref(name, number) for id_, (number, name) in self.place.items()}
        return _text(node, texts, self.stages.analyzer.dialect)

    def fold(self, extras: Sequence[Expr] = ()) -> list[str]:
        """Make one stage of the inputs, with further expressions; returns the ids of these."""
        if len(self.inputs) != 1:
            self._product()
        found: list[str] = []
        texts: list[str] = []
        for extra in extras:
            if (id_ := id_of(extra)) is not None:
                found.append(id_)
                continue
            texts.append(self.text(extra))
            found.append(new_id())
        if not texts and not self.conditions:
            return found
        own = [ref(one.name) for one in self.stages.columns(self.inputs[0])]
        where = " AND ".join(self.text(exp.Paren(this=one)) for one in self.conditions) or None
        stage = self.stages.map(self.inputs[0], own + texts, where)
        self.replace(stage)
        rest = iter(self.stages.columns(stage)[len(own) :])
        for id_ in found:
            if id_ not in self.place:
                self.place[id_] = (0, next(rest).name)
        return found

    def distinct(self, ids_: Iterable[str]) -> int:
        """The distinct values of columns, as a stage. The relation is one stage."""
        return self.stages.distinct(
            self.stages.map(self.inputs[0], [ref(self.place[id_][1]) for id_ in ids_])
        )

    def narrow(self, ids_: Sequence[str]) -> None:
        """Go on with these columns only. The relation is one stage."""
        kept = list(dict.fromkeys(ids_))
        stage = self.stages.map(self.inputs[0], [ref(self.place[id_][1]) for id_ in kept])
        names = [one.name for one in self.stages.columns(stage)]
        self.inputs, self.place = [stage], {id_: (0, name) for id_, name in zip(kept, names, strict=True)}

    def replace(self, stage: int) -> None:
        """Go on with a stage that has the columns of the only input, in their order, and maybe more."""
        new = [one.name for one in self.stages.columns(stage)]
        moved = dict(zip([one.name for one in self.stages.columns(self.inputs[0])], new, strict=False))
        self.place = {id_: (0, moved[name]) for id_, (_, name) in self.place.items()}
        self.inputs, self.conditions = [stage], []

    def _product(self) -> None:
        if not self.inputs:
            self.add(self.stages.constant("SELECT 0"))
            return
        split = JoinParts.of(self)
        select = list(dict.fromkeys(ref(name, number) for number, name in self.place.values()))
        # An input whose columns are not used counts all the same; something must be selected.
        select = select or [ref(self.stages.columns(split.inputs[0])[0].name)]
        stage = self.stages.join(split.inputs, split.equals, split.where, select)
        self.place = {
            id_: (0, f"c{select.index(ref(name, number))}") for id_, (number, name) in self.place.items()
        }
        self.inputs, self.conditions = [stage], []


def _text(node: Expr, texts: dict[str, str], dialect: Any) -> str:
    def placed(one: Expr) -> Expr:
        id_ = id_of(one) if isinstance(one, exp.Column) else None
        return exp.Var(this=texts[id_]) if id_ is not None else one

    return str(node.copy().transform(placed).sql(dialect=dialect, comments=False))


@dataclass(frozen=True)
class JoinParts:
    """The conditions of a product, sorted by what a join does with them.

    The inputs are filtered by the conditions of each alone, with the keys as columns behind their own.
    """

    inputs: list[int]
    equals: list[Equal]
    where: str | None

    @classmethod
    def of(cls, frame: Relation) -> "JoinParts":
        """Sort the conditions of a relation, whose places are then those in the filtered inputs."""
        stages = frame.stages
        alone: dict[int, list[str]] = {number: [] for number in range(len(frame.inputs))}
        keys: dict[int, list[str]] = {number: [] for number in range(len(frame.inputs))}
        pairs: list[tuple[int, str, int, str, bool]] = []
        rest: list[str] = []
        for condition in frame.conditions:
            if isinstance(condition, exp.Boolean) and condition.this:
                continue
            where = {frame.place[id_][0] for id_ in ids(condition)}
            if len(where) == 1:
                alone[where.pop()].append(_local(frame, condition))
            elif pair := _equality(frame, condition):
                pairs.append(pair)
            else:
                rest.append(frame.text(exp.Paren(this=condition)))
        for left, left_text, right, right_text, _ in pairs:
            keys[left].append(left_text)
            keys[right].append(right_text)
        made, texts = [], []
        for number, given in enumerate(frame.inputs):
            stage = given
            own = [ref(one.name) for one in stages.columns(stage)]
            more = [key for key in dict.fromkeys(keys[number]) if key not in own]
            if more or alone[number]:
                # The columns keep their names, which are those of the places.
                stage = stages.map(stage, own + more, " AND ".join(alone[number]) or None)
            texts.append(dict(zip(own + more, [one.name for one in stages.columns(stage)], strict=True)))
            made.append(stage)
        for id_, (number, name) in frame.place.items():
            frame.place[id_] = (number, texts[number][ref(name)])
        rest = [_moved(text, texts) for text in rest]
        equals = [
            Equal(a, texts[a][left], b, texts[b][right], nulls)
            if a < b
            else Equal(b, texts[b][right], a, texts[a][left], nulls)
            for a, left, b, right, nulls in pairs
        ]
        return cls(made, list(dict.fromkeys(equals)), " AND ".join(rest) or None)


def _moved(text: str, texts: list[dict[str, str]]) -> str:
    """A text over inputs whose columns have other names now."""
    return replaced(text, lambda number, name: ref(texts[number][ref(name)], number))


def _local(frame: Relation, node: Expr) -> str:
    """An expression over one input, as text over that input alone."""
    places = {id_: frame.place[id_][1] for id_ in ids(node)}
    texts = {id_: ref(name) for id_, name in places.items()}
    return _text(exp.Paren(this=node), texts, frame.stages.analyzer.dialect)


def _equality(frame: Relation, node: Expr) -> tuple[int, str, int, str, bool] | None:
    """An equality between two inputs as a key of each: input, text, input, text, whether NULL equals NULL."""
    if not isinstance(node, exp.EQ | exp.NullSafeEQ):
        return None
    sides = []
    for side in (node.this, node.expression):
        numbers = {frame.place[id_][0] for id_ in ids(side)}
        if len(numbers) != 1:
            return None
        number = numbers.pop()
        text = _local(frame, side)[1:-1]
        type_ = frame.stages.analyzer.described(f"SELECT {text} FROM __s{frame.inputs[number]} i0")[0].type
        sides.append((number, text, type_))
    (left, left_text, left_type), (right, right_text, right_type) = sides
    common = frame.stages.common(left_type, right_type)
    if left == right or common is None:
        return None
    left_text = left_text if left_type == common else f"CAST({left_text} AS {common})"
    right_text = right_text if right_type == common else f"CAST({right_text} AS {common})"
    return left, left_text, right, right_text, isinstance(node, exp.NullSafeEQ)
