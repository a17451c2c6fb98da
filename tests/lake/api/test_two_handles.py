"""Two handles of a collection, as of two processes: each changes columns while the other has not looked.

The model keeps each row as what its columns hold, by their ids. Whatever call gives or takes rows means the
columns that have these names when it is made, whatever its handle has seen.
"""

import itertools
import tempfile
import uuid
from collections import Counter
from dataclasses import dataclass, replace

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import tidelake
from tidelake.config import Config
from tidelake.model.frontier import Frontier
from tidelake.model.query import AsOf
from tidelake.shard.runs.plan import run_task
from tidelake.shard.writing.builder import Uploader
from tidelake.shard.writing.upserter import Upserter

pytest.importorskip("polars")
VALUES = ["v", "w", "x", "y"]
INTS = [pa.int16(), pa.int32(), pa.int64()]
# Small numbers, so that a value in the wrong column is a possible value, also of a key.
NUMBERS = st.integers(0, 3)


@dataclass(frozen=True)
class Col:
    """A column: all are integers, `step` on the ladder of their types."""

    id: int
    name: str
    step: int = 0

    @property
    def field(self):
        return pa.field(self.name, INTS[self.step])


def arrow(columns):
    return pa.schema([column.field for column in columns])


def appended(c, lake, table, time):
    c.append(table)


def appended_at(c, lake, table, time):
    c.append(timed(table, time))


def compared(c, lake, table, time):
    c.compare_and_append(timed(table, time), time, time + 1)


def numbered(c, lake, table, time):
    c.writer("w").append(table)


def staged(c, lake, table, time):
    c.stage(timed(table, time))
    c.seal(time + 1)


def staged_by_number(c, lake, table, time):
    c.writer("s").stage(timed(table, time))
    c.seal(time + 1)


def staged_together(c, lake, table, time):
    with lake.transaction() as together:
        together.stage("c", timed(table, time))
    c.seal(time + 1)


def written(c, lake, table, time):
    lake.write({"c": table})


def built(c, lake, table, time):
    with c.builder() as builder:
        builder.add(timed(table, time))
        c.append(builder.finish(Frontier.of(time + 1)))


def uploaded(c, lake, table, time):
    upload = Uploader.from_bytes(c.distributed.uploader().to_bytes()).upload(as_updates(c, table, time))
    c.distributed.append_uploaded([upload], lower=time, upper=time + 1)


def upload_staged(c, lake, table, time):
    upload = c.distributed.uploader().upload(as_updates(c, table, time))
    c.distributed.stage_uploaded([upload])
    c.seal(time + 1)


def upserted(c, lake, table, time):
    c.upsert(table)


def upserted_by_number(c, lake, table, time):
    c.writer("u").upsert(table)


def upserted_together(c, lake, table, time):
    with lake.transaction() as together:
        together.upsert("c", table)


def upserted_elsewhere(c, lake, table, time):
    upserter = c.distributed.upserter(time=time)
    upload = Upserter.from_bytes(upserter.to_bytes()).upload(table.to_batches())
    c.distributed.append_uploaded([upload], lower=upserter.lower, upper=time + 1)


def upserted_from_memory(c, lake, table, time):
    with c.arrange(follow=False) as held:
        c.upsert(table, state=held)


def replaced(c, lake, table, time):
    c.replace(table)


def replaced_together(c, lake, table, time):
    with lake.transaction() as together:
        together.replace("c", table)


def replaced_elsewhere(c, lake, table, time):
    new = c.distributed.uploader().upload(as_updates(c, table, 0))
    tasks = c.distributed.replacements([new], time=time, parallelism=2)
    uploads = [task.upload()[0] for task in tasks]
    c.distributed.append_uploaded(uploads, lower=time, upper=time + 1)


ADD = [appended, appended_at, compared, numbered, staged, staged_by_number, staged_together, written, built]
ADD += [uploaded, upload_staged]
UPSERT = [upserted, upserted_by_number, upserted_together, upserted_elsewhere, upserted_from_memory]
REPLACE = [replaced, replaced_together, replaced_elsewhere]


def timed(table, time):
    return table.append_column("_time", pa.array([time] * table.num_rows, pa.int64()))


def as_updates(c, table, time):
    """The batches that workers give, which have all columns of an update in their order."""
    c.state()
    given = timed(table, time).append_column("_diff", pa.array([1] * table.num_rows, pa.int64()))
    return given.select(c.update_schema.names).cast(c.update_schema).to_batches()


