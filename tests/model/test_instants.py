"""Instants as people write them: every way to write one means the same time, and no way guesses."""

from datetime import UTC, date, datetime, timedelta, timezone
from fractions import Fraction
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.tiers import examples
from tidelake.errors import UsageError
from tidelake.model.durations import microseconds
from tidelake.model.instants import is_instant, is_zoneless
from tidelake.model.time import TIME_MAX, TimeDomain

PER_SECOND = {"ms": 10**3, "us": 10**6, "date": Fraction(1, 86_400)}
SECONDS = {
    "W": Fraction(604_800),
    "D": Fraction(86_400),
    "h": Fraction(3600),
    "m": Fraction(60),
    **{unit: Fraction(1, 1000**i) for i, unit in enumerate(("s", "ms", "us", "ns", "ps", "fs", "as"))},
}
EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001
clocks = st.sampled_from(["ms", "us", "date"])
moments = st.sampled_from(["ms", "us"])
zones = st.integers(-23 * 60 - 59, 23 * 60 + 59).map(lambda m: timezone(timedelta(minutes=m)))
instants = st.datetimes(timezones=zones)
recent = st.datetimes(datetime(1970, 1, 3), datetime(2200, 1, 1), timezones=zones)  # noqa: DTZ001


def seconds(value):
    """Exact seconds since 1970 UTC of a datetime, by its wall time and offset."""
    wall = value.replace(tzinfo=None) - EPOCH - value.utcoffset()
    return Fraction(wall.days * 86_400 + wall.seconds) + Fraction(wall.microseconds, 10**6)


def meant(exact, unit, *, up):
    """The time of exact seconds, or None if there is none."""
    ticks = exact * PER_SECOND[unit]
    time = -(-ticks.numerator // ticks.denominator) if up else ticks.numerator // ticks.denominator
    return time if 0 <= time <= TIME_MAX else None


def check(value, unit, exact, *, up):
    if unit == "date" and exact % 86_400:
        with pytest.raises(UsageError, match=r"^as_of=.* is not at midnight UTC, .*: give a date, such as"):
            TimeDomain(unit).check(value, "as_of", up=up)
        return
    wanted = meant(exact, unit, up=up)
    if wanted is not None:
        assert TimeDomain(unit).check(value, "as_of", up=up) == wanted
        return
    with pytest.raises(UsageError, match=r"^as_of=.* is before 1970-01-01|^as_of=.* is past the last time"):
        TimeDomain(unit).check(value, "as_of", up=up)


@settings(max_examples=examples(600))
@given(instants, clocks, st.booleans())
@example(datetime.min.replace(tzinfo=timezone(timedelta(hours=23))), "us", False)
@example(datetime.max.replace(tzinfo=timezone(-timedelta(hours=23))), "us", True)
@example(datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC), "ms", True)
@example(datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC), "ms", False)
def test_a_datetime_is_the_time_that_its_instant_lies_in(value, unit, up):
    check(value, unit, seconds(value), up=up)


@settings(max_examples=examples(600))
@given(st.integers(-(2**63) + 1, 2**63 - 1), st.sampled_from(sorted(SECONDS)), clocks, st.booleans())
def test_a_datetime64_of_numpy_is_exact_in_all_its_units(count, kind, unit, up):
    check(np.datetime64(count, kind), unit, count * SECONDS[kind], up=up)


@settings(max_examples=examples(300))
@given(st.integers(1, 9999), st.integers(1, 12), clocks)
def test_years_and_months_of_numpy_begin_with_their_first_day(year, month, unit):
    first = datetime(year, month, 1, tzinfo=UTC)
    check(np.datetime64(f"{year:04}-{month:02}"), unit, seconds(first), up=False)
    check(np.datetime64(f"{year:04}"), unit, seconds(first.replace(month=1)), up=False)


@settings(max_examples=examples(300))
@given(st.dates(), clocks)
def test_a_date_begins_at_midnight_utc(day, unit):
    exact = Fraction((day - date(1970, 1, 1)).days * 86_400)
    check(day, unit, exact, up=False)
    check(pa.scalar(day), unit, exact, up=False)


