"""Lines that may be about some keys: a "no" is certain."""

import json
from typing import Any

import pyarrow as pa
import pytest

from tidelake.data.keys.mentions import lines_in, may_mention


def line(**values: Any) -> bytes:
    return json.dumps({"payload": {"before": None, "after": values, "op": "c"}}).encode()


@pytest.mark.parametrize(
    ("keys", "given", "may"),
    [
        ({"id": [7, 8]}, line(id=8, v="x"), True),
        ({"id": [7, 8]}, line(id=78, v="x 7"), False),
        ({"id": [7]}, line(id="7"), True),
        # MongoDB has the row as text, in it numbers as texts.
        ({"id": [7]}, json.dumps({"after": json.dumps({"_id": {"$numberLong": "7"}})}).encode(), True),
        ({"id": ["abc"]}, json.dumps({"id": '"abc"'}).encode(), True),
        ({"id": ["abc"]}, json.dumps({"id": ' {"$oid": "abc"}'}).encode(), True),
        # Numbers that are written in other ways, also those that are none.
        ({"id": [7]}, b'{"id": 7.0}', True),
        ({"id": [7]}, b'{"id": 70e-1}', True),
        ({"id": [1]}, b'{"id": true}', True),
        ({"id": [7]}, b'{"id": NaN, "v": Infinity, "w": 7.5}', False),
        ({"name": ['ü"/']}, b'{"name": "\\u00fc\\"\\/"}', True),
        ({"name": ["u"]}, line(name="ü"), False),
        ({"a": [1], "b": ["x"]}, line(a=1, b="x"), True),
        ({"a": [1], "b": ["x"]}, line(a=1, b="y"), False),
        ({"a": [1], "b": ["x"]}, line(a=2, b="x"), False),
        # What is no JSON, or a value that is written in several ways.
        ({"id": [7]}, b"8,x", True),
        ({"at": pa.array([1], pa.timestamp("us"))}, line(id=8), True),
        ({"flag": [True]}, line(id=8), True),
    ],
)
def test_a_line_that_may_be_about_a_key_is_found(keys: dict[str, Any], given: bytes, may: bool) -> None:
    assert may_mention([line(id=100), given], pa.table(keys)) is may


def test_no_line_is_about_no_key() -> None:
    assert not may_mention([], pa.table({"at": pa.array([1], pa.timestamp("us"))}))


def test_a_survey_of_rows_that_are_held_back_has_no_lines() -> None:
    rows = pa.table({"topic": ["t"], "offset": [7], "value": ["a"]})
    for table, lines in ((rows, [b"a"]), (rows.drop_columns("value"), [])):
        stream = pa.BufferOutputStream()
        with pa.ipc.new_stream(stream, table.schema) as writer:
            writer.write_table(table)
        assert list(lines_in(stream.getvalue().to_pybytes())) == lines
