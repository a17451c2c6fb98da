"""Names: renamed and swapped at once, given up for good, found at the same cost however many there are."""

import random
import threading
import uuid
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pytest

import inside
from clocks import SetClock
from inside import replaceable
from tables import SCHEMA, contents, rows
from tidelake.config import Config
from tidelake.env import Counters, Env
from tidelake.errors import (
    CollectionDropped,
    CollectionExists,
    CollectionNotFound,
    IncompatibleSchema,
    UsageError,
)
from tidelake.lake.api.lake import Lake
from tidelake.lake.catalog.catalog import Catalog
from tidelake.shard.upkeep.ending import Removed
from tidelake.shard.upkeep.maintain import Maintainer
from tidelake.store.memory import MemoryBlobStore, MemoryVersionLog
from tidelake.store.metered import metered
from tidelake.store.url import Stores

CONFIG = Config(upload_age_s=1_000.0, garbage_age_s=0.0)
OTHER = pa.schema([pa.field("k", pa.string())])


class Harbour:
    """Stores that several processes open, with the counts of each."""

    def __init__(self, config=CONFIG):
        self.clock, self.config = SetClock(), config
        self.stores = Stores(MemoryBlobStore(self.clock), MemoryVersionLog())

    def lake(self):
        counters = Counters()
        stores = replaceable(self.stores).layered(metered(counters))
        lake = Lake(
            f"memory://{uuid.uuid4().hex}", stores, self.config, Env(clock=self.clock, recorder=counters)
        )
        lake.counts = counters.counts
        return lake

    def made(self, **ids):
        """A lake with a collection of each name, which holds one row."""
        lake = self.lake()
        for name, id_ in ids.items():
            lake.create(name, SCHEMA, key=["id"]).append(rows(id_))
        return lake

    def names(self):
        """The id of the row that each collection holds, as another process sees it."""
        lake = self.lake()
        return {name: next(iter(contents(lake.collection(name))))[0] for name in lake.list()}


@pytest.fixture
def harbour():
    return Harbour()


def cost(lake, work):
    """Store calls and bytes read, by kind."""
    before = dict(lake.counts)
    work()
    stored = {name: n for name, n in lake.counts.items() if name.startswith(("log.", "blob."))}
    return {name: n - before.get(name, 0) for name, n in stored.items() if n != before.get(name, 0)}


def calls(lake, work):
    counted = cost(lake, work)
    return sum(n for name, n in counted.items() if not name.endswith((".bytes", ".entries")))


# Renaming


def test_a_renamed_collection_is_the_same_one_under_another_name(harbour):
    lake = harbour.made(a=1, b=2)
    old = harbour.lake().collection("a")
    new = lake.rename("a", "c")
    assert (new.name, new.id) == ("c", old.id)
    assert harbour.names() == {"b": 2, "c": 1}
    # A handle that has it open goes on with it, under its old name.
    old.append(rows(9))
    assert old.name == "a" and contents(new) == {(1, "x"): 1, (9, "x"): 1}
    with pytest.raises(CollectionNotFound, match=r"no collection 'a' \(it was dropped or renamed\)"):
        harbour.lake().collection("a")


def test_a_name_that_was_given_up_comes_back_only_if_it_is_said(harbour):
    lake = harbour.made(a=1, b=2)
    lake.rename("a", "c")
    with pytest.raises(CollectionExists, match="'a' existed here and was dropped or renamed"):
        lake.create("a", SCHEMA, key=["id"])
    with pytest.raises(CollectionExists, match="'a' existed here and was dropped or renamed"):
        lake.rename("c", "a")
    assert harbour.names() == {"b": 2, "c": 1}
    lake.rename("c", "a", allow_recreate=True)
    assert harbour.names() == {"a": 1, "b": 2}


