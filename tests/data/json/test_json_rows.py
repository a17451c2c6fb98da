"""Lines that are rows: read at once or one by one alike, or refused with the line and the reason."""

import json
from typing import Any

import pyarrow as pa
import pytest

from tidelake.data.json.block import Unsure
from tidelake.data.json.rows import BadLine, RowReader

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string()), ("d", pa.date32())])


def lines(*rows: Any) -> pa.Array:
    return pa.array([r if isinstance(r, bytes) else json.dumps(r).encode() for r in rows], pa.binary())


def good(i: int, d: Any = 3) -> dict[str, Any]:
    return {"d": d, "id": i, "v": "x" if i % 3 else None}


@pytest.mark.promise(
    "JSON lines and CSV of other envelopes are read strictly",
    rule="`data/json/rows.py`, `spark/jobs/files.py`",
    also=[
        "data/json/test_json_rows.py",
        "spark/jobs/test_ingest_files.py::test_rows_that_do_not_fit_are_refused_by_name",
    ],
)
@pytest.mark.parametrize("d", [3, "1970-01-04", None])
def test_rows_are_read_at_once_as_one_by_one(d: Any) -> None:
    reader = RowReader(SCHEMA)
    given = lines(*(good(i, d) for i in range(100)))
    found = reader.read(given)
    assert found.equals(reader._at_once(given))
    assert found.equals(reader._one_by_one(given, 0))
    assert found.num_rows == 100


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ({**good(2), "id": "2"}, "column 'id': \"2\" is a string"),
        ({"id": 2, "d": 1}, "column 'v': is missing"),
        ({**good(2), "w": 1}, "column 'w': is not one of"),
        ({**good(2), "id": 1.5}, "not int64"),
        ({**good(2), "id": None}, "column 'id': is null, but the column is not nullable"),
        (b'{"id": 1, "v": "b"', "not JSON"),
        (b'{"id": 1, "v": "\xff", "d": 1}', "not UTF-8"),
        (b'{"id": 1, "v": "b", "d": 1, "v": "c"}', "given twice"),
        ([1], "not a JSON object"),
    ],
)
def test_the_first_bad_line_is_named(line: Any, reason: str) -> None:
    reader = RowReader(SCHEMA)
    with pytest.raises(Unsure):
        reader._at_once(lines(line))
    with pytest.raises(BadLine) as caught:
        reader.read(lines(*map(good, range(70)), line, b"{"))
    assert (caught.value.line, reason in caught.value.reason) == (70, True), caught.value.reason
