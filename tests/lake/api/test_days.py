"""A collection whose times are days: written, read, kept and shown by dates."""

import uuid
from datetime import UTC, date, datetime, timedelta

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import tidelake
from clocks import SetClock
from tables import SCHEMA
from tidelake.arrangement.arrangement import Arrangement
from tidelake.env import Env
from tidelake.errors import HistoryCompacted, InvalidUpdates, NotYetClosed, UsageError
from tidelake.model.frontier import Frontier

FIRST = date(2026, 11, 1)
NUMBER = (FIRST - date(1970, 1, 1)).days
NOON = 1_793_534_400_000 + 9 * 86_400_000  # of 2026-11-10


def day(n):
    """The n-th day, from 0 on."""
    return FIRST + timedelta(days=n)


@pytest.fixture
def lake():
    with tidelake.open(f"memory://days-{uuid.uuid4().hex}", env=Env(clock=SetClock(NOON))) as opened:
        yield opened


@pytest.fixture
def rates(lake):
    """Row 0 of the first day to row 8 of the ninth, which is yesterday."""
    made = lake.create("rates", SCHEMA, key=["id"], time="date")
    dates = pa.array([day(n) for n in range(9)], pa.date32())
    made.append(pa.table({"id": range(9), "v": ["x"] * 9, "_time": dates}), upper=day(9))
    return made


def ids(rows):
    return sorted(rows.read_all()["id"].to_pylist())


FORMS = {
    "date": lambda at: at,
    "text": str,
    "number": lambda at: (at - date(1970, 1, 1)).days,
    "datetime": lambda at: datetime(at.year, at.month, at.day, tzinfo=UTC),
    "pandas": lambda at: pd.Timestamp(at, tz="UTC"),
    "numpy": np.datetime64,
}


@pytest.mark.parametrize("form", FORMS)
def test_every_call_takes_days(lake, rates, form):
    t = FORMS[form]
    assert rates.upper == Frontier.of(NUMBER + 9)
    assert ids(rates.snapshot(t(day(2)))) == [0, 1, 2]
    assert ids(rates.changes(t(day(2)), t(day(4)))) == [3, 4]
    assert ids(rates.updates(t(day(2)), t(day(4)))) == [2, 3]
    assert rates.upsert(pa.table({"id": [0], "v": ["y"]}), time=t(day(9))).upper == Frontier.of(NUMBER + 10)
    assert [row["_time"] for row in rates.history(0, times="timestamp").to_pylist()] == [
        day(0),
        day(9),
        day(9),
    ]
    assert lake.fork("rates", "fork", as_of=t(day(2))).last_time() == NUMBER + 2
    with rates.arrange(t(day(1)), follow=False) as kept:
        assert kept.key_count(t(day(4))) == 5
    with rates.reader("test", since=t(day(1))) as reader:
        assert reader.since == Frontier.of(NUMBER + 1)
    assert rates.advance_since(t(day(3))) == Frontier.of(NUMBER + 3)


@pytest.mark.promise(
    "Transactions and group writers take all forms of times that other calls take", rule="`check_any`"
)
@pytest.mark.parametrize("form", FORMS)
def test_every_call_of_several_collections_takes_days(lake, rates, form):
    t, row = FORMS[form], pa.table({"id": [0], "v": ["z"]})
    lake.create("other", SCHEMA, key=["id"], time="date").seal(t(day(9)))
    assert lake.write({"rates": row, "other": row}, time=t(day(9)), upper=t(day(10))).uppers["other"]
    lake.env.clock.ms = NOON + 9 * 86_400_000
    with lake.transaction(time=t(day(11)), lower=t(day(10)), upper=[t(day(12))]) as transaction:
        transaction.write("rates", row)
    late = lake.transaction()
    late.write("rates", row)
    assert late.commit(time=t(day(12))).upper == Frontier.of(NUMBER + 13)
    assert lake.seal({"rates": t(day(14)), "other": [t(day(14))]}).upper == Frontier.of(NUMBER + 14)
    writer = lake.group_writer("rates", "w")
    writer.join(["other"])
    assert writer.write({}, sequence=0, upper=t(day(15))).upper == Frontier.of(NUMBER + 15)
    assert lake.advance_since({"rates": t(day(3)), "other": t(day(3))})["other"] == Frontier.of(NUMBER + 3)