class TwoHandles(RuleBasedStateMachine):
    @initialize(inline=st.booleans())
    def start(self, inline):
        url, config = f"memory://{uuid.uuid4().hex}", Config() if inline else Config(inline_part_bytes=0)
        self.lakes = [tidelake.open(url, config=config) for _ in range(3)]
        self.key = [Col(0, "a"), Col(1, "b")]
        self.value = [Col(2, "v"), Col(3, "w")]
        self.ids = itertools.count(4)
        key = pa.schema([column.field.with_nullable(False) for column in self.key])
        made = self.lakes[0].create("c", pa.schema([*key, *arrow(self.value)]), key=["a", "b"])
        # The last one looks: it is opened anew each time.
        self.handles = [made, self.lakes[1].collection("c")]
        # What the columns hold, by id, by the key.
        self.rows = {}
        self.frames, self.saved = [], None
        self.folder, self.folders = tempfile.TemporaryDirectory(), itertools.count()

    def teardown(self):
        if hasattr(self, "folder"):
            self.folder.cleanup()

    @property
    def columns(self):
        return [*self.key, *self.value]

    def either(self, data):
        at = data.draw(st.integers(0, 1), label="handle")
        return self.handles[at], self.lakes[at]

    def seen(self):
        """The rows under the names of now."""
        return Counter(self.row(held) for held in self.rows.values())

    def row(self, held):
        return tuple(sorted((column.name, held.get(column.id)) for column in self.columns))

    def counted(self, table):
        names = [column.name for column in self.columns]
        assert set(names) <= set(table.column_names)
        diffs = table["_diff"].to_pylist() if "_diff" in table.column_names else [1] * table.num_rows
        found = Counter()
        for one, diff in zip(table.select(names).to_pylist(), diffs, strict=True):
            found[tuple(sorted(one.items()))] += diff
        return found

    def opened(self):
        return self.lakes[2].collection("c")

    # Changes of columns.

    def renamed(self, old, new):
        def named(columns):
            return [replace(one, name=new) if one.name == old else one for one in columns]

        self.key, self.value = named(self.key), named(self.value)

    @rule(data=st.data())
    def swap(self, data):
        c, _ = self.either(data)
        one, other = data.draw(st.permutations([column.name for column in self.columns]))[:2]
        for old, new in ((one, "tmp"), (other, one), ("tmp", other)):
            c.evolve(rename={old: new})
            self.renamed(old, new)

    @rule(data=st.data())
    def rename(self, data):
        c, _ = self.either(data)
        free = sorted({*VALUES, "a", "b", "z"} - {column.name for column in self.columns})
        old = data.draw(st.sampled_from([column.name for column in self.columns]))
        new = data.draw(st.sampled_from(free))
        c.evolve(rename={old: new})
        self.renamed(old, new)

    def evolve(self, c, drop=()):
        key = pa.schema([column.field.with_nullable(False) for column in self.key])
        c.evolve(pa.schema([*key, *arrow(self.value)]), drop=list(drop))

    @rule(data=st.data())
    def add(self, data):
        free = sorted({*VALUES} - {column.name for column in self.columns})
        if free and len(self.value) < 4:
            at = data.draw(st.integers(0, len(self.value)))
            self.value.insert(at, Col(next(self.ids), data.draw(st.sampled_from(free))))
            self.evolve(self.either(data)[0])

    @precondition(lambda self: len(self.value) > 1)
    @rule(data=st.data(), again=st.booleans())
    def drop(self, data, again):
        c, _ = self.either(data)
        at = data.draw(st.integers(0, len(self.value) - 1))
        gone = self.value.pop(at)
        self.evolve(c, [gone.name])
        if again:
            self.value.insert(at, Col(next(self.ids), gone.name, gone.step))
            self.evolve(self.either(data)[0])

    @rule(data=st.data())
    def widen(self, data):
        column = data.draw(st.sampled_from(self.columns))
        if column.step + 1 < len(INTS):
            wide = replace(column, step=column.step + 1)
            self.key = [wide if one == column else one for one in self.key]
            self.value = [wide if one == column else one for one in self.value]
            self.evolve(self.either(data)[0])

    # Writes.

    def drawn(self, data, keys, least=1):
        """Rows of some of the keys, and their table under the names of now."""
        chosen = data.draw(st.lists(st.sampled_from(sorted(keys)), min_size=least, max_size=3, unique=True))
        rows = {}
        for key in chosen:
            values = {column.id: data.draw(NUMBERS) for column in self.value}
            rows[key] = dict(zip([column.id for column in self.key], key, strict=True)) | values
        fields = [pa.field(column.name, INTS[column.step]) for column in self.columns]
        given = [{column.name: held[column.id] for column in self.columns} for held in rows.values()]
        return rows, pa.Table.from_pylist(given, pa.schema(fields))

    def keys(self):
        return set(itertools.product(range(3), range(3)))

    def time(self):
        (time,) = self.opened().upper.elements
        return time

    @precondition(lambda self: len(self.rows) < 9)
    @rule(data=st.data(), how=st.sampled_from(ADD))
    def write(self, data, how):
        rows, table = self.drawn(data, self.keys() - {*self.rows})
        how(*self.either(data), table, self.time())
        self.rows |= rows

    @rule(data=st.data(), how=st.sampled_from(UPSERT))
    def upsert(self, data, how):
        rows, table = self.drawn(data, self.keys())
        how(*self.either(data), table, self.time())
        self.rows |= rows

    @rule(data=st.data(), how=st.sampled_from(REPLACE))
    def replace(self, data, how):
        rows, table = self.drawn(data, self.keys())
        how(*self.either(data), table, self.time())
        self.rows = rows

    @precondition(lambda self: self.rows)
    @rule(data=st.data(), form=st.sampled_from(["tuple", "dict", "table"]))
    def erase(self, data, form):
        key = data.draw(st.sampled_from(sorted(self.rows)))
        c, _ = self.either(data)
        c.erase(self.as_key(key, form), reason="r")
        del self.rows[key]
        for _, _, kept in self.frames:
            kept.pop(key, None)

    @precondition(lambda self: self.rows)
    @rule(data=st.data(), by_where=st.booleans())
    def delete(self, data, by_where):
        key = data.draw(st.sampled_from(sorted(self.rows)))
        c, _ = self.either(data)
        if by_where:
            named = zip([column.name for column in self.key], key, strict=True)
            c.delete(where=" AND ".join(f"{name} = {value}" for name, value in named))
        else:
            c.delete(self.as_key(key, "table"))
        del self.rows[key]

    def as_key(self, key, form):
        named = dict(zip([column.name for column in self.key], key, strict=True))
        # The order of a dict and of a table's columns says nothing.
        turned = dict(reversed(named.items()))
        return {"tuple": [key], "dict": [turned], "table": pa.Table.from_pylist([turned])}[form]

    @rule(data=st.data())
    def merge(self, data):
        self.either(data)[0].merge()

    # Reads.

    @precondition(lambda self: self.rows)
    @rule(
        data=st.data(),
        how=st.sampled_from(["snapshot", "arrow", "split", "plan", "changes", "sql", "arrange"]),
    )
    def read(self, data, how):
        c, lake = self.either(data)
        match how:
            case "snapshot":
                found = c.snapshot().read_all()
            case "arrow":
                found = c.to_arrow()
            case "split":
                found = pa.concat_tables(one.read_all() for one in c.distributed.split_snapshot(2))
            case "plan":
                plan = c.distributed.plan(AsOf(self.time() - 1), 2)
                found = pa.Table.from_batches(
                    (batch for task in plan.tasks for batch in run_task(task)), plan.schema
                )
            case "changes":
                found = c.updates(0, c.upper).read_all()
            case "sql":
                found = lake.sql("SELECT * FROM c").read_all()
            case "arrange":
                with c.arrange(follow=False) as held:
                    found = held.range()
        assert +self.counted(found) == self.seen()

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def look_up(self, data):
        key = data.draw(st.sampled_from(sorted(self.rows)))
        c, _ = self.either(data)
        wanted = Counter([self.row(self.rows[key])])
        assert self.counted(c.lookup(self.as_key(key, "table"))) == wanted
        for form in ("tuple", "dict"):
            c, _ = self.either(data)
            (asked,) = self.as_key(key, form)
            assert +self.counted(c.history(asked)) == wanted

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def frame(self, data):
        """A frame is of the time and of the columns of its call."""
        c, _ = self.either(data)
        self.frames.append(
            (c.to_polars(), self.columns, {key: dict(held) for key, held in self.rows.items()})
        )

    @precondition(lambda self: self.frames)
    @rule(data=st.data())
    def use_frame(self, data):
        frame, columns, kept = data.draw(st.sampled_from(self.frames))
        live = {column.id: column for column in self.columns}
        if any(column.id not in live or live[column.id].step != column.step for column in columns):
            with pytest.raises(Exception, match=r"was dropped since|was widened"):
                frame.collect()
            return
        wanted = Counter(tuple(held.get(column.id) for column in columns) for held in kept.values())
        assert frame.collect_schema().names() == [column.name for column in columns]
        assert Counter(frame.collect().rows()) == wanted

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def save(self, data):
        with self.either(data)[0].arrange(follow=False) as held:
            self.saved = f"{self.folder.name}/{next(self.folders)}"
            held.save(self.saved)

    @precondition(lambda self: self.rows and self.saved)
    @rule(data=st.data())
    def restore(self, data):
        with self.either(data)[0].arrange(follow=False, restore=self.saved) as held:
            assert self.counted(held.range()) == self.seen()

    @invariant()
    def all_is_there(self):
        if getattr(self, "rows", None):
            c = self.opened()
            assert c.schema.names == [column.name for column in self.columns]
            assert self.counted(c.snapshot().read_all()) == self.seen()


