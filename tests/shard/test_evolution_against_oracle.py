"""Random histories with changes of the schema, several handles and old batches, against the oracle.

The oracle keeps each row as what its columns held, by column id, and projects when it is asked.
"""

import uuid
from dataclasses import dataclass, replace
from decimal import Decimal

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import inside
import tidelake
from tidelake.config import Config
from tidelake.errors import IncompatibleSchema, InvalidUpdates
from tidelake.model.frontier import Frontier
from tidelake.model.query import AsOf
from tidelake.model.time import TimeDomain
from tidelake.shard.runs import plan
from tidelake.state.core.invariants import check_state
from tidelake.testing import tables
from tidelake.testing.oracle import Oracle, canonical
from tiers import examples

DOMAIN = TimeDomain("counter")
# Types, each one wider than those before it, and values that all of them hold.
LADDERS = {
    "int": ([pa.int8(), pa.int16(), pa.int64()], [-1, 0, 1, None]),
    "uint": ([pa.uint8(), pa.uint32(), pa.int64()], [0, 1, 2, None]),
    "float": ([pa.float32(), pa.float64()], [-1.5, 0.0, 0.5, float("nan"), None]),
    "decimal": (
        [pa.decimal128(5, 2), pa.decimal128(9, 2), pa.decimal256(40, 2)],
        [Decimal("1.25"), Decimal("-2.00")],
    ),
    "text": ([pa.string()], ["", "a", "b", None]),
    "list": ([pa.list_(pa.int8())], [[], [1], [1, 2], None]),
}
KINDS = sorted(LADDERS)
KEYS = ["int", "float", "decimal", "text"]
NAMES = ["a", "b", "c"]
CONFIGS = (
    Config(part_target_bytes=1024, row_group_rows=2, merge_chunk_rows=16, fold_rows=1, rollup_bytes_min=2048),
    Config(
        part_target_bytes=1024, row_group_rows=2, merge_chunk_rows=16, slice_rows=3, rollup_bytes_min=2048
    ),
    Config(
        part_target_bytes=1024,
        row_group_rows=2,
        merge_chunk_rows=16,
        fold_rows=1,
        inline_part_bytes=0,
        merge_budget_s=0.0,
    ),
    Config(),
)


@pytest.mark.promise(
    "After any history of schema changes, appends by handles of any age, old batches and merges, "
    "reads match a model that keeps rows by column ids",
    rule="`data/kernel/project.py`, `shard/runs/read.py`",
    also=["shard/test_evolution_against_oracle.py"],
)
@pytest.mark.promise(
    "A renamed column keeps its values, at all times and in all ways of reading; a name that it "
    "leaves shows none of them, and no table with an old name is written into another column",
    rule="ids of columns; `schema-evolves` with the stored renames; `append` (`as_now`)",
    also=[
        "shard/test_evolution_against_oracle.py",
        "lake/api/test_evolve.py::test_a_renamed_column_keeps_its_values_and_its_old_name_shows_none_of_them",
        "lake/api/test_evolve.py::test_an_old_schema_has_the_old_names",
        "lake/api/test_evolve.py::test_a_copy_has_the_new_names",
        "lake/api/test_evolve.py::test_tables_with_an_old_name_are_refused_also_by_a_handle_from_before",
    ],
)
@dataclass(frozen=True)
class Col:
    """A column as the oracle knows it: `step` on the ladder of its kind."""

    id: int
    name: str
    kind: str
    step: int

    @property
    def type(self):
        return LADDERS[self.kind][0][self.step]

    @property
    def field(self):
        return pa.field(self.name, self.type)


def arrow(columns):
    return pa.schema([column.field for column in columns])


def table(columns, updates):
    """Updates `(values by name, time, diff)` as a table of these columns."""
    rows = [(tuple(row[c.name] for c in columns), time, diff) for row, time, diff in updates]
    return tables.table(rows, DOMAIN, arrow(columns))