def test_words_and_windows(rates):
    assert ids(rates.snapshot("-3d")) == list(range(7))
    assert ids(rates.snapshot("yesterday")) == list(range(9))
    # Today is not closed, so now is the last closed day.
    assert set(rates.snapshot("now").read_all()["_time"].to_pylist()) == {NUMBER + 8}
    assert rates.append(pa.table({"id": [9], "v": ["x"]})).upper == Frontier.of(NUMBER + 10)
    assert rates.snapshot("now").read_all()["_time"].to_pylist()[-1] == NUMBER + 9
    for window in ("7d", timedelta(days=7), "168h", 7):
        rates.retain(window)
        assert rates.state().retention.window == 7
    for bad in ("36h", timedelta(hours=12)):
        with pytest.raises(UsageError, match=r"^retention .* is not a whole number of days"):
            rates.retain(bad)
    rates.maintain()
    with pytest.raises(HistoryCompacted, match="2026-11-01"):
        rates.snapshot(FIRST)


def test_errors_and_texts_tell_dates(rates):
    with pytest.raises(
        NotYetClosed, match=r"time 2026-11-13 is not closed: .* 2026-11-09, 4 days short of it"
    ):
        rates.snapshot(day(12))
    noon = datetime(2026, 11, 3, 12, tzinfo=UTC)
    with pytest.raises(UsageError, match="as_of=2026-11-03 12:00:00\\+00:00 is not at midnight UTC"):
        rates.snapshot(noon)
    with pytest.raises(UsageError, match="does not say its zone"):
        rates.snapshot(datetime(2026, 11, 3))  # noqa: DTZ001
    with pytest.raises(UsageError, match=r"2 days ahead of the clock, and .*times are days since 1970"):
        rates.seal(day(13))


def test_columns_of_times_are_days(rates):
    kinds = (pa.int64(), pa.date32(), pa.date64(), pa.timestamp("s"), pa.timestamp("us", "Asia/Tokyo"))
    for n, kind in enumerate(kinds):
        value = NUMBER + 9 if kind == pa.int64() else datetime(2026, 11, 10, tzinfo=UTC)
        rows = pa.table({"id": [20 + n], "v": ["x"], "_time": pa.array([value]).cast(kind)})
        rates.stage(rows)
    rates.seal(day(10))
    assert ids(rates.updates(day(9), day(10))) == [20, 21, 22, 23, 24]
    late = pa.table({"id": [1], "v": ["x"], "_time": [datetime(2026, 11, 10, 0, 0, 1, tzinfo=UTC)]})
    with pytest.raises(InvalidUpdates, match=r"'_time' holds 2026-11-10 .* is not at midnight UTC"):
        rates.stage(late)
    frame = pd.DataFrame({"id": [30], "v": ["x"], "_time": [pd.Timestamp("2026-11-11")]})
    rates.stage(frame)


def test_reads_give_dates_on_request(lake, rates):
    found = rates.updates(day(2), day(4), times="timestamp").read_all()
    assert found["_time"].type == pa.date32() and found["_time"].to_pylist() == [day(2), day(3)]
    assert rates.updates(day(2), day(4)).read_all()["_time"].type == pa.int64()
    for sql in ("FOR TIMESTAMP AS OF '2026-11-03'", f"FOR VERSION AS OF {NUMBER + 2}"):
        assert lake.sql(f"SELECT count(*) AS n FROM rates {sql}").read_all()["n"].to_pylist() == [3]


def test_an_arrangement_of_its_own_counts_days(tmp_path):
    with Arrangement.create(SCHEMA, key=["id"], time="date") as own:
        own.append(pa.table({"id": [1], "v": ["x"], "_time": [FIRST]}))
        assert own.key_count("2026-11-01") == 1 and own.key_count(date(2026, 10, 31)) == 0
