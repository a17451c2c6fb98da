"""Histories of small tables, views over them in spans, and what their queries answer at each time."""

from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc

from tidelake.lake.api.embedded import Scan
from tidelake.views.database import Database
from tidelake.views.plan import FromCollection
from tidelake.views.reach import Reach
from tidelake.views.rules import Emission
from tidelake.views.spans import SpanRun

TABLES = {
    "a": {"k": "INTEGER", "x": "INTEGER", "f": "DOUBLE"},
    "b": {"k": "INTEGER", "y": "DECIMAL(6,2)"},
    "c": {"k": "INTEGER", "s": "VARCHAR"},
}
TYPES = {
    "INTEGER": pa.int32(),
    "DOUBLE": pa.float64(),
    "DECIMAL(6,2)": pa.decimal128(6, 2),
    "VARCHAR": pa.string(),
}
TIMES = 6
DATABASE = Database()


def schema_of(name):
    return TABLES.get(name)


def history(rng, name, *, negative=False):
    """Updates of a table, as rows with a time and a multiplicity at the end."""
    current, found = Counter(), []
    for time in range(TIMES):
        for _ in range(rng.randrange(4)):
            row = tuple(value(rng, type_) for type_ in TABLES[name].values())
            many = rng.choice((1, 1, 2))
            if current and rng.random() < 0.45:
                row = rng.choice(sorted(current, key=repr))
                many = -rng.randint(1, max(1, current[row]))
            if negative and rng.random() < 0.4:
                many = -many
            current[row] += many
            if not current[row]:
                del current[row]
            found.append((*row, time, many))
    return found


def value(rng, type_):
    """A value of a type; NULL, NaN and ties are likely."""
    values = {
        "INTEGER": (None, 1, 2, 3),
        "DOUBLE": (None, 1e16, 1.1, -1e16, -0.0, float("nan"), 0.5),
        "DECIMAL(6,2)": (None, "0.10", "200.03", "-1.50"),
        "VARCHAR": (None, "a", "b", ""),
    }
    one = rng.choice(values[type_])
    return (
        one if not type_.startswith("DECIMAL") or one is None else pa.scalar(one).cast(TYPES[type_]).as_py()
    )