class Evolving(RuleBasedStateMachine):
    @initialize(config=st.sampled_from(CONFIGS), key=st.sampled_from(KEYS), first=st.sampled_from(KINDS))
    def start(self, config, key, first):
        plan._TASK_BYTES_MIN = 1
        self.url, self.config = f"memory://{uuid.uuid4().hex}", config
        columns = (Col(0, "k", key, 0), Col(1, "a", first, 0))
        # All schemas so far, the key column first.
        self.versions = [columns]
        self.unused = 2
        lake = tidelake.open(self.url, config=config)
        self.handles = [lake.create("c", arrow(columns), key=["k"])]
        self.oracle = Oracle(Frontier.of(0), Frontier.of(0))
        self.built = []

    def teardown(self):
        plan._TASK_BYTES_MIN = 1024 * 1024

    @property
    def now(self):
        return self.versions[-1]

    @property
    def upper(self):
        return self.oracle.upper.elements[0]

    def handle(self, data):
        return data.draw(st.sampled_from(self.handles), label="handle")

    @rule()
    def open_another_handle(self):
        if len(self.handles) < 4:
            self.handles.append(tidelake.open(self.url, config=self.config).collection("c"))

    def wanted(self, data):
        """A schema that may follow: columns dropped, widened, renamed and added, anywhere; and new names."""
        key, *values = self.now
        made, renamed = [], {}
        for column in (key, *values):
            if column is not key and data.draw(st.integers(0, 3)) == 0:
                continue
            steps = len(LADDERS[column.kind][0])
            uses = column.step + data.draw(st.integers(0, min(1, steps - 1 - column.step)))
            free = sorted({*NAMES, "k", "l"} - {c.name for c in self.now} - {*renamed.values()})
            name = column.name
            if free and data.draw(st.integers(0, 3)) == 0:
                name = renamed[column.name] = data.draw(st.sampled_from(free))
            made.append(Col(column.id, name, column.kind, uses))
        # A name that is dropped in this step cannot come back in it; one that a rename has freed can.
        taken = {c.name for c in (*self.now, *made)} - {*renamed}
        for name in NAMES:
            if name not in taken and data.draw(st.integers(0, 2)) == 0:
                at = data.draw(st.integers(1, len(made)))
                made.insert(at, Col(-1, name, data.draw(st.sampled_from(KINDS)), 0))
        return tuple(made), renamed

    @rule(data=st.data())
    def evolve(self, data):
        wanted, renamed = self.wanted(data)
        c = self.handle(data)
        asked = arrow(wanted)
        drop = sorted(x.name for x in self.now if x.id not in {y.id for y in wanted})
        how = {"key": [wanted[0].name], "rename": renamed}
        if drop:
            with pytest.raises(IncompatibleSchema, match="is not in the new schema"):
                c.evolve(asked, drop=drop[1:], **how)
        id_ = c.evolve(asked, drop=drop, **how)
        if wanted != self.now:
            numbered = []
            for column in wanted:
                fresh = column.id == -1
                numbered.append(replace(column, id=self.unused) if fresh else column)
                self.unused += fresh
            self.versions.append(tuple(numbered))
        assert id_ == len(self.versions) - 1
        assert c.schema == asked

    def drawn(self, data, columns):
        """Updates at the upper or one after it, of values that every type of a ladder holds."""
        row = st.fixed_dictionaries({c.name: st.sampled_from(LADDERS[c.kind][1]) for c in columns})
        time = st.integers(self.upper, self.upper + 1)
        update = st.tuples(row, time, st.sampled_from((1, 1, 1, -1, 2, -2)))
        return data.draw(st.lists(update, max_size=8))

    def record(self, updates, columns, upper):
        """Keep what the columns of the oracle hold, by id."""
        ids = {c.name: c.id for c in columns}
        kept = [
            (tuple((ids[name], value) for name, value in row.items()), time, diff)
            for row, time, diff in updates
        ]
        self.oracle.append(kept, Frontier.of(upper))

    @rule(data=st.data())
    def append(self, data):
        """A table of any shape that there was, by a handle that may know an older schema."""
        shape = data.draw(st.sampled_from(self.versions))
        c, updates = self.handle(data), self.drawn(data, shape)
        end = self.upper + 2
        now = {x.name: x for x in self.now}
        first = {x.id for x in self.versions[0]}
        fits = all(x.name in now and now[x.name].kind == x.kind for x in shape) and all(
            name in {x.name for x in shape} or x.id not in first for name, x in now.items()
        )
        given = table(shape, updates)
        kinds_fit = all(x.name not in now or now[x.name].kind == x.kind for x in shape)
        if not kinds_fit:
            # The name came back with another type, into which some tables can be cast all the same.
            return
        if any(x.name in now and now[x.name].step < x.step for x in shape):
            return
        if fits:
            c.compare_and_append(given, self.upper, end)
            self.record(updates, self.now, end)
        elif updates:  # a table without rows fits, if the handle has not seen the newer schema
            with pytest.raises(InvalidUpdates, match=r"was dropped from the collection|missing column"):
                c.compare_and_append(given, self.upper, end)

    @precondition(lambda self: len(self.built) < 2)
    @rule(data=st.data())
    def build(self, data):
        """A batch for later, under the schema of now."""
        c = self.handle(data)
        with c.builder(self.upper) as builder:
            columns = self.versions[inside.shard(c).known().schema_id]
            updates = self.drawn(data, columns)
            builder.add(table(columns, updates))
            sent = builder.finish(Frontier.of(self.upper + 2)).to_bytes()
        self.built.append((sent, updates, columns, self.upper))

    @precondition(lambda self: any(lower == self.upper for *_, lower in self.built))
    @rule(data=st.data())
    def append_what_was_built(self, data):
        c = self.handle(data)
        ready = [item for item in self.built if item[3] == self.upper]
        end = self.upper + 2
        c.distributed.append_batches(
            [c.distributed.batch_from_bytes(item[0]) for item in ready], lower=self.upper, upper=end
        )
        for _, updates, columns, _ in ready:
            self.record(updates, columns, end)
        self.built = [item for item in self.built if item not in ready]

    @rule(data=st.data())
    def merge(self, data):
        c = self.handle(data)
        c.merge()
        parts = [part for member in c.state().spine for part in member.batch.parts()]
        assert {part.schema_id for part in parts} <= {len(self.versions) - 1}

    @rule(data=st.data())
    def maintain(self, data):
        self.handle(data).maintain(thorough=data.draw(st.booleans()))

    @precondition(lambda self: self.upper > 0)
    @rule(data=st.data())
    def advance_since(self, data):
        since = data.draw(st.integers(0, self.upper - 1))
        self.handle(data).advance_since(since)
        self.oracle.since = self.oracle.since.join(Frontier.of(since))

    def projected(self, columns):
        """The oracle of the rows as they are seen under some columns; a NaN is none other's equal."""
        live = {c.id for c in self.now}
        seen = Oracle(self.oracle.upper, self.oracle.since)
        for row, time, diff in self.oracle.updates:
            held = dict(row)
            values = tuple(held.get(c.id) if c.id in live else None for c in columns)
            seen.append([(tuple(canonical(v) for v in values), time, diff)], seen.upper)
        return seen

    def readable(self):
        return list(range(self.oracle.since.elements[0], self.upper))

    @precondition(lambda self: self.readable())
    @rule(data=st.data())
    def snapshot(self, data):
        time = data.draw(st.sampled_from(self.readable()))
        got = self.handle(data).snapshot(time).read_all()
        assert got.schema.remove_metadata().names[:-2] == [c.name for c in self.now]
        assert tables.netted(got, DOMAIN, time) == self.projected(self.now).snapshot(time)

    @precondition(lambda self: self.readable())
    @rule(data=st.data())
    def snapshot_under_an_older_schema(self, data):
        time, id_ = (
            data.draw(st.sampled_from(self.readable())),
            data.draw(st.integers(0, len(self.versions) - 1)),
        )
        columns = self.versions[id_]
        now = {c.id: c for c in self.now}
        c = self.handle(data)
        if any(x.id in now and now[x.id].step != x.step for x in columns):
            with pytest.raises(IncompatibleSchema, match="was widened"):
                c.snapshot(time, schema_id=id_)
        else:
            got = c.snapshot(time, schema_id=id_).read_all()
            assert tables.netted(got, DOMAIN, time) == self.projected(columns).snapshot(time)

    @precondition(lambda self: self.readable())
    @rule(data=st.data(), parallelism=st.integers(2, 5))
    def planned_read(self, data, parallelism):
        time = data.draw(st.sampled_from(self.readable()))
        planned = self.handle(data).distributed.plan(AsOf(time), parallelism)
        batches = [batch for task in planned.tasks for batch in plan.run_task(task)]
        got = pa.Table.from_batches(batches, planned.schema)
        assert tables.netted(got, DOMAIN, time) == self.projected(self.now).snapshot(time)

    @precondition(lambda self: self.oracle.since == Frontier.of(0))
    @rule(data=st.data())
    def updates(self, data):
        upper = self.oracle.upper
        got = self.handle(data).updates(Frontier.of(0), upper).read_all()
        expected = self.projected(self.now).between(Frontier.of(0), upper)
        assert tables.by_time(got, DOMAIN) == expected

    @invariant()
    def the_state_keeps_every_rule(self):
        if hasattr(self, "handles"):
            state = self.handles[0].state()
            check_state(state)
            assert state.upper == self.oracle.upper and state.schema_id == len(self.versions) - 1
            assert [[c.id for c in v] for v in self.versions] == [
                [c.id for c in state.schemas[i].schema.columns] for i in range(len(self.versions))
            ]


TestEvolving = Evolving.TestCase
TestEvolving.settings = settings(max_examples=examples(150), stateful_step_count=25)