def values_swapped(c):
    for old, new in (("v", "tmp"), ("w", "v"), ("tmp", "w")):
        c.evolve(rename={old: new})


def keys_swapped(c):
    for old, new in (("a", "tmp"), ("b", "a"), ("tmp", "b")):
        c.evolve(rename={old: new})


def key_and_value_swapped(c):
    for old, new in (("a", "tmp"), ("v", "a"), ("tmp", "v")):
        c.evolve(rename={old: new})


def added_again(c):
    whole = c.schema
    c.evolve(whole.remove(whole.get_field_index("v")), drop=["v"])
    c.evolve(whole)


CHANGES = [values_swapped, keys_swapped, key_and_value_swapped, added_again]


@pytest.fixture
def pair():
    """The lakes of two handles of a collection, and both handles."""
    url = f"memory://{uuid.uuid4().hex}"
    one, two = tidelake.open(url), tidelake.open(url)
    key = [pa.field(name, pa.int64(), nullable=False) for name in "ab"]
    c = one.create("c", pa.schema([*key, ("v", pa.int64()), ("w", pa.int64())]), key=["a", "b"])
    c.append(pa.table({"a": [1], "b": [2], "v": [3], "w": [4]}))
    return c, two, two.collection("c")


@pytest.mark.promise(
    "Whatever call gives or takes rows or keys means the columns that have these names when it is "
    "made, whatever its handle has seen; a frame, and a restored arrangement, never show another "
    "column",
    rule=(
        "a `Shard` has no schema to give: they are of a `Version`, and a command that writes rows or "
        "notes keys is refused where they changed (`as_now`, `schema_id`); `ReadOptions.complete`"
    ),
    also=["lake/api/test_two_handles.py"],
)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("how", ADD + UPSERT + REPLACE)
def test_each_write_means_the_columns_of_now(pair, how, change):
    c, lake, stale = pair
    change(c)
    (time,) = c.upper.elements
    how(stale, lake, pa.table({"a": [5], "b": [6], "v": [7], "w": [8]}), time)
    rows = c.to_arrow(where="a = 5").to_pylist()
    assert rows == [{"a": 5, "b": 6, "v": 7, "w": 8}]


@pytest.mark.parametrize("columns", [None, ["w"]])
@pytest.mark.parametrize("change", CHANGES)
def test_a_restored_arrangement_has_the_columns_of_now(pair, tmp_path, change, columns):
    c, _, stale = pair
    asked = {"follow": False, "columns": columns, "where": "v = 3"}
    with stale.arrange(**asked) as held:
        held.save(tmp_path / "saved")
    change(c)
    names = [*c.key, *(columns or ["v", "w"])]
    names = [name for name in c.schema.names if name in names]
    for handle in (stale, c):
        with handle.arrange(**asked, restore=tmp_path / "saved") as held:
            found = held.range()
        assert found.select(names).to_pylist() == c.to_arrow(columns=names, where="v = 3").to_pylist()


class TestTwoHandles(TwoHandles.TestCase):
    settings = settings(max_examples=15, stateful_step_count=12)


@pytest.mark.full
class TestTwoHandlesAtLength(TwoHandles.TestCase):
    settings = settings(max_examples=200, stateful_step_count=30)
