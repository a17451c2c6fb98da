"""Input that is meant to break something ends in time, in bounded memory, and in one of our own errors."""

import decimal
import json
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lakes import refused

import tidelake
from tables import SCHEMA, rows
from tidelake.cdc.parse.parser import ChangeParser
from tidelake.cli import files
from tidelake.errors import IncompatibleSchema, InvalidUpdates, UpdateBeforeLower, UsageError
from tiers import examples
from tiers import rounds as timed_rounds

MIB = 2**20
ID = pa.field("id", pa.int64(), nullable=False)
DECIMAL = decimal.Decimal

# Far more than is needed, and far less than what grows with the square of the input.
CPU_S, MEMORY_BYTES = 60, 2_000 * MIB


def bounded(code, *arguments, cpu_s=CPU_S, memory_bytes=MEMORY_BYTES):
    """The output of a child with so much processor time and address space: one JSON value a line."""
    limits = f"""
        import json, resource, sys
        resource.setrlimit(resource.RLIMIT_CPU, ({cpu_s}, {cpu_s}))
        resource.setrlimit(resource.RLIMIT_AS, ({memory_bytes}, {memory_bytes}))
        say = lambda value: print(json.dumps(value), flush=True)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(limits) + textwrap.dedent(code), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, f"{done.returncode}: {done.stderr[-2000:]}"
    return [json.loads(line) for line in done.stdout.splitlines()]


def nested(kind, levels):
    for _ in range(levels):
        kind = pa.list_(kind)
    return kind


# Types


@pytest.mark.promise(
    "A type that could not be written or read back is refused when the collection is created",
    rule="`check_kept` in `data/kernel/types.py`",
    also=["::test_what_is_nested_as_deep_as_is_allowed_comes_back"],
)
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (pa.decimal128(5, -3), r"'v' .*decimal128\(5, -3\), whose scale is negative.*use decimal128\(8, 0\)"),
        (pa.decimal256(50, -3), r"use decimal256\(53, 0\)"),
        (pa.decimal256(76, -1), "use a float64"),
        (pa.list_(pa.decimal32(5, -3)), "scale is negative"),
        (pa.struct([("x", pa.decimal64(5, -3))]), r"'v\.x' has type"),
        (pa.decimal128(5, 8), "more digits after the point than digits.*a precision of 8"),
        (nested(pa.int64(), 33), "'v' is nested more than 32 levels deep.*flatten it"),
        (nested(pa.int64(), 500), "nested more than 32"),
        (pa.struct([("x", nested(pa.int64(), 900))]), "nested more than 32"),
    ],
    ids=str,
)
def test_a_type_that_could_not_be_written_is_refused_before_it_is_taken(lake, collection, kind, said):
    with refused(lake, collection, UsageError, said):
        lake.create("other", pa.schema([ID, ("v", kind)]), key=["id"])
    with refused(lake, collection, UsageError, said):
        collection.evolve(pa.schema([*SCHEMA, ("v" if "'v" in said else "w", kind)]).remove(1))


def test_what_is_nested_as_deep_as_is_allowed_comes_back(tmp_path):
    lake = tidelake.open(tmp_path / "lake", config=tidelake.Config(inline_part_bytes=0))
    kind = nested(pa.int64(), 32)
    value = json.loads("[" * 32 + "7" + "]" * 32)
    c = lake.create("c", pa.schema([ID, ("v", kind)]), key=["id"])
    c.append(pa.table({"id": [1], "v": pa.array([value], kind)}))
    c.append(pa.table({"id": [2], "v": pa.array([value], kind)}))
    c.merge()
    assert c.snapshot().read_all()["v"].to_pylist() == [value, value]


def test_a_table_nested_too_deep_or_of_decimals_that_arrow_cannot_cast_is_refused(lake, collection):
    with refused(lake, collection, InvalidUpdates, "'v' is nested more than 32 levels"):
        collection.append(pa.table({"id": [1], "v": pa.nulls(1, nested(pa.int64(), 900))}))
    with refused(lake, collection, InvalidUpdates, "scale is negative"):
        collection.append(pa.table({"id": pa.array([DECIMAL(1000)], pa.decimal128(5, -3)), "v": ["x"]}))


# Tables


def frames():
    pandas = pytest.importorskip("pandas")
    return {
        "doubled names": pandas.DataFrame([[1, 2]], columns=["id", "id"]),
        "a number beyond int64": pandas.DataFrame({"id": [2**70], "v": ["x"]}),
        "several": pandas.DataFrame({"id": [1, 2**70], "v": ["x", "y"]}),
        "a value that is no Unicode": pandas.DataFrame(
            {"id": [1], "v": pandas.Series(["\ud800"], dtype=object)}
        ),
        "a name that is no Unicode": pandas.DataFrame(
            [[1, "x"]], columns=pandas.Index(["id", "\ud800"], dtype=object)
        ),
        "an infinite decimal": pandas.DataFrame({"id": [DECIMAL("Infinity")], "v": ["x"]}),
        "a decimal of too many digits": pandas.DataFrame({"id": [DECIMAL("1e-999999999")], "v": ["x"]}),
        "any object": pandas.DataFrame({"id": [object()], "v": ["x"]}),
    }


@pytest.mark.parametrize("case", [*frames()])
def test_a_data_frame_that_cannot_be_read_is_refused(lake, collection, case):
    with refused(lake, collection, InvalidUpdates, "cannot read updates from a DataFrame: "):
        collection.append(frames()[case])


def test_very_many_columns_are_refused_and_a_few_of_them_named(lake, collection):
    many = pa.table({f"c{n}": [n] for n in range(30_000)})
    with refused(lake, collection, InvalidUpdates, "missing column 'id', 'v': .*'c19' and 29,980 more"):
        collection.append(many)
    with refused(lake, collection, UsageError, "at most 10,000 columns, not 30,000: put those"):
        lake.create("wide", many.schema, key=["c0"])


# Conditions


CONDITIONS = """
    import pyarrow as pa, tidelake
    from tidelake.errors import UsageError
    c = tidelake.open("memory://conditions").create(
        "c", pa.schema([pa.field("id", pa.int64(), nullable=False), ("s", pa.string())]), key=["id"])
    c.append(pa.table({"id": range(1000), "s": [f"x{n:04}" for n in range(1000)]}))
    for where in (%s):
        try:
            say(c.snapshot(where=where).read_all().num_rows)
        except UsageError as error:
            say(str(error))