@pytest.mark.promise(
    "Several names change at once: every read of the list shows each collection under exactly one name",
    rule="`lake/catalog/renaming.py`, `Catalog.set_all`",
    also=[
        "::test_names_go_round_at_once_and_one_may_be_given_up",
        "::test_threads_that_swap_and_rename_at_once_lose_no_collection",
        "::test_a_rename_that_cannot_be_changes_nothing",
    ],
)
def test_two_names_are_swapped_by_one_write_of_the_catalog(harbour):
    lake = harbour.made(orders=1, orders_fix=2)
    lake.collection("orders")
    before = harbour.stores.log.head("catalog").seqno
    assert cost(lake, lambda: lake.swap("orders", "orders_fix"))["log.compare_and_set"] == 1
    assert harbour.stores.log.head("catalog").seqno == before + 1
    assert harbour.names() == {"orders": 2, "orders_fix": 1}


def test_names_go_round_at_once_and_one_may_be_given_up(harbour):
    lake = harbour.made(a=1, b=2, c=3, d=4)
    lake.rename_all({"a": "b", "b": "c", "c": "a"})
    assert harbour.names() == {"a": 3, "b": 1, "c": 2, "d": 4}
    lake.rename_all({"a": "b", "b": "x", "d": "d"})
    assert harbour.names() == {"b": 3, "c": 2, "d": 4, "x": 1}
    with pytest.raises(CollectionExists):
        lake.create("a", SCHEMA, key=["id"])
    before = harbour.stores.log.head("catalog").seqno
    lake.rename_all({"b": "b"})
    assert harbour.stores.log.head("catalog").seqno == before


@pytest.mark.parametrize(
    ("names", "error", "said"),
    [
        ({"a": "b"}, CollectionExists, "'a' cannot be called 'b': there is a collection 'b'"),
        ({"a": "c", "b": "c"}, UsageError, "'a' and 'b' cannot both be called 'c'"),
        ({"a": "c", "none": "d"}, CollectionNotFound, "no collection 'none'; there is 'a', 'b'"),
        ({"a": "c", "gone": "d"}, CollectionNotFound, r"no collection 'gone' \(it was dropped or renamed\)"),
        ({"a": "gone"}, CollectionExists, "'gone' existed here"),
        ({"a": "b", "b": "gone"}, CollectionExists, "'gone' existed here"),
        ({"a": ""}, UsageError, "non-empty"),
        ({"a": "x" * 256}, UsageError, "at most 255"),
        ({"a": 5}, UsageError, "must be a text"),
        ({5: "a"}, UsageError, "must be a text"),
        ({}, UsageError, "names="),
        ("ab", UsageError, "names='ab'"),
    ],
)
def test_a_rename_that_cannot_be_changes_nothing(harbour, names, error, said):
    lake = harbour.made(a=1, b=2, gone=3)
    lake.drop("gone")
    before = harbour.stores.log.head("catalog")
    with pytest.raises(error, match=said):
        lake.rename_all(names)
    assert harbour.stores.log.head("catalog") == before and harbour.names() == {"a": 1, "b": 2}


def test_a_collection_that_is_being_dropped_gets_no_other_name(harbour):
    lake = harbour.made(a=1, b=2)
    lake._leftovers.ending(lake.collection("a").id).drop()
    with pytest.raises(CollectionDropped, match="collection 'a' was dropped"):
        lake.swap("a", "b")
    lake.collect()
    assert harbour.names() == {"b": 2}


@pytest.mark.full
def test_threads_that_swap_and_rename_at_once_lose_no_collection(harbour):
    harbour.made(a=0, b=1, c=2, d=3)
    stop, failures, seen = threading.Event(), [], []

    def swaps(one, other):
        lake = harbour.lake()
        for _ in range(30):
            lake.swap(one, other)

    def looks():
        lake = harbour.lake()
        while not stop.is_set():
            shards = inside.catalog(lake).read().shards
            seen.append(shards)
            assert len(set(shards.values())) == 4 == len(shards)
            lake.collection("a").snapshot()

    def guarded(work, *args):
        try:
            work(*args)
        except BaseException as error:
            failures.append(error)

    pairs = (("a", "b"), ("b", "c"), ("c", "d"))
    writers = [threading.Thread(target=guarded, args=(swaps, *pair)) for pair in pairs]
    reader = threading.Thread(target=guarded, args=(looks,))
    for thread in (*writers, reader):
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    reader.join()
    assert not failures and seen
    assert sorted(harbour.names().values()) == [0, 1, 2, 3]