def scan(name, rows):
    """Rows as a collection gives them."""
    columns = TABLES[name]
    schema = pa.schema(
        [pa.field(column, TYPES[type_]) for column, type_ in columns.items()]
        + [pa.field("_time", pa.int64()), pa.field("_diff", pa.int64())]
    )
    arrays = [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(schema)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def read(stage, rows):
    batch = scan(stage.collection, rows).select([*stage.names, "_time", "_diff"])
    return Scan(batch.schema, lambda: iter([batch]))


class State:
    """What a view keeps, in memory; each as a table of updates."""

    def __init__(self, plan):
        self.plan, self.tables, self.read = plan, {}, set()

    def add(self, kept):
        for one, added in kept.items():
            tables = [*([self.tables[one]] if one in self.tables else []), added.table]
            self.tables[one] = pa.concat_tables(tables)

    def at(self, lower):
        """Reads it as of just before a time: the rows with these keys and no others."""

        def rows(kept, keys, _first=None):
            self.read.add(kept)
            table = netted(self.tables[kept].filter(pc.less(self.tables[kept]["_time"], lower)))
            if keys is not None:
                wanted = set(rows_of(keys))
                found = [row in wanted for row in rows_of(table.select(keys.column_names))]
                table = table.filter(pa.array(found, pa.bool_()))
            return Scan(table.schema, lambda: iter(table.to_batches()))

        return rows

    def contents(self, kept, time):
        """Its rows at a time."""
        rows = Counter({row[:-1]: row[-1] for row in rows_of(self.tables[kept])})
        return at(rows, time)


def netted(table):
    """The contents that updates make."""
    DATABASE.connection.register("netted", table)
    names = ", ".join(f'"{name}"' for name in table.column_names[:-2])
    query = f"SELECT {names}, 0 AS _time, sum(_diff)::BIGINT AS _diff FROM netted GROUP BY {names}"
    found = DATABASE.connection.sql(f"{query} HAVING sum(_diff) <> 0").to_arrow_table()
    DATABASE.connection.unregister("netted")
    return found


def reach_of(plan, *, keyed=()):
    """Where rows are found, if these tables are looked up by their first column."""
    keys = {}
    for number, stage in enumerate(plan.stages):
        if isinstance(stage, FromCollection) and stage.collection in keyed and "k" in stage.names:
            keys[number] = (stage.columns[stage.names.index("k")].name,)
    return Reach(plan, keys)


def span(plan, given, lower, upper, birth, *, pairs_max=None, state=None, keyed=()):
    """The updates of one refresh; `lower` None: the first one."""

    def contents(number, keys):
        stage = plan.stages[number]
        rows = [row for row in given[stage.collection] if row[-2] < lower]
        if keys is not None:
            wanted = {row[0] for row in rows_of(keys)}
            rows = [row for row in rows if plain(row[0]) in wanted]
        return read(stage, rows)

    def updates(number):
        stage = plan.stages[number]
        start = birth if lower is None else lower
        rows = [row for row in given[stage.collection] if row[-2] < upper]
        if lower is None:
            rows = [(*row[:-2], max(row[-2], birth), row[-1]) for row in rows]
        return read(stage, [row for row in rows if row[-2] >= start])

    run = SpanRun(
        "v",
        reach_of(plan, keyed=keyed),
        Emission(lower is not None, birth if lower is None else None),
        contents=contents,
        updates=updates,
        state=None if state is None else state.at(lower),
        pairs_max=pairs_max,
    )
    table = run.carried_out(DATABASE).table
    if state is not None:
        state.add(run.kept)
    return Counter({row[:-1]: row[-1] for row in rows_of(table)})


def refreshes(plan, given, cuts, birth, *, keyed=(), state=None):
    """The updates of refreshes up to each of these times, with what the view keeps."""
    found, lower, state = Counter(), None, state or State(plan)
    for upper in cuts:
        found.update(span(plan, given, lower, upper, birth, state=state, keyed=keyed))
        lower = upper
    return found


def at(updates, time):
    """Contents at a time."""
    found = Counter()
    for row, many in updates.items():
        if row[-1] <= time:
            found[row[:-1]] += many
    return Counter({row: many for row, many in found.items() if many})


def contents_of(given, time):
    """The contents of a table at a time."""
    found = Counter()
    for row in given:
        if row[-2] <= time:
            found[tuple(map(repr, row[:-2]))] += row[-1]
    first = {tuple(map(repr, row[:-2])): row[:-2] for row in given}
    return [(*first[row], many) for row, many in found.items() if many]


def answer(sql, given, time):
    """What the engine answers over the contents at a time."""
    with Database() as database:
        for name, columns in TABLES.items():
            rows = contents_of(given[name], time)
            if any(row[-1] < 0 for row in rows):
                return None
            batch = scan(name, [(*row[:-1], 0, 1) for row in rows for _ in range(row[-1])])
            database.connection.register(f"given_{name}", pa.Table.from_batches([batch]))
            database.connection.execute(
                f"CREATE TABLE {name} AS SELECT {', '.join(columns)} FROM given_{name}"
            )
        return Counter(rows_of(database.connection.sql(sql).to_arrow_table()))


def rows_of(table):
    """Rows as values that are equal to themselves, also NaN; the exact digits of a float do not count."""
    columns = [[plain(one) for one in column.to_pylist()] for column in table.columns]
    return list(zip(*columns, strict=True))


def plain(one):
    match one:
        case float():
            return "NaN" if one != one else f"{one + 0.0:.9g}"
        case list():
            return tuple(map(plain, one))
        case _:
            return one
