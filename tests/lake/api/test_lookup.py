"""Look-ups: the rows of some keys, exactly, and little else is read."""

import random
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from lakes import SMALL_PARTS

import tidelake
from tables import rows as plain_rows
from tidelake.config import Config
from tidelake.data.kernel.encode import encode_key
from tidelake.data.kernel.types import schema_from_arrow
from tidelake.env import Counters, Env
from tidelake.errors import HistoryCompacted, InvalidUpdates, NotYetClosed, UsageError
from tidelake.lake.api.lake import open_lake
from tidelake.model.frontier import Frontier
from tidelake.model.schema import Schema
from tiers import some
from where_reference import FIELDS, random_rows

SCHEMA = pa.schema([field for field, _ in FIELDS])
# Of each family of key types one, every one with nulls, NaN and zeros of both signs where it has them.
KEYS = [["k", "s"], ["f"], ["s"], ["d", "b"], ["small one"]]
CONFIGS = {
    "inline": Config(),
    "stored": SMALL_PARTS,
    "folded": Config(inline_part_bytes=0, row_group_rows=4, merge_budget_s=0.0),
}


def fill(c, rng, times=4):
    for _ in range(times):
        table = random_rows(rng, FIELDS, 40)
        table = pa.concat_tables([table, table.slice(0, 10)])
        diffs = pa.array([rng.choice([-1, 1, 1, 2]) for _ in range(table.num_rows)], pa.int64())
        c.append(table.append_column("_diff", diffs))


def check(c, keys, as_of=None, **asked):
    """A look-up is the snapshot, filtered by key."""
    schema = schema_from_arrow(c.schema, list(c.key), None)
    whole = c.snapshot(as_of).read_all()
    asked = Schema(schema.key[: keys.num_columns])
    expected = whole.filter(pc.is_in(encode_key(whole, asked), value_set=encode_key(keys, asked)))
    assert str(c.lookup(keys, as_of).to_pylist()) == str(expected.to_pylist())


@pytest.mark.promise(
    "A look-up is the snapshot of its keys, for all types of keys, older schemas, rewritten times "
    "and narrowed batches",
    rule="`data/keys/keyset.py`, `shard/runs/scope.py`",
    also=["::test_rows_of_older_schemas_rewritten_times_and_narrowed_batches_are_seen"],
)
@pytest.mark.parametrize("config", list(CONFIGS))
@pytest.mark.parametrize("key", some(KEYS, 5), ids="-".join)
def test_a_lookup_is_the_snapshot_of_its_keys(key, config, tmp_path):
    rng = random.Random(f"{key}{config}")
    with tidelake.open(tmp_path / "lake", config=CONFIGS[config]) as lake:
        c = lake.create("c", SCHEMA, key=key)
        fill(c, rng)
        for n in (0, 1, 3, 30):
            keys = random_rows(rng, FIELDS, n).select(key)
            check(c, keys)
            check(c, keys, 1)
        c.advance_since(2)
        c.merge()
        for n in (1, 30):
            check(c, random_rows(rng, FIELDS, n).select(key))


@pytest.mark.promise(
    "A look-up by the first columns of a key is the snapshot of the keys that begin so",
    rule="`beginning` in `shard/reading/lookup.py`",
    also=["::test_a_lookup_by_the_first_columns_sees_rows_of_older_schemas"],
)
@pytest.mark.parametrize("config", list(CONFIGS))
@pytest.mark.parametrize("key", [["k", "s", "f"], ["s", "b"], ["f", "k"]], ids="-".join)
def test_a_lookup_by_the_first_columns_is_the_snapshot_of_what_begins_so(key, config, tmp_path):
    rng = random.Random(f"{key}{config}")
    with tidelake.open(tmp_path / "lake", config=CONFIGS[config]) as lake:
        c = lake.create("c", SCHEMA, key=key)
        fill(c, rng)
        for width in range(1, len(key)):
            for n in (0, 1, 30):
                keys = random_rows(rng, FIELDS, n).select(key[:width])
                check(c, keys)
                check(c, keys, 1)
        with pytest.raises(InvalidUpdates, match=f"missing column '{key[0]}'"):
            c.lookup(random_rows(rng, FIELDS, 2).select(key[1:]))


def test_a_lookup_by_the_first_columns_sees_rows_of_older_schemas(tmp_path):
    with tidelake.open(tmp_path / "lake", config=CONFIGS["stored"]) as lake:
        c = lake.create("c", {"a": "int32", "b": "string", "v": "string"}, key=["a", "b"])
        c.append([{"a": n % 3, "b": str(n), "v": "x"} for n in range(30)])
        c.evolve(pa.schema([("a", pa.int64()), ("b", pa.string()), ("w", pa.int8()), ("v", pa.string())]))
        c.append([{"a": n, "b": "z", "w": 1, "v": "y"} for n in (1, 2**40)])
        check(c, pa.table({"a": [1, 2**40, 5]}))
        assert c.lookup(pa.table({"a": [1]}), columns=["w"], where="v = 'y'").to_pylist() == [
            {"w": 1, "_time": 1, "_diff": 1}
        ]