def test_collections_that_are_dropped_or_renamed_before_their_turn_are_left_out(harbour):
    lake = harbour.made(a=1, b=2, c=3, d=4)
    found = lake.collections()
    assert next(found).name == "a"
    other = harbour.lake()
    other.drop("b")
    other.rename("c", "e")
    assert [one.name for one in found] == ["d"]
    assert [one.name for one in lake.collections()] == ["a", "d", "e"]


# Names that come back


def test_a_dropped_name_that_is_made_again_is_another_collection(harbour):
    lake = harbour.made(a=1)
    old = harbour.lake().collection("a")
    lake.drop("a")
    made = lake.create("a", SCHEMA, key=["id"], allow_recreate=True)
    assert made.id != old.id and contents_or_none(made) is None
    made.append(rows(7))
    # Once it is there, the word is for nothing: an equal one is opened, another one refused.
    assert lake.create("a", SCHEMA, key=["id"], allow_recreate=True).id == made.id
    with pytest.raises(IncompatibleSchema, match=r"exists with key\(id.*does not equal key\(k"):
        lake.create("a", OTHER, key=["k"], allow_recreate=True)
    with pytest.raises(CollectionDropped):
        old.append(rows(9))
    assert harbour.names() == {"a": 7}


def contents_or_none(collection):
    return None if collection.upper == collection.state().minimum else contents(collection)


def test_a_name_whose_drop_has_not_come_to_its_end_can_be_made_again(harbour):
    lake = harbour.made(a=1)
    old = lake.collection("a").id
    lake._leftovers.ending(old).drop()
    with pytest.raises(CollectionExists):
        lake.create("a", SCHEMA, key=["id"])
    lake.create("a", SCHEMA, key=["id"], allow_recreate=True).append(rows(7))
    assert lake.collect().shards == 1
    assert old not in set(harbour.stores.log.keys()) and harbour.names() == {"a": 7}


@pytest.mark.promise(
    "A drop frees the name of the shard that it dropped, also if it was renamed meanwhile, and no other name",
    rule="`Catalog.unname`",
    also=[
        "::test_a_drop_of_what_is_renamed_beside_it_drops_that_collection_and_no_other",
        "::test_a_copy_that_was_collected_before_it_was_confirmed_keeps_no_name",
    ],
)
def test_a_drop_takes_no_name_from_the_collection_that_was_made_again_beside_it(harbour):
    lake = harbour.made(a=1)
    whole = inside.catalog(lake).unname

    def late(*args, **given):
        harbour.lake().create("a", SCHEMA, key=["id"], allow_recreate=True).append(rows(7))
        return whole(*args, **given)

    inside.catalog(lake).unname = late
    assert lake.drop("a") is False
    assert harbour.names() == {"a": 7}


def test_a_drop_of_what_is_renamed_beside_it_drops_that_collection_and_no_other(harbour):
    lake = harbour.made(a=1, b=2)
    gone = lake.collection("a").id
    ending = lake._leftovers.ending

    def late(shard_id):
        lake._leftovers.ending = ending
        harbour.lake().swap("a", "b")
        return ending(shard_id)

    lake._leftovers.ending = late
    assert lake.drop("a") is True
    assert harbour.names() == {"a": 2}
    assert gone not in set(harbour.stores.log.keys())
    assert lake.fsck().clean


# What others know of names


