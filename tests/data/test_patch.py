"""Few changes put into sorted rows: the same as sorting and summing all of them."""

import numpy as np
import pyarrow as pa
import pytest
from data_reference import NESTED, PRIMITIVES, consolidated, rows_of, updates
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelake.data.ingest.updates import normalize
from tidelake.data.kernel.consolidate import consolidate
from tidelake.data.kernel.patch import put, shares
from tidelake.data.kernel.sums import sort_batch, sum_batch
from tidelake.data.kernel.types import schema_from_arrow
from tidelake.errors import InvalidUpdates
from tidelake.model.time import TimeDomain
from tiers import examples

INT = TimeDomain("counter")
SCHEMA = schema_from_arrow(pa.schema([("k", pa.int64()), ("j", pa.int32()), ("v", pa.string())]), ["k", "j"])


def patched_rows(base, changes, schema, domain, batch_rows):
    """What comes of the rows of two tables, the first consolidated, if the second patches the first."""
    batches = consolidate(base, schema, domain).to_batches(max_chunksize=batch_rows)
    # Several sorted batches, in which rows may repeat.
    size = max(1, changes.num_rows // 3)
    few = [sort_batch(batch) for batch in changes.combine_chunks().to_batches(max_chunksize=size)]
    return [row for batch in patched(batches, few) for row in rows_of(batch)]


def patched(batches, changes):
    """The batches of a stream with changes."""
    found = [batch for batch in map(put, shares(batches, changes)) if batch is not None]
    assert all(batch.num_rows for batch in found)
    return found


@pytest.mark.promise(
    "A base that is patched with few changes gives what merging all rows gives",
    rule="`data/kernel/patch.py`, `_patchable` in `shard/runs/read.py`",
    also=["data/test_patch.py", "lake/api/test_patched_reads.py"],
)
@settings(max_examples=examples(200))
@given(st.data())
def test_patching_agrees_with_the_reference(data):
    kinds = PRIMITIVES if data.draw(st.booleans()) else NESTED
    schema, domain, table = data.draw(updates(kinds=kinds, columns=2, max_rows=60))
    few = table.slice(0, table.num_rows // 3)
    base = table.slice(few.num_rows)
    # Some of the changes take rows of the base back, in part or twice.
    back = base.slice(0, base.num_rows // 4)
    times = data.draw(st.sampled_from([-1, 1, -2]))
    diff = pa.array([times * d for d in back.column(back.num_columns - 1).to_pylist()], pa.int64())
    back = back.set_column(back.num_columns - 1, back.schema.field(back.num_columns - 1), diff)
    changes = pa.concat_tables([few, back])
    found = patched_rows(base, changes, schema, domain, data.draw(st.integers(1, 20)))
    expected = consolidated([*rows_of(base), *rows_of(changes)])
    assert [repr(row) for row in found] == [repr(row) for row in expected]


def rows(keys, others, texts, diffs):
    table = pa.table({"k": keys, "j": pa.array(others, pa.int32()), "v": texts, "_diff": diffs})
    return normalize(table, SCHEMA, INT, time=0)


@settings(max_examples=examples(200))
@given(st.integers(0, 2**32), st.integers(1, 40), st.booleans())
def test_upserts_and_several_rows_of_a_key_agree_with_the_reference(seed, batch_rows, nulls):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 120))
    keys, others = rng.integers(0, 30, count).tolist(), rng.integers(0, 3, count).tolist()
    keys = [None if nulls and key == 7 else key for key in keys]
    texts = [f"t{n}" for n in rng.integers(0, 3, count)]
    base = rows(keys, others, texts, rng.integers(1, 3, count).tolist())
    some = sorted(rng.choice(count, max(1, count // 5), replace=False).tolist())
    gone = [(keys[i], others[i], texts[i], -1) for i in some]
    come = [(key, other, text + "!", 1) for key, other, text, _ in gone if rng.random() < 0.8]
    new = [(int(key), 0, "new", 1) for key in rng.integers(-3, 40, int(rng.integers(0, 4)))]
    changes = rows(*map(list, zip(*gone, *come, *new, strict=True)))
    found = patched_rows(base, changes, SCHEMA, INT, batch_rows)
    expected = consolidated([*rows_of(base), *rows_of(changes)])
    assert [repr(row) for row in found] == [repr(row) for row in expected]


@pytest.mark.parametrize("batch_rows", [1, 9])
@pytest.mark.parametrize(
    ("base", "changes"),
    [
        ([(1, 0, "x", 1)], [(1, 0, "x", -2), (1, 0, "y", 2)]),
        ([(1, 0, "y", 1)], [(1, 0, "x", 1), (1, 0, "y", 1)]),
        ([(1, 0, "x", 1)], [(1, 0, "x", -1), (1, 0, "y", 1), (1, 1, "z", 1)]),
        ([(1, 0, "x", 1)], [(1, 0, "z", -1), (1, 0, "y", 1)]),
        ([(1, 0, "x", 2)], [(1, 0, "x", -1), (1, 0, "y", 1)]),
        ([(2, 0, "x", 1)], [(1, 0, "x", -1), (1, 0, "y", 1)]),
        ([(1, 0, "x", 1), (1, 1, "x", 1)], [(1, 0, "x", -1), (1, 2, "y", 1)]),
        ([(1, 0, "x", 1)], [(9, 0, "x", -1), (9, 0, "y", 1)]),
        ([(1, 0, "x", 1)], [(9, 0, "x", -1), (9, 0, "x", 1)]),
        (
            [(1, 0, "x", 1), (2, 0, "x", 1)],
            [(2, 0, "x", -1), (2, 0, "y", 1), (1, 0, "x", -1), (1, 0, "y", 1)],
        ),
    ],
)
def test_what_is_no_swap_or_swaps_another_row_agrees_with_the_reference(base, changes, batch_rows):
    base, changes = (rows(*map(list, zip(*some, strict=True))) for some in (base, changes))
    found = patched_rows(base, changes, SCHEMA, INT, batch_rows)
    expected = consolidated([*rows_of(base), *rows_of(changes)])
    assert [repr(row) for row in found] == [repr(row) for row in expected]


def test_a_swap_is_put_in_its_place_and_sorts_no_row_of_the_base(monkeypatch):
    base = consolidate(rows(list(range(90)), [0] * 90, ["x"] * 90, [1] * 90), SCHEMA, INT)
    # The second one is a swap once what is between is summed.
    changes = rows([7, 7, 40, 40, 40, 40], [0] * 6, ["x", "y", "x", "y", "y", "z"], [-1, 1, -1, 1, -1, 1])
    summed = []
    monkeypatch.setattr(
        "tidelake.data.kernel.patch.sum_batch", lambda batch: summed.append(batch) or sum_batch(batch)
    )
    (found,) = patched(base.to_batches(), [sort_batch(*changes.to_batches())])
    assert [(row[0], row[2]) for row in rows_of(found) if row[2] != "x"] == [(7, "y"), (40, "z")]
    assert [batch.num_rows for batch in summed] == [4]


def texts(numbers, values, diffs):
    """Rows with a text as their key."""
    keys = [f"a long beginning {number:04}" for number in numbers]
    schema = schema_from_arrow(pa.schema([("k", pa.string()), ("v", pa.string())]), ["k"])
    table = normalize(pa.table({"k": keys, "v": values, "_diff": diffs}), schema, INT, time=0)
    return consolidate(table, schema, INT).to_batches()


def test_texts_are_swapped_by_their_codes(monkeypatch):
    count = 300
    base = texts(range(count), ["x"] * count, [1] * count)
    # The first swaps leave all as it is.
    some = [*range(0, count, 2)]
    values = ["x"] * 100 + [f"y{n}" for n in some[100:]]
    changes = [*texts(some, ["x"] * len(some), [-1] * len(some)), *texts(some, values, [1] * len(some))]
    summed = []
    monkeypatch.setattr(
        "tidelake.data.kernel.patch.sum_batch", lambda batch: summed.append(batch) or sum_batch(batch)
    )
    (found,) = patched(base, changes)
    expected = texts(range(count), [values[n // 2] if n in some else "x" for n in range(count)], [1] * count)
    assert rows_of(found) == rows_of(*expected)
    assert [batch.num_rows for batch in summed] == [0]
    assert found.column(0).buffers()[2].address == base[0].column(0).buffers()[2].address


def test_texts_of_one_code_are_told_apart():
    keys = [f"begins alike {letter} {n % 7} and goes on {n}" for n, letter in enumerate("abcabcabcabcabcabc")]
    schema = schema_from_arrow(pa.schema([("k", pa.string())]), ["k"])

    def some(keys, diffs):
        table = normalize(pa.table({"k": keys, "_diff": diffs}), schema, INT, time=0)
        return consolidate(table, schema, INT)

    base = some([keys[0], *keys[1:12]], [1] * 12)
    changes = some([keys[0], keys[0] + "!", keys[13], keys[5], None, keys[5][:-3]], [-1, 1, 1, -1, 1, 2])
    expected = consolidated([*rows_of(base), *rows_of(changes)])
    for batch_rows in (1, 5, 20):
        found = patched(base.to_batches(max_chunksize=batch_rows), changes.to_batches())
        assert [row for batch in found for row in rows_of(batch)] == expected


def test_a_batch_without_changes_is_handed_on_as_it_is():
    base = consolidate(rows(list(range(90)), [0] * 90, ["x"] * 90, [1] * 90), SCHEMA, INT)
    batches = base.to_batches(max_chunksize=30)
    # The new row of the last key of a batch comes after the last row of the batch.
    few = consolidate(rows([40, 40, 59, 59], [0] * 4, ["x", "y"] * 2, [-1, 1] * 2), SCHEMA, INT).to_batches()
    found = patched(batches, few)
    assert [batch is one for batch, one in zip(found, batches, strict=True)] == [True, False, True]
    assert found[1].column(0).buffers()[1].address == batches[1].column(0).buffers()[1].address


def test_changes_of_no_rows_are_summed():
    few = [sort_batch(*rows([1, 1, 2], [0] * 3, ["x"] * 3, [1, 1, 1]).to_batches())]
    (found,) = patched([], few)
    assert [(row[0], row[-1]) for row in rows_of(found)] == [(1, 2), (2, 1)]
    assert patched([], []) == []


def test_a_sum_that_does_not_fit_is_refused_and_one_that_fits_only_with_the_base_is_not():
    base = consolidate(rows([1, 2], [0, 0], ["x", "x"], [2**62, 1]), SCHEMA, INT).to_batches()
    few = consolidate(rows([1], [0], ["x"], [2**62]), SCHEMA, INT).to_batches()
    with pytest.raises(InvalidUpdates, match="does not fit"):
        patched(base, few)
    base = consolidate(rows([1, 2], [0, 0], ["x", "x"], [-1, 1]), SCHEMA, INT).to_batches()
    (found,) = patched(base, [*few, *few])
    assert [row[-1] for row in rows_of(found)] == [2**63 - 1, 1]
