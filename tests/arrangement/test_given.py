"""Arguments of an arrangement that cannot be meant: an error that names them, and nothing is done."""

import datetime
import decimal
import os

import pyarrow as pa
import pytest

import tidelake
from tidelake.arrangement.arrangement import Arrangement
from tidelake.errors import HistoryCompacted, InvalidUpdates, TidelakeError, UsageError

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
TYPES = [
    pa.string(),
    pa.binary(),
    pa.int8(),
    pa.int64(),
    pa.float64(),
    pa.bool_(),
    pa.decimal128(10, 2),
    pa.date32(),
    pa.timestamp("us"),
    pa.timestamp("ns", "UTC"),
    pa.time64("us"),
    pa.duration("us"),
]
VALUES = [
    "\ud800",
    "x",
    "2020-01-01",
    b"x",
    float("nan"),
    float("inf"),
    1e300,
    -1,
    5,
    10**30,
    True,
    None,
    object(),
    type,
    [1],
    [object()],
    {"a": "\ud800"},
    (1, 2),
    datetime.date(2020, 1, 1),
    datetime.datetime(9999, 12, 31, 23, 59, 59, 999_999),  # noqa: DTZ001 - as users give them
    datetime.datetime(1, 1, 1, tzinfo=datetime.UTC),
    datetime.timedelta(days=999_999_999),
    datetime.time(1, 1),
    decimal.Decimal("NaN"),
    decimal.Decimal("1e40"),
    pa.scalar(5),
]
SEEKS = ["seek_key", "seek_key_reverse", "seek_key_exact", "seek_value", "seek_value_reverse"]


def made(schema=SCHEMA, **more):
    return Arrangement.create(schema, key=["k"], **more)


def refused_at_most(call):
    """Whether it was refused; if so, by an error of ours."""
    try:
        call()
    except TidelakeError:
        return True
    return False


@pytest.mark.promise(
    "Invalid arguments are refused by name, and nothing is done",
    rule="`arrangement/arguments.py`, `arrangement/batch/keys.py` (`row_batch`)",
    also=["arrangement/test_given.py"],
)
@pytest.mark.parametrize("type_", TYPES, ids=str)
def test_a_value_that_is_none_of_a_type_is_refused_wherever_it_is_sought(type_):
    with made(pa.schema([("k", type_), ("v", type_)])) as index:
        index.append(pa.table({"k": pa.array([None], type_), "v": pa.array([None], type_), "_time": [0]}))
        for value in VALUES:
            with index.cursor() as cursor:
                for seek in SEEKS:
                    refused_at_most(lambda seek=seek, value=value: getattr(cursor, seek)((value,)))
                    refused_at_most(lambda seek=seek, value=value: getattr(cursor, seek)(value))
                    cursor.rewind()
            refused_at_most(lambda value=value: index.range((value,)))
            refused_at_most(lambda value=value: index.range(None, (value,)))
            refused_at_most(lambda value=value: index.lookup({"k": [value]}))


def test_an_error_of_a_seek_names_the_column_the_value_and_the_type():
    days = pa.schema([("k", pa.date32()), ("v", pa.string())])
    with made(days) as index, index.cursor() as cursor:
        for seek in SEEKS[:3]:
            with pytest.raises(InvalidUpdates, match=r"nan does not fit column 'k' of type date32"):
                getattr(cursor, seek)((float("nan"),))
        with pytest.raises(InvalidUpdates, match=r"does not fit column 'v' of type string"):
            cursor.seek_value(("\ud800",))


@pytest.mark.parametrize(
    ("argument", "call"),
    [
        ("path", lambda index, value: index.save(value)),
        ("path", lambda _, value: Arrangement.restore(value)),
        ("directory", lambda _, value: made(directory=value).close()),
    ],
)
@pytest.mark.parametrize("value", [5, 1.5, b"x", "", "a\0b", "\ud8000", [1], {1}], ids=repr)
def test_what_is_no_path_is_refused_by_name(argument, call, value, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with made(directory=tmp_path / "live") as index, pytest.raises(UsageError, match=f"{argument}="):
        call(index, value)
    assert os.listdir(tmp_path) == ["live"] and os.listdir(tmp_path / "live") == []


def test_a_read_before_since_says_what_since_is_and_how_history_is_kept():
    with made() as index:
        index.advance_since(5)
        reads = [
            lambda: index.lookup({"k": [1]}, as_of=4),
            lambda: index.range(as_of=4),
            lambda: index.snapshot().cursor(4),
            lambda: index.snapshot().cursor().map_times_through(4, print),
        ]
        for read in reads:
            with pytest.raises(HistoryCompacted, match=r"\[5\]; that is the since of .*as_of="):
                read()
        assert index.range(as_of=5).num_rows == 0


def test_other_arguments_are_refused_by_name():
    calls = {
        "limit": lambda index, value: index.range(limit=value),
        "columns": lambda index, value: index.range(columns=value),
        "as_of": lambda index, value: index.range(as_of=value),
        "n": lambda index, value: index.sample_keys(value),
        "seed": lambda index, value: index.sample_keys(1, seed=value),
        "number": lambda _, value: Arrangement.restore("nowhere", value),
        "config": lambda _, value: made(config=value),
        "by": lambda index, value: index.retain_values(tidelake.top_n(1, value)),
        "key": lambda _, value: Arrangement.create(SCHEMA, key=value),
        "value": lambda _, value: Arrangement.create(SCHEMA, key=["k"], value=value),
        "schema": lambda _, value: Arrangement.create(value, key=["k"]),
    }
    with made() as index:
        for name, call in calls.items():
            for value in (b"x", 1.5, object(), {"a": 1}):
                with pytest.raises(UsageError, match=name):
                    call(index, value)
        with pytest.raises(UsageError, match="n="):
            tidelake.last_n("x")
        assert index.range(limit=10**30).num_rows == 0