@pytest.mark.promise(
    "Collection and fsck do not take a renamed shard for one without a name",
    rule="`Leftovers`, `LakeCheck`",
    also=["::test_fsck_tells_nothing_of_a_collection_that_is_renamed_and_dropped_before_its_turn"],
)
def test_collection_and_fsck_leave_alone_what_is_renamed_beside_them(harbour):
    lake = harbour.made(a=1, b=2)
    lake.create("empty", SCHEMA, key=["id"])
    harbour.clock.ms += int(2 * CONFIG.upload_age_s * 1000)
    keys, number = harbour.stores.log.keys, iter(range(100))

    def listed(prefix=""):
        found = list(keys(prefix))
        other = harbour.lake()
        other.swap("a", "b")
        n = next(number)
        other.rename(f"empty{n}" if n else "empty", f"empty{n + 1}")
        return iter(found)

    harbour.stores.log.keys = listed
    assert lake.collect() == Removed()
    report = lake.fsck(repair=True)
    assert report.clean and report.collections == 3
    harbour.stores.log.keys = keys
    assert next(number) > 1 and len(harbour.lake().list()) == 3
    harbour.lake().collection(next(n for n in lake.list() if n.startswith("empty"))).append(rows(5))


def test_fsck_tells_nothing_of_a_collection_that_is_renamed_and_dropped_before_its_turn(harbour):
    lake = harbour.made(a=1, b=2)
    listed = inside.catalog(lake).read

    def before_its_turn():
        inside.catalog(lake).read = listed
        found = listed()
        other = harbour.lake()
        other.rename("b", "c")
        other.drop("c")
        return found

    inside.catalog(lake).read = before_its_turn
    report = lake.fsck()
    assert report.clean and report.collections == 1


def test_a_copy_of_what_is_renamed_meanwhile_is_whole(harbour):
    lake, target = harbour.made(a=1, b=2), Harbour()
    whole = lake._shards.id_of

    def late(name):
        found = whole(name)
        harbour.lake().swap("a", "b")
        return found

    lake._shards.id_of = late
    report = lake.copy(target.lake(), ["a"], as_name="copy")
    assert report.collections[0].rows == 1 and target.names() == {"copy": 1}
    # A copy that was renamed is to be kept, and the name is free.
    target.lake().rename("copy", "kept")
    lake.copy(target.lake(), ["b"], as_name="copy")
    assert target.names() == {"copy": 1, "kept": 1}


def test_a_copy_that_was_collected_before_it_was_confirmed_keeps_no_name(harbour):
    lake, target = harbour.made(a=1), Harbour()
    into = target.lake()
    whole = inside.catalog(into).set

    def renamed_too(listing, name, shard_id):
        """A process that read the names before it had one ends the copy, and another one renames it."""
        inside.catalog(into).set = whole
        done = whole(listing, name, shard_id)
        target.clock.ms += int(2 * CONFIG.upload_age_s * 1000)
        assert target.lake()._leftovers.ending(shard_id).abandon(target.clock.ms)
        found = inside.catalog(into).look([name])
        assert inside.catalog(into).set_all(found, {name: None, "elsewhere": found.shards[name]})
        return done

    inside.catalog(into).set = renamed_too
    with pytest.raises(CollectionDropped):
        lake.copy(into, ["a"], as_name="copy")
    target.lake().collect()
    assert target.lake().list() == [] and target.lake().fsck().clean


