"""Times as Arrow timestamps: the same numbers, without a copy."""

import pyarrow as pa
import pytest

from tidelake.data.timestamps import check_clock, stream, timestamp_schema, with_timestamps
from tidelake.errors import UsageError
from tidelake.model.time import TIME_MAX, TimeDomain

TIMES = [0, 1, 1_793_534_400_000, 253_402_300_800_000, TIME_MAX]
ROWS = pa.record_batch(
    [pa.array(range(len(TIMES))), pa.array(TIMES), pa.array([1] * len(TIMES))],
    schema=pa.schema(
        [("id", pa.int64()), pa.field("_time", pa.int64(), nullable=False), ("_diff", pa.int64())]
    ),
)


@pytest.mark.parametrize("unit", ["ms", "us"])
def test_every_time_has_a_timestamp_of_the_same_number_and_nothing_is_copied(unit):
    domain = TimeDomain(unit)
    found = with_timestamps(ROWS, domain)
    assert found.schema.field("_time") == pa.field("_time", pa.timestamp(unit, "UTC"), nullable=False)
    assert found.schema == timestamp_schema(ROWS.schema, domain)
    assert found.column("_time").cast(pa.int64()).to_pylist() == TIMES
    assert found.column("_time").buffers()[1].address == ROWS.column("_time").buffers()[1].address
    assert found.select(["id", "_diff"]).equals(ROWS.select(["id", "_diff"]))
    assert with_timestamps(pa.Table.from_batches([ROWS]), domain).to_batches() == [found]


def test_rows_without_times_stay_as_they_are():
    bare = ROWS.select(["id"])
    assert with_timestamps(bare, TimeDomain("ms")) is bare


def test_a_stream_that_is_left_closes_what_it_reads():
    closed = []

    def batches():
        try:
            yield ROWS
            yield ROWS
        finally:
            closed.append(True)

    found = stream(batches(), TimeDomain("ms"))
    assert next(found).schema.field("_time").type == pa.timestamp("ms", "UTC")
    found.close()
    assert closed == [True]


@pytest.mark.parametrize("domain", [TimeDomain(), TimeDomain("tuple", 2)])
def test_counters_and_tuples_have_no_timestamps(domain):
    with pytest.raises(UsageError, match=r"times of unit .* do not count from 1970"):
        check_clock(domain)