"""


@pytest.mark.promise(
    "Evaluating a condition takes time in proportion to its length, up to the stated limits: "
    "2,000,000 characters, 10,000 comparisons of several columns",
    rule="`data/query/where.py`, `model/predicate.py`",
    also=["::test_conditions_of_100_000_terms_end_in_time"],
)
@pytest.mark.full
def test_long_conditions_end_in_time_or_in_a_limit():
    counts = bounded(
        CONDITIONS
        % """
        "s LIKE 'x00" + "a" * 1_900_000 + "%'",
        "s LIKE '" + "!%" * 900_000 + "' ESCAPE '!'",
        " OR ".join(f"s LIKE 'x{n:04}%'" for n in range(0, 500, 5)),
        " AND ".join(f"id <> {n}" for n in range(5, 2_005)),
        " OR ".join(f"(id = {n} AND s <> 'y')" for n in range(500)),
        "s = '" + "a" * 2_000_000 + "'",
        " OR ".join(f"(id = {n} AND s = 'y')" for n in range(5001)),
        "("  * 50_000 + "id = 1" + ")" * 50_000,
        "id = " + "/*" * 100_000,
        """
    )
    assert counts[:5] == [0, 0, 100, 5, 500]
    assert counts[5].startswith("where has 2,000,006 characters, more than 2,000,000: ")
    assert counts[6].startswith("where makes 10,002 comparisons of several columns, more than 10,000: ")
    assert counts[7].startswith("where=... is nested too deeply")
    assert "cannot be parsed" in counts[8] and len(counts[8]) < 1200


@pytest.mark.full
def test_conditions_of_100_000_terms_end_in_time():
    counts = bounded(
        CONDITIONS
        % """
        " OR ".join(f"id = {n}" for n in range(100_000)),
        "s NOT IN (" + ",".join(f"'x{n:04}'" for n in range(1, 100_000)) + ")",
        """,
        cpu_s=300,
    )
    assert counts == [1000, 1]


# Files of rows


def read(tmp_path, name, text, **kinds):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return files._read(path, pa.schema(kinds) if kinds else None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"\\ud800": 1}', r'line 1 has a column "\\ud800", whose name is not Unicode text'),
        ('{"a": {"\\ud800": 1}}', "column 'a' cannot be given one type"),
        ('{"a": ' + "[" * 5000 + "]" * 5000 + "}", "line 1.* is nested too deeply"),
        ('{"a": ' + "[" * 200 + "]" * 200 + "}", "line 1: column 'a' is nested too deeply"),
        ("{" + ",".join(f'"c{n}": 1' for n in range(300_000)) + "}", "more than 10,000 columns"),
        (
            '{"id": 1}\t{"a": 1}',
            "line 1 is not JSON, but a key and a value with a tab between.*format='keyed'",
        ),
        ('{"a": ' + "9" * 5000 + "}", "line 1 is not JSON"),
    ],
    ids=["surrogate", "inner surrogate", "deep", "rather deep", "wide", "key and value", "digits"],
)
def test_a_line_that_is_meant_to_break_something_is_refused(tmp_path, text, said):
    with pytest.raises(InvalidUpdates, match=said) as caught:
        read(tmp_path, "rows.jsonl", text)
    assert len(str(caught.value)) < 600


@pytest.mark.promise(
    "Decimals in JSON lines, change events and CSV are exact or refused, however many digits they have",
    rule="`exactly` in `data/json/values.py`, `overlong_decimals`",
)
@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv"])
@pytest.mark.parametrize("kind", [pa.decimal128(10, 2), pa.decimal256(50, 2), pa.decimal32(5, 2)], ids=str)
def test_decimals_are_exact_or_refused_however_long_they_are(tmp_path, name, kind):
    def one(number):
        text = f'{{"d": {number}}}\n' if name == "rows.jsonl" else f"d,e\n{number},1\n"
        return read(tmp_path, name, text, d=kind)["d"].to_pylist()

    # Of all of these Arrow makes a zero, another number, or an end of the process.
    for number in ("1." + "0" * 50, "1." + "0" * 1000, "100e-2", "1" + "0" * 90 + "e-90"):
        assert one(number) == [DECIMAL("1.00")], number
    for number in (
        "1e-77",
        "1e-1000",
        "1e-10000000",
        "1e-999999999",
        "1.001",
        "1e400",
        "1." + "0" * 60 + "1",
    ):
        with pytest.raises(InvalidUpdates):
            one(number)


# Threads


@pytest.mark.promise(
    "Where the system has no thread left, the caller does the work, or gets `OutOfThreads`",
    rule="`shard/engine/overlap.py`, `ThreadSpawner`",
)
def test_without_threads_the_caller_does_the_work_or_is_told(tmp_path):
    done = bounded(
        """
        import threading, pyarrow as pa, tidelake
        from tidelake.errors import OutOfThreads
        lake = tidelake.open(sys.argv[1], config=tidelake.Config(inline_part_bytes=0, merge_budget_s=0))
        c = lake.create("c", pa.schema([pa.field("id", pa.int64(), nullable=False)]), key=["id"])
        for n in range(4):
            c.append(pa.table({"id": range(n * 100, n * 100 + 100)}))

        def no_thread(*arguments, **named):
            raise RuntimeError("can't start new thread")

        # As the system says it: limits of threads are those of a user, who may have others in this machine.
        threading._start_new_thread = threading._start_joinable_thread = no_thread
        say(c.merge().applied)
        c.append(pa.table({"id": range(400, 500)}))
        for call in (lambda: c.snapshot().read_all().num_rows, lambda: c.reader("r"), lambda: lake.upkeep()):
            try:
                say(call())
            except OutOfThreads as error:
                say(str(error))
        """,
        tmp_path / "lake",
    )
    assert done[0] is True
    assert all("starts no further thread" in answer and "ulimit -u" in answer for answer in done[1:])
    assert len(contents_of(tmp_path / "lake")) == 500


def contents_of(place):
    with tidelake.open(place) as lake:
        return lake.collection("c").snapshot().read_all()["id"].to_pylist()


# Messages


def test_another_unit_of_time_is_refused_with_both_and_the_remedy(lake, collection):
    said = "collection 'c' exists and its time is counter, not ms.*: give time='counter', or make a"
    with refused(lake, collection, IncompatibleSchema, said):
        lake.create("c", SCHEMA, key=["id"], time="ms")


def test_a_stage_that_is_refused_speaks_of_no_append(lake, collection):
    collection.append(rows(1))
    with refused(lake, collection, UpdateBeforeLower, "closed times keep their contents") as told:
        collection.stage(rows(2, _time=pa.array([0], pa.int64())))
    assert "append" not in str(told.value)


def test_out_of_file_descriptors_is_named_with_the_remedy(tmp_path):
    said = bounded(
        """
        import os, pyarrow as pa, tidelake
        from tidelake.errors import StoreUnavailable
        schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
        with tidelake.open(sys.argv[1]) as lake:
            lake.create("c", schema, key=["id"]).append(pa.table({"id": range(10)}))
        lake = tidelake.open(sys.argv[1], config=tidelake.Config(retry_deadline_s=0.1))
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        # With so many left, each file that is opened is once the first that cannot be.
        for left in range(8):
            taken = []
            try:
                while True:
                    taken.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                pass
            for one in taken[:left]:
                os.close(one)
            try:
                say(lake.collection("c").snapshot().read_all().num_rows)
            except StoreUnavailable as error:
                say(str(error))
            for one in taken[left:]:
                os.close(one)
        """,
        tmp_path / "lake",
    )
    refusals = [answer for answer in said if answer != 10]
    assert refusals
    assert [a for a in refusals if "too many open files" not in a or "ulimit -n" not in a] == []


def test_an_old_row_of_the_key_alone_names_the_remedy():
    schema = pa.schema([ID, ("v", pa.string())])
    line = b'{"op": "d", "before": {"id": 1}, "after": null, "source": {"lsn": 5}}'
    parsed = ChangeParser(schema, key=("id",), rejects=True).parse(pa.array([line]), str)
    assert "old_rows='stored'" in parsed.rejects[0].reason
    parsed = ChangeParser(schema, key=("id",), rejects=True).parse(pa.array([b"1\t" + line]), str)
    assert "a key and a value with a tab between" in parsed.rejects[0].reason


def test_a_name_of_a_column_that_is_no_utf8_is_refused(lake, collection, tmp_path):
    path = tmp_path / "rows.parquet"
    pq.write_table(rows(1).rename_columns(["id", "vvvvvvvv"]), path, store_schema=False)
    path.write_bytes(path.read_bytes().replace(b"vvvvvvvv", b"\xff\xfevvvvvv"))
    with refused(lake, collection, InvalidUpdates, "the name of a column is not UTF-8: .*; rename it"):
        collection.append(files._read(path, None))


@pytest.mark.promise(
    "Any types, tables, streams, files and conditions as input give only Tidelake's own errors, "
    "with messages of bounded length, in bounded memory",
    rule="`data/ingest/updates.py`, `data/query/where.py`, `cli/files.py`",
)
@pytest.mark.grows
def test_whatever_is_handed_in_only_our_own_errors_come_back(tmp_path, rng, record_property):
    """In a child with little memory, for a collapse of the process would be one as well."""
    counts = Counter()
    for number in timed_rounds(full=15, soak=600):
        place, seed = tmp_path / str(number), rng.getrandbits(32)
        place.mkdir()
        done = subprocess.run(
            [
                sys.executable,
                Path(__file__).with_name("hostile_child.py"),
                place,
                str(seed),
                str(examples(500)),
            ],
            capture_output=True,
            text=True,
            timeout=1800,
            check=False,
        )
        assert done.returncode == 0, f"seed {seed}: {done.returncode}: {done.stderr[-3000:]}"
        counts.update(json.loads(done.stdout.splitlines()[-1]))
    assert counts["tables taken"] and counts["lines refused"] and counts["conditions refused"]
    record_property("figures", ", ".join(f"{count} {what}" for what, count in sorted(counts.items())))