@pytest.mark.promise(
    "A name never leads to a shard whose log is gone, however late the name is given",
    rule=(
        "`Catalog.rule_out`: the list of names moves on between the tombstone and the end of the log; "
        "who names looks at the list, then at the shard"
    ),
    also=["lake/catalog/test_drop.py::test_a_creator_that_wakes_up_late_loses_no_row"],
)
def test_a_name_that_is_given_while_its_shard_is_being_removed_leads_to_nothing_at_no_time(harbour):
    """Removing a shard without a name finds a name that it got since, and refuses one that comes."""
    lake, target = harbour.made(a=1), Harbour()
    into = target.lake()
    catalog, whole, rule_out = inside.catalog(into), inside.catalog(into).set, Catalog.rule_out

    def stalled(listing, name, shard_id):
        catalog.set = whole
        target.clock.ms += int(2 * CONFIG.upload_age_s * 1000)
        remover = target.lake()

        def named_before(shard):
            done.append(whole(listing, name, shard_id))
            rule_out(inside.catalog(remover), shard)

        inside.catalog(remover).rule_out = (
            named_before if is_first else partial(rule_out, inside.catalog(remover))
        )
        assert remover.collect().shards == 1
        return done[0] if is_first else whole(listing, name, shard_id)

    for is_first in (True, False):
        done = []
        catalog.set = stalled
        with pytest.raises(CollectionDropped):
            lake.copy(into, ["a"], as_name=f"copy{is_first}")
        assert done == [True] * is_first
        assert target.lake().list() == [] and target.lake().fsck().clean


# Costs


def fill(lake, count):
    """Name so many shards that are nowhere: only the list of names is looked at."""
    catalog = inside.catalog(lake)
    assert catalog.set_all(catalog.read(), {f"n{n:06}": uuid.uuid4().hex for n in range(count)})


@pytest.mark.promise(
    "Opening, creating, dropping and renaming cost as much among 10,000 names as among few",
    rule="`Catalog.look`, `Catalog._merge`",
    also=["::test_creating_and_dropping_costs_as_much_among_10000_names_as_among_few"],
)
@pytest.mark.parametrize("count", [0, 100, 10_000])
def test_opening_by_name_costs_as_much_among_10000_names_as_among_few(harbour, count):
    lake = harbour.made(n000050x=1)
    if count:
        fill(lake, count)
    again = harbour.lake()
    first = cost(again, lambda: again.collection("n000050x"))
    opened = cost(again, lambda: again.collection("n000050x"))
    assert first.get("blob.get.bytes", 0) + first.get("blob.get_ranges.bytes", 0) <= 131_072
    assert calls(again, lambda: again.collection("n000050x")) <= 8
    # The whole list takes half a megabyte.
    assert opened.get("blob.get.bytes", 0) <= 32_768
    assert calls(again, lambda: again.create("n000050x", SCHEMA, key=["id"])) <= 8


def test_names_that_others_change_are_found_and_an_unchanged_catalog_is_not_read(harbour):
    here, there = harbour.made(a=1, b=2), harbour.lake()
    assert there.collection("a").snapshot().read_all()["id"].to_pylist() == [1]
    with pytest.raises(CollectionNotFound):
        there.collection("c")
    here.create("c", SCHEMA, key=["id"])
    here.rename("a", "d")
    here.drop("b")
    assert contents(there.collection("d")) == contents(here.collection("d"))
    assert "c" in there
    for gone in ("a", "b"):
        with pytest.raises(CollectionNotFound):
            there.collection(gone)
    there.counts.clear()
    for _ in range(5):
        assert "d" in there
        assert "b" not in there
    assert {call for call in there.counts if call.startswith("blob.")} == set()


def test_an_intent_that_is_done_is_kept_by_no_process(harbour):
    here, there = inside.catalog(harbour.made(a=1)), inside.catalog(harbour.lake())
    assert here.intend(here.look(["a"]), "x", "what")
    ((key, what),) = here.look([], intents=True).intents.items()
    assert (what, there.look([], intents=True).intents) == ("what", {key: "what"})
    there.done(key)
    assert here.look([], intents=True).intents == there.look([], intents=True).intents == {}