@settings(max_examples=examples(300))
@given(st.datetimes(), zones, st.text("0123456789", max_size=9), clocks, st.booleans())
def test_a_text_is_read_to_the_nanosecond(wall, zone, digits, unit, up):
    whole = wall.replace(microsecond=0, tzinfo=zone)
    if abs(whole.utcoffset()) > timedelta(hours=18):
        return
    text = whole.replace(tzinfo=None).isoformat(" ") + (f".{digits}" if digits else "")
    minutes = whole.utcoffset() // timedelta(minutes=1)
    offset = f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02}:{abs(minutes) % 60:02}"
    exact = seconds(whole) + Fraction(int(digits or 0), 10 ** len(digits))
    check(text + offset, unit, exact, up=up)
    assert is_zoneless(text) and not is_zoneless(text + offset)


@pytest.mark.promise(
    "Every way to write an instant means one time, exactly; an instant without a zone is refused "
    "with the remedy",
    rule="`clock_time` in `model/instants.py`",
    also=[
        "::test_a_text_is_read_to_the_nanosecond",
        "::test_an_instant_without_a_zone_is_refused_with_the_remedy",
        "lake/arguments/test_times.py::test_reads_take_instants",
        "lake/arguments/test_times.py::test_writes_take_instants",
        "lake/arguments/test_times.py::test_no_call_guesses_a_zone",
    ],
)
@settings(max_examples=examples(300))
@given(recent, zones, moments, st.booleans())
def test_all_ways_to_write_an_instant_mean_one_time(value, other, unit, up):
    naive = value.astimezone(UTC).replace(tzinfo=None)
    ways = [
        value.astimezone(other),
        naive.isoformat() + "Z",
        naive.isoformat(" ") + " UTC",
        naive.isoformat(" ") + "+00",
        pd.Timestamp(value),
        pd.Timestamp(value).tz_convert("America/New_York"),
        np.datetime64(naive, "us"),
        np.datetime64(naive, "ns"),
        pa.scalar(value.astimezone(UTC)),
    ]
    times = {TimeDomain(unit).check(way, up=up) for way in ways}
    assert times == {meant(seconds(value), unit, up=up)}


@pytest.mark.promise(
    "Where an instant is finer than the unit, a read as of it has all updates up to it, and an "
    "interval has those inside: times are rounded down, ends of intervals up",
    rule="`clock_time` (`up`)",
    also=["lake/arguments/test_times.py::test_what_is_finer_than_the_unit_never_hides_or_adds_an_update"],
)
@settings(max_examples=examples(300))
@given(st.integers(0, 10**15), recent, moments)
def test_a_read_has_all_updates_up_to_its_instant_and_an_interval_those_inside(tick, value, unit):
    domain, exact = TimeDomain(unit), seconds(value)
    for time in (tick, domain.check(value), domain.check(value) + 1):
        at = Fraction(time, PER_SECOND[unit])
        assert (time <= domain.check(value)) == (at <= exact)
        assert (time >= domain.check(value, up=True)) == (at >= exact)


def test_a_timestamp_of_pandas_keeps_its_nanoseconds_when_it_is_rounded_up():
    finer = pd.Timestamp("2026-11-01 12:00:00.000000001", tz="Europe/Berlin")
    low, high = TimeDomain("us").check(finer), TimeDomain("us").check(finer, up=True)
    assert (low, high) == (1_793_530_800_000_000, 1_793_530_800_000_001)


def test_the_two_hours_of_a_change_of_the_clock_are_apart():
    berlin = ZoneInfo("Europe/Berlin")
    first, second = (datetime(2026, 10, 25, 2, 30, tzinfo=berlin, fold=fold) for fold in (0, 1))
    assert TimeDomain("ms").check(second) - TimeDomain("ms").check(first) == 3_600_000