def test_a_lookup_by_key_columns_that_are_not_the_first_ones_names_the_missing_one(tmp_path):
    with tidelake.open(tmp_path / "lake") as lake:
        c = lake.create("c", dict.fromkeys("abd", "int64"), key=["a", "b", "d"])
        c.append([{"a": 1, "b": 1, "d": 1}])
        with pytest.raises(InvalidUpdates, match="missing column 'b': the table has 'a', 'd'"):
            c.lookup({"a": [1], "d": [1]})


@pytest.mark.full
def test_every_key_that_is_there_is_found_at_any_size_of_row_groups(tmp_path):
    rng = random.Random(7)
    for group in (1, 2, 3, 7):
        config = Config(inline_part_bytes=0, row_group_rows=group, part_target_bytes=1024)
        with tidelake.open(tmp_path / str(group), config=config) as lake:
            c = lake.create("c", SCHEMA, key=["k"])
            fill(c, rng, 2)
            c.merge()
            for key in c.snapshot(columns=["k"]).read_all().column("k").unique().to_pylist():
                check(c, pa.table({"k": pa.array([key], SCHEMA.field("k").type)}))


def test_rows_of_older_schemas_rewritten_times_and_narrowed_batches_are_seen(tmp_path):
    config = Config(inline_part_bytes=0, row_group_rows=2, merge_budget_s=0.0)
    with tidelake.open(tmp_path / "lake", config=config) as lake:
        c = lake.create("c", plain_rows(1).schema.set(0, pa.field("id", pa.int32())), key=["id"])
        narrow = pa.table(
            {"id": pa.array([1, 2, 3, 4], pa.int32()), "v": list("abcd"), "_time": [0, 1, 2, 3]}
        )
        with c.builder() as builder:
            builder.add(narrow)
            batch = builder.finish(Frontier.of(4))
        # Of this batch only times 0 and 1 are in.
        c.distributed.append_batches([batch], lower=0, upper=2)
        with c.builder() as builder:
            builder.add(pa.table({"id": pa.array([1, 5], pa.int32()), "v": ["x", "y"], "_time": [2, 2]}))
            batch = builder.finish(Frontier.of(3))
        batch.rewrite_times(Frontier.of(4), Frontier.of(6))
        c.distributed.append_batches([batch], lower=2, upper=6)
        c.evolve(pa.schema([("id", pa.int64()), ("w", pa.int8()), ("v", pa.string())]))
        c.append(pa.table({"id": [2**40], "w": pa.array([1], pa.int8()), "v": ["z"]}))
        keys = pa.table({"id": [1, 2, 3, 5, 2**40]})
        for as_of in (0, 1, 3, 4, 6):
            check(c, keys, as_of)
        assert c.lookup(keys).num_rows == 5
        assert c.lookup(keys, 3).num_rows == 2


def test_a_lookup_takes_columns_and_a_condition(tmp_path):
    with tidelake.open(tmp_path / "lake", config=CONFIGS["stored"]) as lake:
        c = lake.create("c", plain_rows(1).schema, key=["id"])
        c.append(plain_rows(*range(50), v="x"))
        found = c.lookup(pa.table({"id": [3, 7, 99]}), columns=["v"], where="id > 3")
        assert found.to_pylist() == [{"v": "x", "_time": 0, "_diff": 1}]


def test_what_is_no_table_of_keys_is_refused(tmp_path):
    with tidelake.open(tmp_path / "lake") as lake:
        c = lake.create("c", plain_rows(1).schema, key=["id"])
        with pytest.raises(NotYetClosed):
            c.lookup(pa.table({"id": [1]}))
        c.append(plain_rows(1))
        c.append(plain_rows(2))
        with pytest.raises(InvalidUpdates, match="unknown column 'v'"):
            c.lookup(plain_rows(1))
        with pytest.raises(InvalidUpdates, match="missing column 'id'"):
            c.lookup(pa.table({}))
        with pytest.raises(InvalidUpdates, match="expected int64"):
            c.lookup(pa.table({"id": ["a"]}))
        with pytest.raises(UsageError, match="no column named 'w'"):
            c.lookup(pa.table({"id": [1]}), columns=["w"])
        c.advance_since(1)
        with pytest.raises(HistoryCompacted):
            c.lookup(pa.table({"id": [1]}), 0)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """300,000 rows of even ids in one run of several parts, and a handle that counts what it reads."""
    # Parts as they are: rows of four groups and more.
    recorder = Counters()
    config = Config(part_target_bytes=256 * 1024, merge_budget_s=0.0, row_group_rows=4096)
    place = tmp_path_factory.mktemp("large") / "lake"
    with open_lake(str(place), config=config, env=Env(recorder=recorder)) as lake:
        c = lake.create("c", pa.schema([("id", pa.int64()), ("v", pa.string())]), key=["id"])
        ids = pa.array(range(0, 600_000, 2), pa.int64())
        # Text that does not shrink, so that bytes tell rows.
        text = random.Random(0).randbytes(8 * len(ids)).hex()
        c.append(pa.table({"id": ids, "v": [text[i : i + 16] for i in range(0, len(text), 16)]}))
        yield c, recorder.counts


