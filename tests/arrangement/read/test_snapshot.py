"""Snapshots against a plain list of updates: fetches, ranges, counts and samples."""

from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from arrangement_rows import (
    KEYS,
    PAIR,
    Update,
    contents,
    file_batch,
    keys,
    layout,
    memory_batch,
    plain,
    ranked,
    sorted_rows,
    updates,
)
from hypothesis import HealthCheck, given, settings

from tidelake.arrangement.batch import filebuilder, memory
from tidelake.arrangement.batch.cache import BlockCache
from tidelake.arrangement.batch.keys import Keys
from tidelake.arrangement.batch.layout import Layout
from tidelake.arrangement.read import windows
from tidelake.arrangement.read.retention import RetentionFilters
from tidelake.arrangement.read.snapshot import Snapshot
from tidelake.errors import Closed, HistoryCompacted, InvalidUpdates, UsageError
from tidelake.model.frontier import Frontier
from tiers import examples

OWN = settings(max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(autouse=True)
def _tiny_blocks_and_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_BLOCK_ROWS", 3)
    monkeypatch.setattr(memory, "_FILTER_ROWS_MIN", 8)
    monkeypatch.setattr(filebuilder, "_BLOCK_ROWS_MAX", 3)
    monkeypatch.setattr(windows, "BUDGET_BYTES_MIN", 1)
    monkeypatch.setattr(windows, "BUDGET_BYTES_MAX", 256)


def several(kind: str) -> st.SearchStrategy[list[list[Update]]]:
    """Updates of several batches."""
    return st.lists(updates(kind, max_size=15), max_size=5)


def taken(batches: list[list[Update]], of: Layout, folder: Path, since: Frontier | None = None) -> Snapshot:
    """A snapshot of batches, by turns in memory and on disk."""
    made = []
    for i, held in enumerate(batches):
        rows = sorted_rows(held, of)
        name = f"b{len(list(folder.iterdir()))}-{i}"
        batch = file_batch(rows, of, folder, name) if i % 2 else memory_batch(rows, of, name)
        if batch is not None:
            made.append(batch)
    snapshot = Snapshot(of, made, since=since)
    for batch in made:
        batch.release()
    return snapshot


def answer(held: list[Update], of: Layout, as_of: int | None) -> list[tuple[object, ...]]:
    """The contents, sorted, each row with its multiplicity."""
    found = contents(held, as_of)
    return [(*row, found[row]) for row in sorted(found, key=ranked)]


@pytest.mark.promise(
    "Look-ups and ranges give each row once, with its exact multiplicity as of the time",
    rule="`View.netted`",
    also=["::test_ranges_give_the_contents_between_two_keys"],
)
@pytest.mark.parametrize("kind", KEYS)
@OWN
@given(data=st.data())
def test_lookup_gives_the_contents_of_the_keys(kind: str, data: st.DataObject, tmp_path: Path) -> None:
    of = layout(kind)
    batches = data.draw(several(kind))
    wanted = data.draw(st.lists(keys(kind), max_size=12))
    as_of = data.draw(st.none() | st.integers(0, 4))
    chosen = {ranked(key) for key in wanted}
    everything = answer([u for held in batches for u in held], of, as_of)
    expected = [row for row in everything if ranked(row[: of.key_width]) in chosen]
    with taken(batches, of, tmp_path) as snapshot:
        found = snapshot.lookup(Keys.of_values(wanted, of), as_of)
        assert plain(found) == expected
        assert found.schema == of.contents
        some = snapshot.lookup(Keys.of_values(wanted, of), as_of, columns=["x", "k0"])
        assert plain(some) == [(row[-2], row[0], row[-1]) for row in expected]


@pytest.mark.parametrize("kind", KEYS)
@OWN
@given(data=st.data())
def test_ranges_give_the_contents_between_two_keys(kind: str, data: st.DataObject, tmp_path: Path) -> None:
    of = layout(kind)
    batches = data.draw(several(kind))
    as_of = data.draw(st.none() | st.integers(0, 4))
    everything = answer([u for held in batches for u in held], of, as_of)
    bounds = st.none() | keys(kind).flatmap(lambda k: st.integers(1, len(k)).map(lambda n: k[:n]))
    lower, upper = data.draw(bounds), data.draw(bounds)
    limit, reverse = data.draw(st.none() | st.integers(0, 6)), data.draw(st.booleans())
    expected = [
        row
        for row in everything
        if (lower is None or ranked(row[: len(lower)]) >= ranked(lower))
        and (upper is None or ranked(row[: len(upper)]) < ranked(upper))
    ]
    expected = expected[::-1] if reverse else expected
    with taken(batches, of, tmp_path) as snapshot:
        found = snapshot.range(lower, upper, limit=limit, reverse=reverse, as_of=as_of)
        assert plain(found) == (expected if limit is None else expected[:limit])
        assert snapshot.key_count(as_of) == len({ranked(row[: of.key_width]) for row in everything})
        assert len(snapshot) == sum(sorted_rows(held, of).num_rows for held in batches)


@pytest.mark.parametrize("kind", ["int", "pair"])
@OWN
@given(data=st.data())
def test_samples_are_live_keys_each_once(kind: str, data: st.DataObject, tmp_path: Path) -> None:
    of = layout(kind)
    batches = data.draw(several(kind))
    live = {ranked(r[: of.key_width]) for r in answer([u for held in batches for u in held], of, None)}
    n, seed = data.draw(st.integers(0, 12)), data.draw(st.integers(0, 3))
    with taken(batches, of, tmp_path) as snapshot:
        drawn = [ranked(key) for key in plain(snapshot.sample_keys(n, seed))]
        assert drawn == sorted(set(drawn))
        assert set(drawn) <= live
        assert len(drawn) == min(n, len(live))
        assert plain(snapshot.sample_keys(n, seed)) == plain(snapshot.sample_keys(n, seed))
        bounds = [ranked(key) for key in plain(snapshot.partition_keys(4, seed))]
        assert len(bounds) == min(3, max(0, len(live) - 1))
        assert set(bounds) <= live


@pytest.mark.promise(
    "Each live key is equally likely in a sample, however many rows it has",
    rule="`arrangement/read/sampling.py`",
)
@pytest.mark.full
def test_each_live_key_is_as_likely_in_a_sample_however_many_rows_it_has(tmp_path: Path) -> None:
    of = layout("int")
    heavy = [((key, "a", float(i)), 0, 1) for key in range(0, 200, 2) for i in range(9)]
    light = [((key, "a", 0.5), 0, 1) for key in range(200)]
    gone = [((key, "a", 0.5), 1, -1) for key in range(150, 200) if key % 2]
    counts = np.zeros(200, int)
    with taken([heavy, light, gone, light], of, tmp_path) as snapshot:
        for seed in range(300):
            drawn = [key[0] for key in plain(snapshot.sample_keys(10, seed))]
            assert len(drawn) == 10
            counts[drawn] += 1
    # 15 each are expected, with a deviation of 3.8: sums over a hundred keys deviate by some 38.
    assert abs(int(counts[0::2].sum()) - 1500) < 160
    assert counts.min() > 0


def test_times_of_two_components_are_seen_as_of_both(tmp_path: Path) -> None:
    of = layout("int", PAIR)
    held: list[Update] = [((1, "a", 0.5), (0, 5), 1), ((1, "b", 0.5), (3, 0), 1), ((1, "a", 0.5), (4, 5), -1)]
    with taken([held], of, tmp_path) as snapshot:
        asked = Keys.of_values([(1,)], of)
        assert plain(snapshot.lookup(asked, (2, 5))) == [(1, "a", 0.5, 1)]
        assert plain(snapshot.lookup(asked, (3, 4))) == [(1, "b", 0.5, 1)]
        assert plain(snapshot.lookup(asked)) == [(1, "b", 0.5, 1)]


def test_a_time_before_since_is_refused(tmp_path: Path) -> None:
    of = layout("int")
    with taken([[((1, "a", 0.5), 3, 1)]], of, tmp_path, Frontier.of(3)) as snapshot:
        for read in (snapshot.lookup, lambda _, t: snapshot.range(as_of=t), lambda _, t: snapshot.cursor(t)):
            with pytest.raises(HistoryCompacted, match="history at 2 is compacted: since=\\[3\\]"):
                read(pa.table({"k0": [1]}), 2)
        assert snapshot.lookup(pa.table({"k0": [1]}), 3).num_rows == 1


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda snapshot: snapshot.sample_keys(-1), "n=-1 must be"),
        (lambda snapshot: snapshot.partition_keys(1.5), "n=1.5 must be"),
        (lambda snapshot: snapshot.range(limit=-1), "limit=-1 must be"),
        (lambda snapshot: snapshot.cursor().seek_key((5, 6)), "does not fit the key columns"),
    ],
)
def test_wrong_numbers_and_bounds_are_refused(ask, message) -> None:
    with Snapshot(layout("int"), []) as snapshot, pytest.raises(UsageError, match=message):
        ask(snapshot)