@settings(max_examples=examples(300))
@given(st.dates(date(1970, 1, 1), date(2261, 12, 31)), zones, st.booleans())
def test_all_ways_to_write_a_day_mean_one_time_which_shows_as_that_day(day, zone, up):
    domain = TimeDomain("date")
    midnight = datetime(day.year, day.month, day.day, tzinfo=UTC)
    ways = [
        day,
        day.isoformat(),
        f" {day} ",
        f"{day}Z",
        f"{day} 00:00Z",
        midnight,
        midnight.astimezone(zone),
        pd.Timestamp(midnight),
        np.datetime64(day),
        np.datetime64(day, "ns"),
        pa.scalar(day),
        pa.scalar(day, pa.date64()),
        pa.scalar(midnight),
    ]
    number = (day - date(1970, 1, 1)).days
    assert {domain.check(way, up=up) for way in [*ways, number, np.int64(number)]} == {number}
    assert domain.text(number) == str(day) and domain.now(round(midnight.timestamp() * 1000)) == number
    if number:
        later = midnight - timedelta(microseconds=1)
        with pytest.raises(UsageError, match="is not at midnight UTC"):
            domain.check(later, up=up)


def test_words_of_days_are_whole_days_and_count_from_today():
    noon = 1_793_534_400_123
    wanted = {"now": 0, "today": 0, "yesterday": 1, "-1d": 1, "- 48 hours": 2, "-2w": 14, "-0d": 0}
    for word, back in wanted.items():
        assert TimeDomain("date").check(word, now_ms=lambda: noon) == noon // 86_400_000 - back
    with pytest.raises(UsageError, match=r"^as_of='-36h' is not a whole number of days"):
        TimeDomain("date").check("-36h", "as_of", now_ms=lambda: noon)
    with pytest.raises(UsageError, match=r"^as_of='2026-11-01 12:00' does not say its zone"):
        TimeDomain("date").check("2026-11-01 12:00", "as_of")
    with pytest.raises(UsageError, match=r"give a date, a text such as '2026-01-31', or one whole number"):
        TimeDomain("date").check("2026-02-30", "as_of")


@pytest.mark.parametrize("unit", ["ms", "us"])
@pytest.mark.parametrize(
    ("value", "remedy"),
    [
        (datetime(2026, 11, 1, 12), r"tzinfo=datetime.UTC"),  # noqa: DTZ001
        (pd.Timestamp("2026-11-01 12:00"), r"tz_localize\('UTC'\)"),
        (pa.scalar(datetime(2026, 11, 1, 12)), r"assume_timezone\(value, 'UTC'\)"),  # noqa: DTZ001
        ("2026-11-01 12:00", r"write 2026-11-01 12:00Z for UTC"),
        ("2026-11-01T12:00:00.5", r"write 2026-11-01T12:00:00.5Z for UTC"),
        ("2026-11-01", r"write 2026-11-01 00:00:00Z for UTC"),
    ],
)
def test_an_instant_without_a_zone_is_refused_with_the_remedy(value, remedy, unit):
    with pytest.raises(UsageError, match=rf"^as_of=.* does not say its zone: .*{remedy}"):
        TimeDomain(unit).check(value, "as_of")


INSTANTS = [
    datetime(2026, 11, 1, tzinfo=UTC),
    datetime(2026, 11, 1),  # noqa: DTZ001
    date(2026, 11, 1),
    pd.Timestamp("2026-11-01", tz="UTC"),
    np.datetime64("2026-11-01"),
    pa.scalar(datetime(2026, 11, 1, tzinfo=UTC)),
    "2026-11-01 12:00Z",
    "2026-11-01",
    "now",
    "-1d",
]


@pytest.mark.parametrize("value", INSTANTS)
@pytest.mark.parametrize(
    ("domain", "remedy"),
    [(TimeDomain(), "give a whole number"), (TimeDomain("tuple", 2), "give a tuple of whole numbers")],
)
def test_a_counter_refuses_a_clock_by_name(value, domain, remedy):
    with pytest.raises(UsageError, match=r"^after=.*2026|^after='(now|-1d)'") as caught:
        domain.check(value, "after", now_ms=lambda: 10**12)
    assert f"these times are of unit {domain.unit}, which knows no clock: {remedy}" in str(caught.value)


