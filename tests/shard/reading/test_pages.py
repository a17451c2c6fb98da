"""Pages of an answer, one after the other, are the answer."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidelake
from tidelake.config import Config
from tidelake.errors import UsageError
from tidelake.lake.api.handle import shard_of
from tidelake.model.query import AsOf, Changes
from tidelake.model.selection import ReadOptions
from tidelake.shard.reading.pages import FIRST, PageStart, page

ROW = pa.schema([("a", pa.string()), ("b", pa.int64()), ("v", pa.int64())])
# Small parts: a page that looks for rows passes several of them.
SMALL = Config(part_target_bytes=1024, row_group_rows=4, inline_part_bytes=0, merge_budget_s=0)


def turned(shard, asked, where=None, limit=3, seconds=1.0):
    """All pages, as their lists of rows."""
    start, pages = FIRST, []
    while start is not None:
        found = page(shard, asked, ReadOptions(where=where), start=start, limit=limit, seconds=seconds)
        assert found.rows.num_rows <= limit
        pages.append(found)
        # A cursor goes through an address of the page.
        start = None if found.next is None else PageStart.parsed(str(found.next))
        assert len(pages) < 1_000
    return pages


def joined(pages):
    return [row for one in pages for row in one.rows.to_pylist()]


keys = st.tuples(st.sampled_from([None, "", "a", "ab", "\0", "ü"]), st.sampled_from([None, -1, 0, 2**62]))
updates = st.lists(st.tuples(keys, st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=40)


@pytest.mark.grows
@given(rows=updates, limit=st.integers(1, 7), where=st.sampled_from([None, "v > 1", "a = 'a'", "v > 9"]))
def test_pages_one_after_the_other_are_the_answer(rows, limit, where):
    with tidelake.open("memory://pages", config=SMALL) as lake:
        c = lake.create("c", ROW, key=["a", "b"], allow_recreate=True)
        try:
            table = pa.table(
                {
                    "a": pa.array([a for (a, _), _, _ in rows], pa.string()),
                    "b": pa.array([b for (_, b), _, _ in rows], pa.int64()),
                    "v": [v for _, v, _ in rows],
                    "_time": [time for _, _, time in rows],
                }
            )
            c.append(table, upper=5)
            c.append(table.slice(0, 5).set_column(3, "_time", pa.array([5] * min(5, len(rows)))), upper=6)
            shard = shard_of(c)
            assert (
                joined(turned(shard, AsOf(5), where, limit))
                == c.snapshot(5, where=where).read_all().to_pylist()
            )
            # Without time for more than one part on each page.
            hasty = turned(shard, Changes(1, 5), where, limit, seconds=0.0)
            assert joined(hasty) == c.changes(1, 5, where=where).read_all().to_pylist()
        finally:
            lake.drop("c")


def test_what_a_page_reads_does_not_grow_with_the_rows_behind_it(tmp_path):
    read = []
    for n in (100_000, 800_000):
        with tidelake.open(tmp_path / f"{n}", config=Config(inline_part_bytes=0)) as lake:
            c = lake.create("c", pa.schema([pa.field("k", pa.int64(), nullable=False)]), key=["k"])
            c.append(pa.table({"k": range(n)}))
            before, start = lake.recorder.counts["blob.get.bytes"], FIRST
            for at in (0, 50, 100):
                found = page(shard_of(c), AsOf(0), ReadOptions(), start=start, limit=50)
                assert found.rows["k"].to_pylist() == list(range(at, at + 50))
                start = found.next
            read.append(lake.recorder.counts["blob.get.bytes"] - before)
    # Eight times the rows; the footers of the parts grow, and what is read ahead is bounded.
    assert read[1] < 3 * read[0]


def test_a_search_that_finds_nothing_stops_and_goes_on_where_it_was(tmp_path):
    with tidelake.open(tmp_path / "lake", config=SMALL) as lake:
        c = lake.create(
            "c", pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64())]), key=["k"]
        )
        c.append(pa.table({"k": range(400), "v": [0] * 399 + [7]}))
        pages = turned(shard_of(c), AsOf(0), "v <> 0", seconds=0.0)
        # No statistics of a part exclude it: some pages are empty, and none claims to be whole.
        assert joined(pages) == [{"k": 399, "v": 7, "_time": 0, "_diff": 1}]
        assert all(one.whole == (one.next is None) for one in pages)


@pytest.mark.parametrize("text", ["", "x", "zz", "zz.1", "00.-1", "00.x", ".", "00.٣", "0.1"])
def test_a_cursor_that_was_never_given_is_refused(text):
    with pytest.raises(UsageError, match="begin at the first"):
        PageStart.parsed(text)


def test_the_rows_of_one_key_may_fill_several_pages():
    with tidelake.open("memory://one-key", config=SMALL) as lake:
        c = lake.create("c", ROW, key=["a", "b"])
        c.append(pa.table({"a": ["a"] * 10 + ["b"], "b": [1] * 11, "v": range(11)}))
        for limit in (1, 3, 4):
            assert joined(turned(shard_of(c), AsOf(0), limit=limit)) == c.snapshot(0).read_all().to_pylist()


@pytest.mark.promise(
    "A page of rows is bounded by rows, by bytes and by the characters of its answer, and the pages "
    "together leave out no row",
    rule="`shard/reading/pages.py`, `table` in `web/describe.py`",
    also=["web/test_api.py::test_pages_are_bounded_by_bytes_and_no_row_is_left_out"],
)
def test_a_page_ends_where_its_rows_have_too_many_bytes(tmp_path):
    with tidelake.open(tmp_path / "lake") as lake:
        c = lake.create(
            "c", pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())]), key=["k"]
        )
        sizes = [10, 70_000, 10, 30_000, 30_000, 10, 10, 99_000, 1, 1]
        c.append(pa.table({"k": range(10), "v": ["x" * size for size in sizes]}))
        start, counts, rows = FIRST, [], []
        while start is not None:
            found = page(shard_of(c), AsOf(0), ReadOptions(), start=start, limit=4, size_bytes=65_000)
            assert found.whole and found.rows.num_rows > 0
            assert found.rows.nbytes <= 65_000 or found.rows.num_rows == 1
            assert str(found.behind(found.rows.num_rows)) == str(found.next) or found.next is None
            counts.append(found.rows.num_rows)
            rows += found.rows["k"].to_pylist()
            start = found.next
        assert rows == list(range(10)) and counts == [1, 1, 4, 1, 1, 2]