def test_keys_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    of = layout("pair")
    with taken([], of, tmp_path) as snapshot:
        with pytest.raises(InvalidUpdates, match="missing column 'k1'"):
            snapshot.lookup(pa.table({"k0": ["a"]}))
        with pytest.raises(InvalidUpdates, match="unknown column 'v'"):
            snapshot.lookup(pa.table({"k0": ["a"], "k1": [1], "v": ["x"]}))
        with pytest.raises(InvalidUpdates, match="'b' does not fit column 'k1' of type int64"):
            snapshot.cursor().seek_key(("a", "b"))
        with pytest.raises(UsageError, match="a key has 2 columns, not 3"):
            snapshot.range(("a", 1, 2))
        with pytest.raises(UsageError, match="not distinct column names"):
            snapshot.range(columns=["w"])


def test_a_closed_snapshot_answers_no_more_and_its_files_go(tmp_path: Path) -> None:
    of = layout("int")
    batch = file_batch(sorted_rows([((1, "a", 0.5), 0, 1)], of), of, tmp_path, "only")
    assert batch is not None
    snapshot = Snapshot(of, [batch])
    batch.release()
    assert [path.name for path in tmp_path.iterdir()] == ["only.batch"]
    assert snapshot.lookup(pa.table({"k0": [1]})).num_rows == 1
    snapshot.close()
    snapshot.close()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(Closed, match="the snapshot is closed"):
        snapshot.lookup(pa.table({"k0": [1]}))