def test_what_a_process_keeps_of_the_names_is_what_is_stored(harbour, monkeypatch):
    monkeypatch.setattr("tidelake.lake.catalog.catalog._KEPT_ROWS_MAX", 20)
    lakes = [harbour.lake() for _ in range(3)]
    chosen, given = random.Random(5), 0
    for _ in range(25):
        lake = chosen.choice(lakes)
        known = sorted(lake.names().values())
        match chosen.choice(["create", "create", "rename", "drop"]):
            case "rename" if known:
                lake.rename(chosen.choice(known), f"n{given}")
                given += 1
            case "drop" if known:
                lake.drop(chosen.choice(known))
            case _:
                lake.create(f"n{given}", SCHEMA, key=["id"])
                given += 1
        stored = {name: id_ for id_, name in harbour.lake().names().items()}
        for seen in lakes:
            for name in chosen.sample([f"n{n}" for n in range(given)], min(given, 4)):
                assert (seen.id_of(name) if name in seen else None) == stored.get(name)


@pytest.mark.full
@pytest.mark.parametrize("merge_budget_s", [0.0, 0.25])
def test_creating_and_dropping_costs_as_much_among_10000_names_as_among_few(merge_budget_s):
    def spent(count):
        """Calls and bytes of 200 creations and 100 drops of names that sort among the others."""
        harbour = Harbour(replace(CONFIG, merge_budget_s=merge_budget_s))
        lake = harbour.made(first=1)
        if count:
            fill(lake, count)
        reader, worst = harbour.lake(), 0

        def work():
            nonlocal worst
            for n in range(200):
                lake.create(f"n{n * 37 % 1000:06}x", SCHEMA, key=["id"])
                worst = max(worst, calls(reader, lambda n=n: reader.collection(f"n{n * 37 % 1000:06}x")))
            for n in range(100):
                lake.drop(f"n{n * 37 % 1000:06}x")
            lake.rename("first", "last")

        return cost(lake, work), worst

    (few, _), (many, worst) = spent(0), spent(10_000)

    def in_all(counted, kind):
        return sum(n for name, n in counted.items() if name.endswith(".bytes") == (kind == "bytes"))

    assert in_all(many, "calls") <= 1.5 * in_all(few, "calls")
    # A look reads a row group of the long run, and the list is not rewritten for every sixteenth change.
    assert in_all(many, "bytes") <= in_all(few, "bytes") + 301 * 2 * 32_768
    assert many["blob.put.bytes"] <= few["blob.put.bytes"] + 262_144
    assert worst <= 24


@pytest.mark.full
def test_a_hundred_thousand_names_that_were_dropped_are_a_short_row_each(harbour):
    """They are remembered for ever, so that none comes back by accident. No command reads them all."""
    lake = harbour.made(kept=1)
    fill(lake, 100_000)
    catalog = inside.catalog(lake)
    listing = catalog.read()
    gone = {name: None for name in listing.shards if name != "kept"}
    assert len(gone) == 100_000 and catalog.set_all(listing, gone)
    for n in range(12):
        lake.create(f"x{n}", SCHEMA, key=["id"])
        lake.drop(f"x{n}")
    state = inside.shard(catalog).state()
    # At most what came, went, and is there now, and a base; the shards' random ids take most of it.
    assert sum(part.rows for part in state.parts()) <= 4 * 100_000 + 200
    assert sum(part.size_bytes for part in state.parts()) <= 60 * 100_000
    inside.shard(catalog).advance_since(state.upper.just_before())
    Maintainer(inside.shard(catalog)).merge_all()
    state = inside.shard(catalog).state()
    assert sum(part.rows for part in state.parts()) <= 100_000 + 200
    assert sum(part.size_bytes for part in state.parts()) <= 10 * 100_000
    again = harbour.lake()
    again.collection("kept")
    opened = cost(again, lambda: again.collection("kept"))
    # The end of the one part, which says where its row groups are, and one of these.
    assert opened.get("blob.get.bytes", 0) <= 262_144
    with pytest.raises(CollectionExists):
        again.create("n000050", SCHEMA, key=["id"])
