"""What a view remembers of itself: its query, what the names in it mean, and with what it was made.

Owns the text that the state of a view keeps, and how inputs are found again: collections and columns by their
ids, since names may come to mean something else.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import blake2b

from tidelake.errors import RebuildNeeded
from tidelake.model.frontier import Frontier
from tidelake.model.time import TIME_MAX, parts
from tidelake.state.core.owned import owner_of
from tidelake.state.core.state import Owned, ShardState
from tidelake.views.plan import ViewPlan

FORMAT = 1


@dataclass(frozen=True)
class SourceColumn:
    """A column of an input, as the view was made.

    The query calls it by the `name` that it had then. Its types are those in the collection and the engine.
    """

    name: str
    id: int
    type: str
    engine_type: str


@dataclass(frozen=True)
class ViewSource:
    """An input: how the query calls it, all columns that it had, and the erasures that it knew."""

    name: str
    id: str
    columns: tuple[SourceColumn, ...]
    erasures: tuple[str, ...] = ()


@dataclass(frozen=True)
class Definition:
    """What makes a view.

    Attributes:
        engine: whose dialect that is, and who computes it, with its version.
        birth: the first time at which the view has contents.
        plan: identifies the stages: a version that makes others must not go on with the view.
        every: the grid of its times: it changes only at multiples of this, and shows the inputs as of them.
        max_lag: so far behind an input, the view no longer holds the history of that; None: no such limit.
        replaces: the id of the view whose name this one is to get, or has got.
        settings: of the engine, that change what the query means: names and values.
        together: names the views that change together with it: by one commit; "": it changes by itself.
        index: whether it is all of one collection by another key, for look-ups of other views as well.
    """

    sql: str
    engine: str
    birth: int
    sources: tuple[ViewSource, ...]
    plan: str
    every: int = 1
    max_lag: int | None = None
    dialect: str = "duckdb"
    replaces: str = ""
    settings: tuple[tuple[str, str], ...] = ()
    together: str = ""
    index: bool = False
    format: int = FORMAT

    def owned(self, view_id: str) -> Owned:
        """What the state of the view says."""
        told = asdict(self)
        for name in ("together", "index"):
            if not told[name]:
                del told[name]
        return Owned(owner_of(view_id), json.dumps(told, sort_keys=True))

    @classmethod
    def of(cls, view: str, state: ShardState) -> "Definition | None":
        """The definition in a state; None: that is no view.

        Raises:
            RebuildNeeded: another version of Tidelake made it.
        """
        if state.owned is None or state.owned.by != owner_of(state.shard_id):
            return None
        told = json.loads(state.owned.definition)
        if told["format"] != FORMAT:
            raise RebuildNeeded(
                view, f"its definition has format {told['format']}, and this version has {FORMAT}"
            )
        sources = tuple(
            ViewSource(
                one["name"],
                one["id"],
                tuple(SourceColumn(**column) for column in one["columns"]),
                tuple(one["erasures"]),
            )
            for one in told["sources"]
        )
        settings = tuple((name, value) for name, value in told.get("settings", ()))
        return cls(**{**told, "sources": sources, "settings": settings})

    @property
    def alike(self) -> tuple[object, ...]:
        """What views that change together have in common."""
        return self.together, self.every, self.dialect, self.settings

    def shown(self, upper: Frontier) -> Frontier:
        """The upper of a view whose inputs have this one: the last time of the grid holds until the next."""
        if upper.closed or self.every == 1:
            return upper
        if upper <= Frontier.of(self.birth):
            return Frontier.of(self.birth)
        return Frontier.of(last_before(upper) // self.every * self.every + self.every)

    def seen(self, upper: Frontier) -> Frontier:
        """The reverse: times of the inputs before this are in the view up to its upper."""
        return upper if upper.closed else Frontier.of(last_before(upper) + 2 - self.every)

    def as_of(self, time: int) -> int:
        """The time of the inputs that the view shows at a time. The last cell ends with all time."""
        return time if time == TIME_MAX else max(self.birth, time // self.every * self.every)

    def first_needed(self, upper: Frontier) -> Frontier:
        """From where on the next refresh of a view with this upper reads its inputs."""
        before = Frontier.of(self.birth)
        if upper <= before:
            return before
        seen = self.seen(upper)
        return before.join(seen.just_before() if not seen.closed else seen)

    def behind(self, upper: Frontier, closed: Frontier) -> int:
        """How many times of an input, closed up to there, a view with this upper has not seen.

        1, if the input is closed for good.
        """
        needed = self.first_needed(upper)
        if closed.closed or needed.closed:
            return int(closed.closed and not needed.closed)
        return max(0, last_before(closed) - parts(needed.elements[0])[0])

    def is_behind(self, needed: Frontier, upper: Frontier) -> bool:
        """Whether a view that needs history from here on is further behind an input than it may be."""
        if self.max_lag is None or upper.closed or needed.closed:
            return False
        return last_before(upper) - parts(needed.elements[0])[0] > self.max_lag

    def source(self, name: str) -> ViewSource:
        """The input that the query calls so."""
        return next(one for one in self.sources if one.name == name)

    def schema_of(self, name: str) -> Mapping[str, str] | None:
        """The columns of an input with the engine's types, by the names in the query; None: there is none."""
        found = [one for one in self.sources if one.name == name]
        return {column.name: column.engine_type for column in found[0].columns} if found else None


def last_before(frontier: Frontier) -> int:
    """The last time before a frontier that is not closed; -1: there is none."""
    return parts(frontier.elements[0])[0] - 1


def identity(plan: ViewPlan) -> str:
    """Identifies the stages of a plan."""
    return blake2b(repr(plan.stages).encode(), digest_size=16).hexdigest()


def current_names(view: str, source: ViewSource, state: ShardState) -> dict[str, str]:
    """The present names of the columns of an input, by the names in the query.

    Raises:
        RebuildNeeded: a column is gone, or has another type; or rows of the input were erased since.
    """
    fresh = [id_ for id_ in sorted(state.erasures) if id_ not in source.erasures]
    if fresh:
        raise RebuildNeeded(
            view, f"rows of {source.name!r} were erased, and what was made of them may still be in the view"
        )
    present = {column.id: column for column in state.schema.columns}
    names = {}
    for column in source.columns:
        now = present.get(column.id)
        if now is not None and str(now.type) == column.type:
            names[column.name] = now.name
    return names
