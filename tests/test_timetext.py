"""Texts of times and spans: exact, as short as they can be, and read back as the same time."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelake.model.frontier import Frontier
from tidelake.model.time import TIME_MAX, TimeDomain
from tidelake.timetext import shown, span
from tiers import examples

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NOON = 1_793_534_400_000
UNITS = {"ms": timedelta(milliseconds=1), "us": timedelta(microseconds=1), "date": timedelta(days=1)}


@pytest.mark.parametrize(
    ("time", "unit", "text"),
    [
        (0, "ms", "1970-01-01 00:00Z"),
        (NOON, "ms", "2026-11-01 12:00Z"),
        (NOON + 60_000, "ms", "2026-11-01 12:01Z"),
        (NOON + 5_000, "ms", "2026-11-01 12:00:05Z"),
        (NOON + 500, "ms", "2026-11-01 12:00:00.5Z"),
        (NOON + 7, "ms", "2026-11-01 12:00:00.007Z"),
        (NOON * 1000 + 20, "us", "2026-11-01 12:00:00.00002Z"),
        (-1, "ms", "1969-12-31 23:59:59.999Z"),
        (-62_135_596_800_000, "ms", "0001-01-01 00:00Z"),
        (-62_135_596_800_001, "ms", "-62135596800001"),
        (253_402_300_799_999, "ms", "9999-12-31 23:59:59.999Z"),
        (253_402_300_800_000, "ms", "253402300800000"),
        (TIME_MAX, "ms", str(TIME_MAX)),
        (0, "date", "1970-01-01"),
        (20_758, "date", "2026-11-01"),
        (2_932_896, "date", "9999-12-31"),
        (2_932_897, "date", "2932897"),
        (TIME_MAX, "date", str(TIME_MAX)),
        (TIME_MAX, "us", str(TIME_MAX)),
        (NOON, "counter", str(NOON)),
        (NOON, "", str(NOON)),
    ],
)
def test_a_time_has_the_digits_that_it_needs_and_is_a_number_where_there_is_no_date(time, unit, text):
    assert shown(time, unit) == text


def test_tuples_frontiers_and_words_are_shown_as_they_are():
    ms, pair = TimeDomain("ms"), TimeDomain("tuple", 2)
    assert ms.text(Frontier.of(NOON)) == "2026-11-01 12:00Z"
    assert ms.text(Frontier()) == "[]"
    assert TimeDomain().text(Frontier.of(5)) == "[5]"
    assert pair.text((3, NOON)) == f"(3, {NOON})"
    assert pair.text(Frontier.of((0, 3), (2, 0))) == "[(0, 3), (2, 0)]"
    assert ms.text("any frontier") == "any frontier"


@pytest.mark.promise(
    "A time is shown exactly: its text is read back as the same time, and what has no text is shown "
    "as its number",
    rule="`timetext.py`",
    also=["::test_a_time_has_the_digits_that_it_needs_and_is_a_number_where_there_is_no_date"],
)
@settings(max_examples=examples(400))
@given(st.sampled_from(sorted(UNITS)), st.data())
def test_a_text_is_read_back_as_the_same_time(unit, data):
    last = (datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC) - EPOCH) // UNITS[unit]
    time = data.draw(st.integers(0, last))
    text = shown(time, unit)
    # A day has no zone to say.
    found = datetime.fromisoformat(text)
    assert (found.replace(tzinfo=UTC) if unit == "date" else found) == EPOCH + time * UNITS[unit]
    assert not text.removesuffix("Z").rpartition(".")[2].endswith("0") or "." not in text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (240_000, "4 minutes"),
        (60_000, "1 minute"),
        (1_000, "1 second"),
        (1, "0.001 seconds"),
        (0, "0 seconds"),
        (90_061_500, "1 day 1 hour 1 minute 1.5 seconds"),
        (7 * 86_400_000, "7 days"),
        (TIME_MAX, "106,751,991,167 days 7 hours 12 minutes 55.807 seconds"),
        (-240_000, "-4 minutes"),
    ],
)
def test_a_span_of_a_clock_is_told_in_days_hours_minutes_and_seconds(count, text):
    assert span(count, "ms") == text


def test_a_span_of_days_is_told_in_days():
    found = [span(count, "date") for count in (0, 1, 4, -1, 12_345, TIME_MAX)]
    assert found[:5] == ["0 days", "1 day", "4 days", "-1 day", "12,345 days"]
    assert found[5] == f"{TIME_MAX:,} days"


def test_a_span_of_a_counter_is_a_number():
    assert span(1_234, "counter") == "1,234"