@pytest.mark.parametrize(
    "value",
    [pd.NaT, np.datetime64("NaT"), np.datetime64("NaT", "s"), pa.scalar(None, pa.timestamp("us", "UTC"))],
)
def test_no_time_is_none(value):
    with pytest.raises(UsageError, match=r"^time=.* is no time: give one"):
        TimeDomain("ms").check(value)


@pytest.mark.parametrize(
    "value",
    [
        *("", "abc", "5", "2026-13-01 00:00Z", "2026-02-30 00:00Z", "2026-11-01 25:00Z", "2026-11-01 12:60Z"),
        *("2026-11-01 12:00+25:00", "2026-11-01 12:00:00.1234567890Z", "-1 fortnight", "-1", "now!", "- d"),
        *(
            1.5,
            True,
            np.bool_(True),
            np.timedelta64(5, "s"),
            timedelta(1),
            np.float64(3),
            np.array([1, 2]),
            None,
        ),
    ],
)
def test_what_names_no_instant_is_refused(value):
    with pytest.raises(UsageError, match=r"^time=.* is not a time of unit ms: give a datetime with its zone"):
        TimeDomain("ms").check(value, now_ms=lambda: 10**12)
    assert not (isinstance(value, str) and is_instant(value))


@pytest.mark.parametrize("whole", [np.int64(7), np.uint8(7), np.array(7), 7])
def test_whole_numbers_of_numpy_are_times(whole):
    assert TimeDomain().check(whole) == 7 and type(TimeDomain().check(whole)) is int
    assert TimeDomain("tuple", 2).check((whole, 1)) == (7, 1)


def test_words_are_relative_to_the_clock_that_is_handed_in():
    now_ms = 1_793_534_400_123  # 2026-11-01 12:00:00.123 UTC
    day = 86_400_000
    wanted = {
        "now": now_ms,
        " NOW ": now_ms,
        "today": now_ms // day * day,
        "yesterday": now_ms // day * day - day,
        "-1d": now_ms - day,
        "- 90 minutes": now_ms - 5_400_000,
        "-0.5s": now_ms - 500,
        "-2w": now_ms - 14 * day,
    }
    for word, time in wanted.items():
        assert TimeDomain("ms").check(word, now_ms=lambda: now_ms) == time
        assert TimeDomain("us").check(word, now_ms=lambda: now_ms) == 1000 * time
        assert is_instant(word)
        with pytest.raises(UsageError, match="is not a time of unit ms"):
            TimeDomain("ms").check(word)
    with pytest.raises(UsageError, match=r"^time='-99999d' is before 1970"):
        TimeDomain("ms").check("-99999d", now_ms=lambda: now_ms)


@pytest.mark.parametrize(
    ("text", "us"),
    [
        *(("7d", 604_800_000_000), ("7 days", 604_800_000_000), ("1w", 604_800_000_000), ("90s", 90_000_000)),
        *(("15m", 900_000_000), ("24H", 86_400_000_000), ("1.5 hours", 5_400_000_000), ("5ms", 5_000)),
        *(("0.0005ms", 0), (" 2 min ", 120_000_000), ("0d", 0)),
        *(("", None), ("7", None), ("d", None), ("7x", None), ("-7d", None), ("7d7h", None), ("1e3s", None)),
    ],
)
def test_a_duration_is_read_exactly(text, us):
    assert microseconds(text) == us


@settings(max_examples=examples(200))
@given(st.timedeltas())
def test_a_timedelta_is_as_long_as_it_is(length):
    assert timedelta(microseconds=microseconds(length)) == length


def test_messages_name_the_argument_and_the_value():
    with pytest.raises(UsageError) as caught:
        TimeDomain("ms").check(datetime(1969, 7, 20, 20, 17, tzinfo=UTC), "lower")
    assert str(caught.value) == (
        "lower=1969-07-20 20:17:00+00:00 is before 1970-01-01 00:00 UTC, where times of unit ms begin"
    )
    with pytest.raises(UsageError, match=r"^lower=.* is past the last time of unit us, 2\^63 - 1"):
        TimeDomain("us").check(np.datetime64(2**62, "s"), "lower")
