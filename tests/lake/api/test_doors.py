"""The door fuzz: every public method of every handle, with every odd value for each argument.

Only errors of Tidelake come out, and a call that is refused changes nothing. Handles are found by their base
class (`Handle`), methods and arguments by their signatures: a new one is tried without a line here, or the
test asks for a value that it can be called with.
"""

import datetime as dt
import decimal
import importlib
import inspect
import pathlib
import pkgutil
import random
import signal
import traceback
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import settings

import tidelake
from tidelake.arrangement.arrangement import Arrangement
from tidelake.arrangement.follow.follow import FollowedArrangement
from tidelake.data.answer.rows import Rows
from tidelake.errors import TidelakeError
from tidelake.handle import Handle
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.distributed import Distributed
from tidelake.lake.api.lake import Lake
from tidelake.lake.api.readers import CollectionCriticalHold, CollectionReader
from tidelake.lake.api.upkeep import Upkeep
from tidelake.lake.api.writer import Writer
from tidelake.lake.groups.groupwriter import GroupWriter
from tidelake.lake.groups.transactions import Transaction
from tidelake.shard.writing.builder import BatchBuilder

pandas = pytest.importorskip("pandas")
polars = pytest.importorskip("polars")

SCHEMA = pa.schema([("id", pa.int64()), ("s", pa.string()), ("n", pa.int64())])
ROWS = pa.table({"id": [1, 2], "s": ["a", None], "n": [None, 7]}, schema=SCHEMA)
SURROGATE = "\ud800"