def test_what_is_still_read_of_a_closed_snapshot_says_so_and_reads_no_other_file(tmp_path: Path) -> None:
    of = layout("int")
    batch = file_batch(sorted_rows([((1, "a", 0.5), 0, 1)], of), of, tmp_path, "one", BlockCache(0))
    assert batch is not None
    snapshot = Snapshot(of, [batch])
    batch.release()
    cursor = snapshot.cursor()
    snapshot.close()
    other = file_batch(sorted_rows([((2, "b", 1.5), 0, 1)], of), of, tmp_path, "two")
    with pytest.raises(Closed, match="closed during a read"):
        cursor.rewind()
    assert other is not None
    other.release()


@pytest.mark.parametrize("kind", ["int", "text"])
@OWN
@given(data=st.data())
def test_a_filter_holds_for_every_read(kind: str, data: st.DataObject, tmp_path: Path) -> None:
    import pyarrow.compute as pc

    of = layout(kind)
    batches = data.draw(several(kind))
    retention = RetentionFilters(of).with_values(pc.field("v") == "a")
    everything = answer([u for held in batches for u in held if u[0][-2] == "a"], of, None)
    with taken(batches, of, tmp_path) as whole:
        snapshot = Snapshot(of, whole.batches, retention)
        assert plain(snapshot.range()) == everything
        found = snapshot.lookup(whole.range(columns=list(of.key_names)).select(list(of.key_names)))
        assert plain(found) == everything
        snapshot.close()


def test_an_answer_holds_no_batch_alive(tmp_path: Path) -> None:
    of = layout("int")
    held: list[Update] = [((key, "a" * 50, 0.5), 0, 1) for key in range(4000)]
    with taken([held, held[:500]], of, tmp_path) as snapshot:
        for found in (snapshot.lookup(pa.table({"k0": [7, 3000]})), snapshot.range((5,), (9,))):
            assert 0 < found.get_total_buffer_size() < 10_000
        assert all(rows.get_total_buffer_size() <= 4 * rows.nbytes for rows in snapshot.scan())
