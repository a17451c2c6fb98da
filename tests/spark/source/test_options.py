"""Options of the format: what is understood, and what is said about the rest. No Spark session."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

pytest.importorskip("pyspark")

from tidelake.errors import UsageError
from tidelake.lake.arguments.times import ReadTimes
from tidelake.model.frontier import Frontier
from tidelake.model.time import Time, TimeDomain
from tidelake.spark.source.options import (
    HOLD_FOR_S,
    FormatReadOptions,
    RowShape,
    read_options,
    shape,
    stream_read_options,
    write_options,
)
from tidelake.spark.source.place import places
from tidelake.spark.source.times import frontier_of, time_of, written_at

PLAIN = FormatReadOptions(RowShape("table"), None, None, None, None, None, HOLD_FOR_S, None, None)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NOW_MS, LAST_MS = 1_706_702_400_000, 1_706_702_280_000


def times(unit: str) -> ReadTimes:
    """Times of a collection whose last closed time is two minutes before the clock, or 9."""
    last: dict[str, Time] = {
        "ms": LAST_MS,
        "us": 1000 * LAST_MS,
        "date": LAST_MS // 86_400_000 - 1,
        "counter": 9,
    }
    return ReadTimes(TimeDomain.parse(unit), lambda: NOW_MS, lambda: last[unit])


COUNTER, MS, US, DAYS, PAIRS = map(times, ("counter", "ms", "us", "date", "tuple(2)"))


@pytest.mark.promise(
    "An option that is unknown, of another kind of read or write, or has a bad value is refused by "
    "name, with what to write",
    rule="`spark/source/options.py`, `spark/source/texts.py`, `spark/source/times.py`",
    also=[
        "spark/source/test_options.py",
        "spark/source/test_format.py::test_errors_name_the_option_and_the_remedy",
    ],
)
def test_a_read_without_options_is_a_table_held_for_a_day() -> None:
    assert read_options({"path": "/lake/c"}) == PLAIN


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        ({"asof": "7"}, replace(PLAIN, as_of="7")),
        ({"ASOF": "7", "withdiff": "True"}, replace(PLAIN, as_of="7", shape=RowShape("updates"))),
        (
            {"after": "1", "through": "2"},
            replace(PLAIN, after="1", through="2", shape=RowShape("updates")),
        ),
        ({"lower": "1", "withDiff": "true"}, replace(PLAIN, lower="1", shape=RowShape("updates"))),
        (
            {"lower": "1", "upper": "3", "changeFeed": "true"},
            replace(PLAIN, lower="1", upper="3", shape=RowShape("feed")),
        ),
        (
            {"after": "1", "withDiff": "false", "changeFeed": "true"},
            replace(PLAIN, after="1", shape=RowShape("feed")),
        ),
        ({"versionasof": "7"}, replace(PLAIN, as_of="7")),
        ({"timestampAsOf": "2026-01-01 00:00Z"}, replace(PLAIN, as_of="2026-01-01 00:00Z")),
        (
            {"readChangeFeed": "true", "startingVersion": "1", "endingTimestamp": "now"},
            replace(PLAIN, lower="1", last="now", shape=RowShape("feed")),
        ),
        ({"columns": "a", "where": "a > 1"}, replace(PLAIN, shape=RowShape("table", ("a",), "a > 1"))),
        ({"parallelism": " 3 ", "timeout": "0"}, replace(PLAIN, parallelism=3, timeout_s=0.0)),
        ({"holdFor": "None"}, replace(PLAIN, hold_for_s=None)),
        ({"holdFor": "90"}, replace(PLAIN, hold_for_s=90.0)),
        ({"holdFor": "1.5 hours"}, replace(PLAIN, hold_for_s=5_400.0)),
        ({"holdFor": "7d", "timeout": "250ms"}, replace(PLAIN, hold_for_s=604_800.0, timeout_s=0.25)),
    ],
)
def test_options_of_a_batch_read(given_: dict[str, str], expected: FormatReadOptions) -> None:
    assert read_options(given_) == expected


@pytest.mark.parametrize(
    ("given_", "reason"),
    [
        ({"asoff": "1"}, "unknown option 'asoff': did you mean asOf"),
        ({"hold_for": "1"}, "unknown option 'hold_for': did you mean holdFor"),
        ({"zzz": "1"}, "unknown option 'zzz': there are after, asOf, changeFeed, .*where"),
        ({"envelope": "upsert"}, "option 'envelope' is one of writes, not of batch reads: leave it out"),
        ({"asOf": "1", "versionAsOf": "1"}, "options versionAsOf and asOf say the same"),
        (
            {"startingVersion": "1"},
            "option startingVersion is one of a change feed: give readChangeFeed=true",
        ),
        ({"endingVersion": "1", "readChangeFeed": "true"}, "where changes end: give lower"),
        (
            {"lower": "1", "upper": "3", "changeFeed": "true", "endingVersion": "2"},
            "options upper and endingVersion both say",
        ),
        ({"startingAt": "1"}, "option 'startingAt' is one of streaming reads, not of batch reads"),
        ({"paths": '["/a", "/b"]'}, "several paths: a DataFrame reads one collection"),
        ({"asOf": "1", "after": "1"}, "asOf and after ask for several reads at once"),
        ({"after": "1", "upper": "1"}, "after and upper ask for several"),
        ({"through": "1"}, "through says where changes end: give after"),
        ({"upper": "1"}, "upper says where changes end: give lower"),
        ({"after": "1", "withDiff": "false"}, "leave withDiff=false out, or give changeFeed=true"),
        ({"lower": "1", "withDiff": "false"}, "leave withDiff=false out, or give changeFeed=true"),
        ({"lower": "1", "withDiff": "true", "changeFeed": "true"}, "two ways to say what a change is"),
        ({"changeFeed": "true"}, "changeFeed asks for changes, and this is a snapshot: give lower"),
        ({"changeFeed": "true", "asOf": "1"}, "changeFeed asks for changes, and this is a snapshot"),
        ({"withDiff": "yes"}, "withDiff='yes' is neither true nor false"),
        ({"parallelism": "0"}, "parallelism='0' is not a whole number from 1 on"),
        ({"parallelism": "1.5"}, "parallelism='1.5' is not a whole number"),
        ({"timeout": "-1"}, "timeout='-1' is no span of time: write 90, 90s"),
        ({"timeout": "1 fortnight"}, "timeout='1 fortnight' is no span of time"),
        ({"holdFor": "ever"}, "holdFor='ever' is no span of time: .*or none"),
        ({"holdFor": "0"}, "holdFor=0 would hold nothing for long: write none"),
        ({"columns": ""}, "columns='' is not a list of names"),
        ({"columns": "a,,b"}, "is not a list of names"),
        ({"columns": "a,"}, "is not a list of names"),
        ({"columns": "`a"}, "is not a list of names.*in backticks"),
    ],
)
def test_what_is_wrong_with_an_option_is_said_with_its_remedy(given_: dict[str, str], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        read_options(given_)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=1))
def test_any_names_can_be_written_as_columns(names: list[str]) -> None:
    ticks = ", ".join("`" + name.replace("`", "``") + "`" for name in names)
    quotes = ",".join('"' + name.replace('"', '""') + '"' for name in names)
    assert shape({"columns": ticks}).columns == shape({"columns": quotes}).columns == tuple(names)


def test_plain_names_stand_as_they_are() -> None:
    assert shape({"columns": " a ,small one, a.b,é"}).columns == ("a", "small one", "a.b", "é")


def test_options_of_streams_and_writes() -> None:
    found = stream_read_options(
        {"path": "p", "startingAt": "latest", "maxRowsPerTrigger": "10", "withDiff": "true"}
    )
    assert (found.starting_at, found.rows_max, found.times_max) == ("latest", 10, None)
    assert found.shape == shape({"startingAt": "latest", "withDiff": "true"}) == RowShape("updates")
    assert stream_read_options({"startingVersion": "3"}).starting_at == "3"
    assert (
        stream_read_options({"startingtimestamp": "latest", "readchangefeed": "true"}).starting_at == "latest"
    )
    wrote = write_options({"path": "p", "ENVELOPE": "upsert", "takeover": "true", "checkpointLocation": "c"})
    assert (wrote.envelope, wrote.take_over, wrote.token) == ("upsert", True, None)
    with pytest.raises(UsageError, match="'asOf' is one of batch reads, not of writes"):
        write_options({"asOf": "1"})
    # Of a view to insert into.
    assert shape({"late": "advance", "withDiff": "true"}) == RowShape("updates")
    with pytest.raises(UsageError, match="unknown option 'ordr_by': did you mean orderBy"):
        shape({"ordr_by": "1"})


# Times


@pytest.mark.parametrize(
    ("text", "of", "time"),
    [
        ("0", COUNTER, 0),
        (" 17 ", COUNTER, 17),
        (str(2**63 - 1), US, 2**63 - 1),
        ("1700000000000", MS, 1_700_000_000_000),
        ("1970-01-02T00:00:00Z", MS, 86_400_000),
        ("1970-01-01 00:00:00.000001Z", US, 1),
        ("1970-01-01 01:00+01:00", US, 0),
        ("(3, 4)", PAIRS, (3, 4)),
        ("3,4", PAIRS, (3, 4)),
        ("today", MS, NOW_MS // 86_400_000 * 86_400_000),
        ("Yesterday", US, (NOW_MS // 86_400_000 - 1) * 86_400_000_000),
        ("-90m", MS, NOW_MS - 5_400_000),
        ("now", MS, LAST_MS),
        ("now", US, 1000 * LAST_MS),
        ("2024-01-31", DAYS, 19_753),
        ("2024-01-31 01:00+01:00", DAYS, 19_753),
        ("-7d", DAYS, 19_746),
        ("now", DAYS, 19_752),
    ],
)
def test_times_of_every_unit(text: str, of: ReadTimes, time: Any) -> None:
    assert time_of(text, of, "asOf") == time


@given(st.integers(0, 253_370_764_800_000_000), st.integers(-18, 18))
def test_a_timestamp_is_the_last_time_at_or_before_it_or_the_first_from_it(exact_us: int, hours: int) -> None:
    zone = timezone(timedelta(hours=hours))
    text = (EPOCH + timedelta(microseconds=exact_us)).astimezone(zone).isoformat(" ")
    assert time_of(text, US, "asOf") == exact_us
    assert frontier_of(text, US, "lower") == Frontier.of(exact_us)
    assert time_of(text, MS, "asOf") == written_at(text, MS, "time") == exact_us // 1000
    assert frontier_of(text, MS, "lower") == Frontier.of(-(-exact_us // 1000))


def test_now_is_what_can_be_read_now_and_the_clock_where_rows_are_written() -> None:
    assert frontier_of("now", MS, "upper") == Frontier.of(LAST_MS + 1)
    assert frontier_of("now", MS, "upper", staged=True) == Frontier.of(NOW_MS)
    assert time_of("now", MS, "asOf", staged=True) == written_at("now", MS, "time") == NOW_MS
    ahead = ReadTimes(MS.domain, lambda: LAST_MS - 7, MS.last)
    assert time_of("now", ahead, "asOf") == LAST_MS - 7
    assert frontier_of("now", ahead, "upper") == Frontier.of(LAST_MS - 7)


@pytest.mark.parametrize(
    ("text", "of", "reason"),
    [
        (
            "now",
            COUNTER,
            "asOf='now' is not a time of unit counter: give a whole number, such as 17; the coll",
        ),
        ("2024-01-31T00:00:00Z", COUNTER, "the collection counts, and knows no clock"),
        (
            "2024-01-31 12:00:00",
            MS,
            "does not say its zone: write 2024-01-31 12:00:00Z for UTC, or 2024.*01:00",
        ),
        ("2024-01-31", US, "does not say its zone: write 2024-01-31 00:00:00Z for UTC"),
        (
            "2024-02-30 00:00:00Z",
            MS,
            "is not a time of unit ms: give a number of ms since 1970 UTC, a timestamp",
        ),
        ("1969-12-31 23:59:59Z", MS, "asOf='1969-12-31 23:59:59Z' is before 1970-01-01 00:00 UTC"),
        ("-1 fortnight", MS, "or a time back such as -1d"),
        ("-1", COUNTER, "asOf='-1' is not a time"),
        ("2024-01-31 12:00Z", DAYS, "is not at midnight UTC, and times of unit date are days: give a date"),
        ("-36h", DAYS, "asOf='-36h' is not a whole number of days"),
        ("noon", DAYS, "give a number of days since 1970, a date such as 2024-01-31, now"),
        (str(2**63), COUNTER, r"from 0 to 2\^63 - 1"),
        ("5", PAIRS, r"asOf=\(5,\) is not a time of unit tuple\(2\)"),
        ("a", PAIRS, r"give 2 whole numbers, such as \(1, 2\)"),
        ("٣", COUNTER, "is not a time"),
    ],
)
def test_what_is_no_time_is_refused_with_an_example(text: str, of: ReadTimes, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        time_of(text, of, "asOf")


def test_frontiers_are_times_or_lists_of_them() -> None:
    assert frontier_of("3", COUNTER, "lower") == Frontier.of(3)
    assert frontier_of("[]", COUNTER, "upper") == Frontier()
    assert frontier_of("[3, 4]", COUNTER, "upper") == Frontier.of(3)
    assert frontier_of("(0, 3)", PAIRS, "lower") == Frontier.of((0, 3))
    assert frontier_of("[(0, 3), (2, 0)]", PAIRS, "lower") == Frontier.of((0, 3), (2, 0))
    assert frontier_of("1970-01-01 00:00:00.0005Z", MS, "lower") == Frontier.of(1)
    for bad in ("[(0, 3), x]", "[0, 3]", "[(0)]"):
        with pytest.raises(UsageError, match="lower"):
            frontier_of(bad, PAIRS, "lower")


# Paths


@pytest.mark.parametrize(
    ("options", "first"),
    [
        ({"path": "/data/lake/prices"}, ("/data/lake", "prices")),
        ({"PATH": "/data/lake/prices/"}, ("/data/lake", "prices")),
        ({"path": "lake/prices"}, ("lake", "prices")),
        ({"path": "prices"}, (".", "prices")),
        ({"path": "/prices"}, ("/", "prices")),
        ({"path": "/data/lä ke/prïces #1?%20"}, ("/data/lä ke", "prïces #1?%20")),
        ({"path": "file:/data/l%20ke/a%2Fb"}, ("/data/l%20ke", "a%2Fb")),
        ({"path": "file:///data/l%20ke/a%2Fb"}, ("file:///data/l%20ke", "a/b")),
        ({"path": "/data/lake", "collection": "a/b/"}, ("/data/lake", "a/b/")),
        ({"path": "file:///data/lake", "Collection": "a%2F"}, ("file:///data/lake", "a%2F")),
        ({"path": "file:/data/lake", "collection": "x"}, ("/data/lake", "x")),
    ],
)
def test_a_path_is_a_lake_and_a_name(options: dict[str, str], first: tuple[str, str]) -> None:
    assert places(options)[0] == first


def test_names_with_slashes_are_looked_for_above() -> None:
    assert places({"path": "/data/lake/a/b"}) == [
        ("/data/lake/a", "b"),
        ("/data/lake", "a/b"),
        ("/data", "lake/a/b"),
    ]
    assert places({"path": "file:///lake/a/b"}) == [("file:///lake/a", "b"), ("file:///lake", "a/b")]
    assert places({"path": "lake/a/b"}) == [("lake/a", "b"), ("lake", "a/b")]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "no path: write load"),
        ({"path": "/"}, "names no collection"),
        ({"path": "file:///"}, "names no collection"),
        ({"path": "memory://x/y"}, "in the memory of one process"),
    ],
)
def test_a_path_without_a_name_is_refused(options: dict[str, str], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        places(options)