def cost(counts, ask):
    before = dict(counts)
    answer = ask()
    return answer, {name: counts[name] - before.get(name, 0) for name in counts}


def parts_of(c):
    return [part for member in c.state().spine for part in member.batch.parts()]


def test_a_lookup_of_clustered_keys_reads_the_row_groups_that_hold_them(large):
    c, counts = large
    assert len(parts_of(c)) > 3
    keys = pa.table({"id": pa.array(range(100_000, 120_000), pa.int64())})
    found, read = cost(counts, lambda: c.lookup(keys))
    assert found.num_rows == 10_000
    # 10,000 rows stand in at most four groups of 4,096, and these in at most two parts.
    opened = read["blob.open"]
    assert opened <= 2
    size = sum(part.size_bytes for part in parts_of(c))
    footers = opened * 16 * 1024
    assert read["blob.get.bytes"] - footers <= 4 * 4096 / 300_000 * size * 1.1
    # A footer, and the groups in one or two pieces.
    assert read["blob.get"] <= 3 * opened


def test_a_lookup_of_keys_that_are_not_there_reads_footers_at_most(large):
    c, counts = large
    for ids in ([-1], [600_001], [2**62]):
        _, read = cost(counts, lambda ids=ids: c.lookup(pa.table({"id": ids})))
        assert not read.get("blob.open")


def test_a_lookup_of_one_key_reads_one_row_group(large):
    c, counts = large
    size = sum(part.size_bytes for part in parts_of(c))
    for id_ in (0, 4096 * 2 - 2, 4096 * 2, 4096 * 2 + 2, 300_000, 599_998):
        found, read = cost(counts, lambda id_=id_: c.lookup(pa.table({"id": [id_]})))
        assert found.column("id").to_pylist() == [id_]
        assert read["blob.open"] == 1
        assert read["blob.get"] == 2
        assert read["blob.get.bytes"] - 16 * 1024 <= 4096 / 300_000 * size * 1.1


def test_a_lookup_between_two_row_groups_reads_none(large):
    c, counts = large
    # Between the last key of the first group and the first one of the second.
    found, read = cost(counts, lambda: c.lookup(pa.table({"id": [4096 * 2 - 1]})))
    assert not found.num_rows
    assert read["blob.get"] == 1


def test_a_lookup_opens_no_part_between_its_keys(large):
    c, counts = large
    found, read = cost(counts, lambda: c.lookup(pa.table({"id": [0, 599_998]})))
    assert found.num_rows == 2
    assert read["blob.open"] == 2 < len(parts_of(c))


@pytest.mark.promise(
    "One key is spelled in one way wherever keys are asked for: a value, a tuple, or a dict by name",
    rule="`data/ingest/keyvalues.py`",
)
@pytest.mark.parametrize(
    ("columns", "spellings"),
    [
        (["item"], ["tea", ("tea",), {"item": "tea"}, ["tea"], {"tea"}, [("tea",)], [{"item": "tea"}]]),
        (["item", "n"], [("tea", 1), {"n": 1, "item": "tea"}, [("tea", 1)], {("tea", 1)}]),
    ],
)
def test_a_key_is_spelled_in_one_way_everywhere(columns, spellings, tmp_path):
    rows = pa.table({"item": ["mug", "tea"], "n": [1, 1], "price": [8.0, 4.5]})
    with tidelake.open(tmp_path / "lake") as lake:
        for i, key in enumerate([*spellings, pa.table({"item": ["tea"], "n": [1]}).select(columns)]):
            c = lake.create(f"c{i}", rows.schema, key=columns)
            c.append(rows)
            assert c.lookup(key)["price"].to_pylist() == [4.5]
            with c.arrange(follow=False) as index:
                assert index.lookup(key)["price"].to_pylist() == [4.5]
                if not isinstance(key, list | set | pa.Table):
                    with index.cursor() as cursor:
                        assert cursor.seek_key_exact(key) and cursor.value[-1] == 4.5
                    assert c.history(key)["price"].to_pylist() == [4.5]
            for gone in (c.delete, c.writer("w").delete, partial(in_transaction, lake, c.name)):
                assert gone(key).removed == 1 and c.snapshot().read_all()["item"].to_pylist() == ["mug"]
                c.append(rows.slice(1))
            assert c.erase(key, reason="test").keys == 1 and not c.lookup(key).num_rows
        assert c.delete([]).removed == 0 == c.lookup([]).num_rows
        for wrong in (("tea", 1, 2), {"sku": "tea"}, object(), ["tea", ()]):
            for ask in (c.lookup, c.delete, c.history):
                with pytest.raises(InvalidUpdates):
                    ask(wrong)


def in_transaction(lake, name, key):
    transaction = lake.transaction()
    transaction.delete(name, key)
    return transaction.commit()
