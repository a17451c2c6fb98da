"""A child that feeds itself hostile input: types, tables, Arrow streams, files of rows, conditions.

`python hostile_child.py PLACE SEED TRIALS` prints one JSON line, of how many trials of each kind were taken
and refused. Anything but one of our own errors ends it.
"""

import json
import random
import resource
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import tidelake
from tidelake.cli import files
from tidelake.errors import InternalError, TidelakeError

MEMORY_BYTES = 3 * 2**30
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("s", pa.string()),
        ("d", pa.decimal128(10, 2)),
        ("f", pa.float32()),
        ("t", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("l", pa.list_(pa.struct([("x", pa.int32())]))),
        ("b", pa.binary()),
    ]
)
PLAIN = [
    *(pa.int8(), pa.uint64(), pa.float16(), pa.float64(), pa.bool_(), pa.string(), pa.binary(), pa.null()),
    *(
        pa.date32(),
        pa.date64(),
        pa.time32("s"),
        pa.time64("ns"),
        pa.duration("ms"),
        pa.month_day_nano_interval(),
    ),
    *(pa.timestamp("s"), pa.timestamp("ns", "Europe/Prague"), pa.timestamp("us", "Nowhere/There")),
    *(pa.large_string(), pa.string_view(), pa.binary(3), pa.binary(0), pa.binary_view()),
    *(
        pa.decimal128(38, 38),
        pa.decimal128(5, -3),
        pa.decimal256(76, 0),
        pa.decimal32(9, 12),
        pa.decimal64(9, 0),
    ),
]
NUMBERS = [
    *(
        "0",
        "-0.0",
        "1",
        "1.5",
        "1e5",
        "-1e-77",
        "1e999999999",
        "1e-999999999",
        "9" * 40,
        "9" * 5000,
        "1." + "0" * 60,
    ),
    *(
        "9223372036854775808",
        "18446744073709551616",
        "NaN",
        "Infinity",
        "0x10",
        "01",
        "1_000",
        "--1",
        "1e",
        ".",
    ),
]
TEXTS = [
    *(
        '"x"',
        '""',
        '"\\ud800"',
        '"\\u0000"',
        '"2024-02-30"',
        '"2024-01-31"',
        '"9999-12-31T23:59:59.999999999Z"',
    ),
    *("null", "true", "{}", "[]", '{"x":1}', '[{"x":1}]', '[{"x":1,"y":2}]', '[{"x":2147483648}]', '"//8="'),
]
WORDS = [
    *("id", "s", "d", "f", "t", "day", "l", "b", "missing", '"id"', "`s`", "_time", "_diff"),
    *(
        "=",
        "<>",
        "<",
        ">=",
        "(",
        ")",
        ",",
        "AND",
        "OR",
        "NOT",
        "IN",
        "BETWEEN",
        "IS",
        "NULL",
        "LIKE",
        "ESCAPE",
    ),
    *(
        "1",
        "-1",
        "1.5",
        "1e400",
        "'x'",
        "'a%'",
        "'%_'",
        "'!'",
        "TRUE",
        "X'00FF'",
        "X'0'",
        "DATE '2024-01-31'",
    ),
    *(
        "TIMESTAMP '2024-01-31 12:00:00'",
        "DOUBLE 'NaN'",
        "+",
        "*",
        "||",
        "CASE",
        "SELECT",
        ";",
        "--",
        "/*",
        "'",
        '"',
    ),
    *("[", "{", ":x", "?", "\0", "\ud800", "\N{SNOWMAN}", "x" * 1000, "(" * 300, "NOT " * 300),
]


def filled(columns: dict[str, pa.Array]) -> pa.Table:
    """A table of all columns, nulls where nothing is given."""
    rows = len(columns["id"])
    return pa.table({f.name: columns.get(f.name, pa.nulls(rows, f.type)) for f in SCHEMA})