class Raising:
    """Everything that is asked of it fails."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def __repr__(self) -> str:
        return "Raising()"


def _odd() -> Iterator[tuple[str, Callable[[], Any]]]:
    values: list[Any] = [
        None, True, -1, 0, 2**31, 2**63, 10**30, 1.5, float("nan"), float("inf"), 1j, decimal.Decimal("1.5"),
        "", " ", "id", "a\0b", SURROGATE, "x" * 300, "x" * 100_000, "[" * 100_000, "1", "now", "2024-02-31",
        "id = 1", "DROP TABLE c", "../x", "é", b"x", b"", bytearray(b"x"),
        [], [1], [None], ["id"], [SURROGATE], ["id", "id"], [[1]], (), (1,), (1, 2), {}, {"id": 1},
        {"id": "s"}, {1: 2}, {SURROGATE: "s"}, {"id": None}, set(), {1}, range(3), object(), Raising(),
        int, len, ...,
        Exception("x"),
        dt.datetime(2024, 1, 1),  # noqa: DTZ001
        dt.datetime(2024, 1, 1, tzinfo=dt.UTC), dt.date(2024, 1, 1), dt.time(1),
        dt.timedelta(days=-1), dt.timedelta(days=10**6), pathlib.Path("p"), uuid.UUID(int=1),
        np.int64(3), np.float32(1.5), np.datetime64("NaT"), np.timedelta64(1, "D"), np.array([1, 2]),
        np.array("x"),
        pandas.NaT, pandas.NA, pandas.Timestamp(1), pandas.Series([1, 2]), pandas.DataFrame({"id": [1]}),
        pandas.DataFrame({"id": [1, 1], "s": ["a", b"b"]}), pandas.DataFrame({"id": [10**30]}),
        pandas.DataFrame({SURROGATE: [1]}), pandas.DataFrame({1: [2]}),
        pandas.DataFrame([[1, 2]], columns=["id", "id"]),
        pandas.DataFrame({"id": pandas.Categorical([1, 2])}), pandas.DataFrame({"id": [1j]}),
        pandas.DataFrame({"id": [1], "s": [SURROGATE], "n": [1]}),
        pandas.DataFrame({"id": pandas.period_range("2024", periods=2), "s": ["a", "b"], "n": [1, 2]}),
        polars.DataFrame({"id": [1], "s": ["a"], "n": [1]}, schema_overrides={"s": polars.Categorical}),
        polars.DataFrame({"id": [1]}, schema={"id": polars.Int128}), polars.LazyFrame({"id": [1]}),
        polars.Series([1]),
        polars.DataFrame({"id": [object()]}), ROWS, ROWS.slice(0, 0), ROWS.select([]), ROWS.schema,
        ROWS.column(0), ROWS.to_batches()[0], ROWS.append_column("_time", pa.array([-1, 2])),
        ROWS.append_column("_diff", pa.array([0, 2])), ROWS.append_column("x", pa.array([{"a": 1}, None])),
        ROWS.set_column(1, "s", pa.array([1, 2])), pa.table({"id": pa.array([1, 2], pa.decimal128(5, 0))}),
        pa.table({"id": pa.array(["a"])}), pa.table({"id": pa.nulls(2)}),
        pa.table([pa.array([1]), pa.array([2])], ["id", "id"]), pa.int64(), pa.scalar(1), pa.scalar(None),
        pa.table({"id": pa.array(["a", "b"]).dictionary_encode()}), tidelake.Frontier.of(3),
        tidelake.Frontier(()),
    ]  # fmt: skip
    for number, value in enumerate(values):
        yield f"{number}-{_text(value)}", lambda value=value: value
    yield "generator", lambda: (i for i in range(3))
    yield "reader", ROWS.to_reader


def _text(value: object) -> str:
    return ascii(value)[:40].replace("\n", " ")


ODD = dict(_odd())


class World:
    """One lake with two collections, and what is in it."""

    def __init__(self) -> None:
        self.lake = lake = tidelake.open(f"memory://{uuid.uuid4().hex}")
        self.rows = lake.create("c", SCHEMA, key=["id"])
        lake.create("d", SCHEMA, key=["id"])
        self.rows.append(ROWS)
        self.before = self.contents()

    def contents(self) -> object:
        """What a refused call must leave as it is."""
        with tidelake.open(self.lake.url) as lake:
            found = {name: lake.collection(name) for name in lake.list()}
            return {name: (one.id, one.schema, one.upper, _rows(one)) for name, one in found.items()}

    def close(self) -> None:
        self.lake.close()


def _rows(rows: Collection) -> object:
    state = rows.state()
    return None if state.upper == state.minimum else rows.to_arrow().to_pylist()


def _indexed() -> Arrangement:
    made = Arrangement.create(SCHEMA, key=["id"])
    made.append(ROWS.append_column("_time", pa.array([0, 0])).append_column("_diff", pa.array([1, 1])))
    made.append(ROWS.slice(0, 0).append_column("_time", pa.array([], pa.int64())))
    return made


MAKERS: dict[type, Callable[[World], Any]] = {
    Lake: lambda world: world.lake,
    Collection: lambda world: world.rows,
    Distributed: lambda world: world.rows.distributed,
    CollectionReader: lambda world: world.rows.reader("r"),
    CollectionCriticalHold: lambda world: world.rows.critical_hold("h"),
    Writer: lambda world: world.rows.writer("w"),
    GroupWriter: lambda world: world.lake.group_writer("d", "g"),
    Transaction: lambda world: world.lake.transaction(),
    Arrangement: lambda world: _indexed(),
    FollowedArrangement: lambda world: world.rows.arrange(),
    Rows: lambda world: world.rows.snapshot(),
    BatchBuilder: lambda world: world.rows.builder(),
    Upkeep: lambda world: world.lake.upkeep(["c"]),
}
# Handles that users do not meet by themselves: parts of the others.
INSIDE = {"CollectionHandle", "LakeHandle", "_Numbered", "Follower"}
FUNCTIONS = ("open", "arrangement_reference", "top_n", "bottom_n", "last_n")

UPDATES = ROWS.append_column("_time", pa.array([5, 5]))
GOOD: dict[str, Callable[[World], Any]] = {
    "updates": lambda world: ROWS,
    "table": lambda world: ROWS,
    "keys": lambda world: ROWS.select(["id"]),
    "key": lambda world: 1,
    "text": lambda world: "SELECT * FROM c",
    "sql": lambda world: "SELECT id, s FROM c",
    "name": lambda world: "c",
    "names": lambda world: ["c"],
    "source": lambda world: "c",
    "old": lambda world: "c",
    "new": lambda world: "e",
    "a": lambda world: "c",
    "b": lambda world: "d",
    "id_": lambda world: world.rows.id,
    "register": lambda world: "d",
    "schema": lambda world: SCHEMA,
    "collection": lambda world: world.rows,
    "since": lambda world: 0,
    "frontiers": lambda world: {"c": 0},
    "uppers": lambda world: {"c": 5},
    "upper": lambda world: 5,
    "lower": lambda world: 0,
    "after": lambda world: 0,
    "through": lambda world: 0,
    "as_of": lambda world: 0,
    "seqno": lambda world: 1,
    "reason": lambda world: "r",
    "purpose": lambda world: "p",
    "window": lambda world: 5,
    "n": lambda world: 2,
    "parallelism": lambda world: 2,
    "expected_token": lambda world: "",
    "token": lambda world: "t",
    "asked": lambda world: None,
    "plans": lambda world: [],
    "hold_for": lambda world: "1m",
    "offered": lambda world: [],
    "uploads": lambda world: [],
    "data": lambda world: b"",
    "predicate": lambda world: pc.field("id") > 0,
    "rule": lambda world: pc.field("n") > 0,
    "path": lambda world: "place",
    "to": lambda world: "target",
    "url": lambda world: world.lake.url,
    "columns": lambda world: ["id"],
    "by": lambda world: "n",
    "hold": lambda world: None,
    "uploader": lambda world: world.rows.distributed.uploader(),
    "sequence": lambda world: 1,
    "owner": lambda world: "o",
    "time": lambda world: 5,
    "spec": lambda world: world.rows.distributed.uploader().spec,
}
# Good values where a name means something else.
HERE: dict[str, Callable[[World], Any]] = {
    "Lake.create.name": lambda world: "e",
    "Lake.create.key": lambda world: ["id"],
    "Lake.fork.name": lambda world: "e",
    "Lake.ingest.into": lambda world: "c",
    "Lake.ingest.source": lambda world: [],
    "Lake.view.name": lambda world: "e",
    "Lake.index.by": lambda world: ["n"],
    "Lake.rename_all.names": lambda world: {"c": "e"},
    "GroupWriter.write.updates": lambda world: {"c": ROWS},
    "GroupWriter.stage.updates": lambda world: {"c": UPDATES},
    "Lake.write.updates": lambda world: {"c": ROWS},
    "Lake.stage.updates": lambda world: {"c": UPDATES},
    "Collection.stage.updates": lambda world: UPDATES,
    "Collection.compare_and_append.updates": lambda world: UPDATES,
    "Collection.compare_and_append.lower": lambda world: 1,
    "Collection.compare_and_append.upper": lambda world: 6,
    "CollectionCriticalHold.compare_and_downgrade_since.new": lambda world: ("t", 0),
    "Arrangement.create.key": lambda world: ["id"],
    "FollowedArrangement.create.key": lambda world: ["id"],
}
# Not values of users: the clock and the threads of a test, and what calls the caller back.
NO_VALUES = {"env", "workers", "progress", "damaged", "connection", "options", "config"}
# One waits; the others make an `Arrangement`, and are tried there.
NOT_TRIED = {"Upkeep.wait", "FollowedArrangement.create", "FollowedArrangement.restore"}


class Door:
    """A public method or function, and one of its arguments."""

    def __init__(self, kind: type | None, name: str, argument: str) -> None:
        self.kind, self.name, self.argument = kind, name, argument

    @property
    def path(self) -> str:
        return f"{'tidelake' if self.kind is None else self.kind.__name__}.{self.name}"

    def __str__(self) -> str:
        return f"{self.path}({self.argument})"

    def call(self, world: World, value: object) -> object:
        """Make the call, with good values for all other arguments that it needs."""
        handle = tidelake if self.kind is None else MAKERS[self.kind](world)
        method = getattr(handle, self.name)
        given: dict[str, Any] = {}
        after: list[Any] = []
        for name, parameter in inspect.signature(method).parameters.items():
            if name == self.argument:
                given[name] = value
            elif parameter.default is parameter.empty and parameter.kind not in (
                parameter.VAR_KEYWORD,
                parameter.VAR_POSITIONAL,
            ):
                given[name] = self.good(name)(world)
        try:
            if parameter_kind(method, self.argument) is inspect.Parameter.VAR_POSITIONAL:
                del given[self.argument]
                after = [value]
            found = method(*given.values(), *after) if after else method(**given)
            return _touched(found)
        finally:
            if self.kind not in (None, Lake, Collection, Distributed):
                _closed(handle)

    def good(self, name: str) -> Callable[[World], Any]:
        found = HERE.get(f"{self.path}.{name}") or GOOD.get(name)
        assert found is not None, f"give a good value for {name!r} of {self.path}, in HERE or GOOD"
        return found


def parameter_kind(method: Any, name: str) -> object:
    return inspect.signature(method).parameters[name].kind


def _touched(found: object) -> object:
    """Let what a call gave do its work: rows are read, and handles closed."""
    if isinstance(found, Rows):
        found.read_all()
    elif isinstance(found, Lake | Arrangement | Upkeep | BatchBuilder | CollectionReader):
        _closed(found)
    return found


def _closed(handle: Any) -> None:
    for name in ("abort", "close", "stop"):
        if hasattr(handle, name):
            with suppress(TidelakeError):
                getattr(handle, name)()
            return


def _doors() -> Iterator[Door]:
    for name in FUNCTIONS:
        yield from _arguments(None, name, getattr(tidelake, name))
    for kind in MAKERS:
        for name in sorted(dir(kind)):
            member = inspect.getattr_static(kind, name)
            if name.startswith("_") or isinstance(member, property):
                continue
            if f"{kind.__name__}.{name}" not in NOT_TRIED:
                yield from _arguments(kind, name, getattr(kind, name))


def _arguments(kind: type | None, name: str, method: Any) -> Iterator[Door]:
    for argument, parameter in inspect.signature(method).parameters.items():
        if argument != "self" and argument not in NO_VALUES and parameter.kind is not parameter.VAR_KEYWORD:
            yield Door(kind, name, argument)


DOORS = list(_doors())


def test_every_handle_is_tried():
    for module in pkgutil.walk_packages(tidelake.__path__, "tidelake."):
        if not module.name.startswith(
            ("tidelake.spark", "tidelake.cli", "tidelake.tables", "tidelake.exporters")
        ):
            importlib.import_module(module.name)
    leaves = {kind.__name__ for kind in _below(Handle) if kind.__module__.startswith("tidelake.")}
    parts = {base.__name__ for kind in MAKERS for base in kind.__mro__}
    assert leaves - parts - INSIDE == set()


def _below(kind: type) -> Iterator[type]:
    for one in kind.__subclasses__():
        yield one
        yield from _below(one)


def test_every_argument_that_is_needed_has_a_good_value():
    for door in DOORS:
        if _needed(door):
            assert door.good(door.argument) is not None


def _needed(door: Door) -> bool:
    method = getattr(door.kind or tidelake, door.name)
    return _is_needed(inspect.signature(method).parameters[door.argument])


def _is_needed(parameter: inspect.Parameter) -> bool:
    several = (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    return parameter.default is parameter.empty and parameter.kind not in several


@pytest.mark.promise(
    "Whatever a public method is given, only errors of Tidelake come out, in bounded time, and a "
    "refused call changes no contents",
    rule="`handle.py`",
)
@pytest.mark.grows
def test_only_our_own_errors_come_out_and_a_refused_call_changes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    every = [(door, name) for door in DOORS for name in ODD if not _waits(door, name)]
    few = {"fast": 50, "full": 6_000, "soak": len(every)}[settings.get_current_profile_name()]
    wrong: list[str] = []
    world = World()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for door, name in random.sample(every, few):
            outcome = _tried(world, door, name, wrong)
            if outcome != "refused" or world.contents() != world.before:
                if outcome == "refused":
                    wrong.append(f"{door} with {name}: refused, and changed something")
                world.close()
                world = World()
    world.close()
    assert not wrong, "\n".join(wrong)


def _waits(door: Door, name: str) -> bool:
    """Whether a call does as it is told, and waits."""
    value = ODD[name]()
    is_long = isinstance(value, int | float | decimal.Decimal) and value > 1
    return door.argument in ("timeout_s", "poll_s") and is_long


def _tried(world: World, door: Door, name: str, wrong: list[str]) -> str:
    def late(*_: object) -> None:
        raise TimeoutError(f"{door} with {name} takes too long")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(60)
    try:
        door.call(world, ODD[name]())
    except TidelakeError as error:
        if len(str(error)) > 5_000:
            wrong.append(f"{door} with {name}: a message of {len(str(error)):,} characters")
        return "refused"
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = ascii(f"{type(error).__name__}: {error}")[:160]
        wrong.append(f"{door} with {name}: {text} at {where.filename.rpartition('/')[2]}:{where.lineno}")
        return "raised"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return "taken"
