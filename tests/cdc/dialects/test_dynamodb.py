"""Records of DynamoDB, of its own streams and of Kinesis."""

from typing import Any

import pyarrow as pa
import pytest

from tests.cdc.dialects.dialect_parsing import events, parse, refuses, updates
from tidelake.cdc.dialects.dynamodb import DYNAMODB
from tidelake.errors import InvalidUpdates

MUSIC = pa.schema(
    [
        pa.field("artist", pa.string(), nullable=False),
        pa.field("year", pa.int64(), nullable=False),
        ("price", pa.decimal128(10, 2)),
        ("tags", pa.list_(pa.string())),
        ("plays", pa.list_(pa.int64())),
        ("label", pa.struct([("name", pa.string()), ("rating", pa.float64())])),
        ("cover", pa.binary()),
        ("live", pa.bool_()),
    ]
)
KEY = {"artist": {"S": "Zürich Trio"}, "year": {"N": "1999"}}
ITEM = {
    **KEY,
    **{"price": {"N": "12.5"}, "tags": {"SS": ["a", "b"]}, "plays": {"NS": ["1", "20"]}},
    **{"label": {"M": {"name": {"S": "x"}, "rating": {"N": "0.5"}}}, "cover": {"B": "3q0="}},
    "live": {"BOOL": True},
}
AT_S = 1_693_997_155


def record(name: str, new: Any = None, old: Any = None, **more: Any) -> dict[str, Any]:
    """A record of a stream."""
    told = {
        **{"ApproximateCreationDateTime": AT_S, "Keys": KEY, "NewImage": new, "OldImage": old},
        **{"SequenceNumber": "4421584500000000017450439091", "StreamViewType": "NEW_AND_OLD_IMAGES"},
    }
    arn = "arn:aws:dynamodb:us-east-1:123456789012:table/Music/stream/2026-06-27T00:48:05.899"
    return {
        **{"eventID": "c4ca", "eventName": name, "eventVersion": "1.1", "eventSource": "aws:dynamodb"},
        **{"awsRegion": "us-east-1", "eventSourceARN": arn},
        "dynamodb": {key: value for key, value in told.items() if value is not None} | more,
    }


def told(*records: Any, old_rows: str = "stored", unit: str = "ms", **more: Any) -> Any:
    return parse(
        DYNAMODB, *records, schema=MUSIC, key=("artist", "year"), unit=unit, old_rows=old_rows, **more
    )


def test_types_of_values() -> None:
    (row,) = told(record("INSERT", ITEM)).rows.select(MUSIC.names).to_pylist()
    assert (str(row["price"]), row["tags"], row["plays"]) == ("12.50", ["a", "b"], [1, 20])
    assert (row["label"], row["cover"], row["live"]) == ({"name": "x", "rating": 0.5}, b"\xde\xad", True)
    (row,) = told(record("INSERT", KEY | {"price": {"NULL": True}})).rows.select(MUSIC.names).to_pylist()
    assert {value for name, value in row.items() if name not in KEY} == {None}


def test_changes_with_and_without_old_images() -> None:
    new = ITEM | {"live": {"BOOL": False}}
    records = record("INSERT", ITEM), record("MODIFY", new, ITEM), record("REMOVE", None, new)
    assert not updates(told(*records, old_rows="events"))
    parsed = told(record("INSERT", ITEM), record("MODIFY", new), record("REMOVE"))
    assert [(line, gone, row["live"]) for line, gone, row, _ in events(parsed)] == [
        *((0, False, True), (1, False, False), (2, True, None)),
    ]
    for one in (record("MODIFY", new), record("REMOVE")):
        with pytest.raises(InvalidUpdates, match="NEW_AND_OLD_IMAGES"):
            told(one, old_rows="events")


@pytest.mark.parametrize(
    ("moment", "more", "outside", "expected_ms"),
    [
        (AT_S, {}, {}, AT_S * 1000),
        (AT_S + 0.0, {}, {}, AT_S * 1000),
        (AT_S * 1000 + 7, {}, {"recordFormat": "application/json"}, AT_S * 1000 + 7),
        (AT_S * 1000 + 7, {"ApproximateCreationDateTimePrecision": "MILLISECOND"}, {}, AT_S * 1000 + 7),
        (AT_S * 10**6, {"ApproximateCreationDateTimePrecision": "MICROSECOND"}, {}, AT_S * 1000),
        ("2023-09-06T10:45:55Z", {}, {}, AT_S * 1000),
    ],
)
def test_the_unit_of_a_moment_is_that_of_the_record(
    moment: Any, more: Any, outside: Any, expected_ms: int
) -> None:
    one = record("INSERT", ITEM, ApproximateCreationDateTime=moment, **more) | outside
    assert told(one).time_upper == expected_ms


def test_a_record_of_kinesis_names_its_table() -> None:
    one = record("INSERT", ITEM) | {"tableName": "Other", "eventSourceARN": None}
    parsed = told(one, record("INSERT", ITEM), table=("Music",))
    assert (parsed.events, parsed.heartbeats) == (1, 1)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"Records": [record("INSERT", ITEM)]}, "write one record a line"),
        (record("EXPIRE", ITEM), "eventName 'EXPIRE' is unknown: known are INSERT, MODIFY and REMOVE"),
        (record("INSERT"), "without 'NewImage': let the stream have NEW_IMAGE"),
        (record("INSERT", KEY | {"price": {"X": "1"}}), "has the type 'X', which is unknown"),
        (record("INSERT", KEY | {"price": "1"}), "not one of a type"),
        (record("INSERT", KEY | {"price": {"N": "1e"}}), "a number of an item is '1e'"),
        (record("INSERT", KEY | {"price": {"S": "cheap"}}), "column 'price' of 'NewImage'"),
        (record("INSERT", ITEM, ApproximateCreationDateTimePrecision="NANO"), "'NANO' is unknown"),
        (record("INSERT", ITEM, ApproximateCreationDateTimePrecision={}), "{} is unknown"),
        (record("INSERT", ITEM, Keys={"artist": {"S": "x"}}), "the key of the message has the columns"),
        (record("INSERT", ITEM, ApproximateCreationDateTime=0.5), "is 0.5, and not a whole number"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_remedy(given: Any, reason: str) -> None:
    refuses(reason, told, record("INSERT", ITEM), given)