class Attack:
    """Trials of each kind, on one lake."""

    def __init__(self, place: str, seed: int) -> None:
        self.rng = random.Random(seed)
        self.folder = Path(place)
        self.lake = tidelake.open(self.folder / "lake", config=tidelake.Config(inline_part_bytes=200))
        self.c = self.lake.create("c", SCHEMA, key=["id"])
        self.made = 0

    def kind(self, levels: int = 3) -> pa.DataType:
        """A type, kept or not."""
        how = self.rng.random()
        if not levels or how < 0.6:
            return self.rng.choice(PLAIN)
        if how < 0.63:
            kind: pa.DataType = pa.int64()
            for _ in range(self.rng.choice([30, 40, 100, 600])):
                kind = self.rng.choice([pa.list_(kind), pa.struct([("x", kind)])])
            return kind
        inner = self.kind(levels - 1)
        if how < 0.7:
            return pa.dictionary(pa.int8(), inner) if not pa.types.is_nested(inner) else pa.list_(inner, 2)
        if how < 0.8:
            return pa.map_(pa.string(), inner)
        return pa.list_(inner) if how < 0.9 else pa.struct([("x", inner), ("y", self.kind(levels - 1))])

    def types(self) -> None:
        """A collection of any type, which takes rows, merges them and reads them."""
        fields = [(self.rng.choice(["v", "w", "", "_diff", "é"]), self.kind()) for _ in range(2)]
        schema = pa.schema([SCHEMA.field("id"), *fields])
        self.made += 1
        c = self.lake.create(f"of{self.made}", schema, key=["id"])
        try:
            table = pa.table(
                [pa.array([1, 2], pa.int64()), *[pa.nulls(2, f.type) for f in schema][1:]], schema
            )
        except (TypeError, pa.ArrowException):
            table = schema.empty_table()
        for _ in range(2):
            c.append(table)
        c.merge()
        if c.snapshot().read_all().num_rows != table.num_rows:
            raise AssertionError(schema)

    def tables(self) -> None:
        """A table with columns that do not fit, as what it is or as a stream."""
        names = list(SCHEMA.names)
        if self.rng.random() < 0.3:
            names[self.rng.randrange(len(names))] = self.rng.choice(["id", "_time", "_diff", "x"])
        columns = []
        for name in names:
            fits = name in SCHEMA.names and self.rng.random() < 0.95
            kind = SCHEMA.field(name).type if fits else self.kind(1)
            try:
                columns.append(pa.nulls(2, kind) if name != "id" else pa.array([1, 2]).cast(kind))
            except (TypeError, pa.ArrowException):
                columns.append(pa.array([1, 2]))
        table = pa.Table.from_arrays(columns, names)
        self.c.append(table.to_reader() if columns and self.rng.random() < 0.5 else table)

    def streams(self) -> None:
        """The bytes of an Arrow stream or a Parquet file, of which some are others."""
        sink = self.folder / "rows.parquet"
        table = filled({"id": pa.array(range(50)), "s": pa.array(["x"] * 50)})
        pq.write_table(table, sink)
        data = bytearray(sink.read_bytes())
        for _ in range(self.rng.randrange(1, 6)):
            data[self.rng.randrange(len(data))] = self.rng.randrange(256)
        sink.write_bytes(data[: self.rng.choice([len(data), self.rng.randrange(len(data))])])
        self.c.append(files._read(sink, self.c.update_schema))

    def lines(self) -> None:
        """JSON lines and CSV of values that fit and values that do not."""
        rows, is_json = [], self.rng.random() < 0.6
        for _ in range(self.rng.choice([1, 3, 50])):
            values = dict.fromkeys(SCHEMA.names, "null" if is_json else "") | {"id": "1"}
            for name in self.rng.choices(SCHEMA.names, k=self.rng.randrange(3)):
                values[name] = self.rng.choice([*NUMBERS, *TEXTS])
            rows.append(values)
        if is_json:
            path = self.folder / "rows.jsonl"
            text = "\n".join("{" + ",".join(f'"{k}":{v}' for k, v in row.items()) + "}" for row in rows)
        else:
            path = self.folder / "rows.csv"
            names = list(rows[0])
            text = "\n".join([",".join(names), *(",".join(r.get(n, "") for n in names) for r in rows)])
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        self.c.append(files._read(path, self.c.update_schema))

    def conditions(self) -> None:
        """Words of SQL in any order, and nearly right."""
        words = self.rng.choices(WORDS, k=self.rng.randrange(1, 9))
        if self.rng.random() < 0.5:
            words = [self.rng.choice(WORDS[:8]), self.rng.choice(WORDS[13:17]), self.rng.choice(WORDS[29:42])]
        self.c.snapshot(0, where=" ".join(words)).read_all()

    def bombs(self) -> None:
        """A small file with very many equal rows: it is taken, or there is no memory for it."""
        path = self.folder / "rows.parquet"
        rows = self.rng.choice([1_000, 3_000_000])
        table = filled({"id": pa.repeat(pa.scalar(7), rows), "s": pa.repeat(pa.scalar("x" * 10), rows)})
        pq.write_table(table, path, compression="zstd")
        self.c.append(files._read(path, self.c.update_schema))


def main() -> None:
    """Attack."""
    place, seed, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    attack = Attack(place, seed)
    attack.c.append(filled({"id": pa.array([1])}))
    trials = [attack.types, attack.tables, attack.streams, attack.lines, attack.conditions]
    counts: Counter[str] = Counter()
    for number in range(count):
        trial = attack.bombs if number % 100 == 49 else trials[number % len(trials)]
        try:
            trial()
            counts[f"{trial.__name__} taken"] += 1
        except InternalError:
            raise
        except TidelakeError as error:
            if len(str(error)) > 2_000:
                raise AssertionError(f"a message of {len(str(error))} characters") from error
            counts[f"{trial.__name__} refused"] += 1
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
