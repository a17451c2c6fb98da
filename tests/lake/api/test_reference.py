"""References to arrangements: small, and one arrangement a process for all who name the same."""

import multiprocessing
import os
import threading

import pyarrow as pa
import pytest

import tidelake
from tables import SCHEMA, at
from threads import at_once
from tidelake.errors import CollectionDropped, UsageError


@pytest.fixture
def stored(tmp_path):
    """A collection in a directory, which other processes can open."""
    with tidelake.open(tmp_path / "lake") as lake:
        collection = lake.create("c", SCHEMA, key=["id"])
        collection.append(at(0, 1, 2), upper=1)
        yield collection


@pytest.fixture
def reference(stored, tmp_path):
    made = tidelake.arrangement_reference(stored, directory=tmp_path / "batches")
    yield made
    made.forget_here()


def ids(arrangement):
    return arrangement.range()["id"].to_pylist()


def test_it_is_equal_to_others_that_name_the_same(stored, tmp_path):
    one, same = (tidelake.arrangement_reference(stored, columns=["v"], where="id > 1") for _ in range(2))
    other = tidelake.arrangement_reference(stored, where="id > 1")
    assert one == same and hash(one) == hash(same) and one != other
    assert all(isinstance(getattr(one, name), str | float | tuple | None) for name in vars(one))


def test_all_who_ask_get_the_same_arrangement_with_what_is_new(stored, reference):
    found = reference.here()
    assert ids(found) == [1, 2]
    stored.append(at(1, 3))
    assert reference.here(catch_up=False) is found and ids(found) == [1, 2]
    assert reference.here() is found and ids(found) == [1, 2, 3]
    (hold,) = stored.state().holds.values()
    assert hold.purpose == "arrangement of c"


@pytest.mark.promise(
    "A process has one arrangement for all equal references, a forked process has its own, and "
    "where history is gone a new one is loaded",
    rule="`lake/api/reference.py`",
    also=[
        "::test_each_process_has_one_of_its_own",
        "::test_an_arrangement_whose_history_is_gone_is_made_anew",
    ],
)
def test_threads_that_ask_at_once_share_one(reference):
    found, together = [], threading.Barrier(4)

    def ask(_):
        together.wait()
        found.append(reference.here())

    at_once(ask, range(4))
    assert len(found) == 4 and len(set(map(id, found))) == 1


def test_after_it_is_forgotten_it_is_made_anew(stored, reference, tmp_path):
    first = reference.here()
    reference.forget_here()
    assert not stored.state().holds and os.listdir(tmp_path / "batches") == []
    assert reference.here() is not first


def test_an_arrangement_that_another_thread_has_closed_is_made_anew(stored, reference):
    first = reference.here()
    first.close()
    again = reference.here()
    assert again is not first and ids(again) == [1, 2]


def test_a_renamed_collection_has_the_arrangement_that_it_had(stored, reference, tmp_path):
    first = reference.here()
    with tidelake.open(tmp_path / "lake") as lake:
        renamed = lake.rename("c", "d")
        same = tidelake.arrangement_reference(renamed, directory=tmp_path / "batches")
        assert same.name == "d" and same.here() is first


def test_an_arrangement_whose_history_is_gone_is_made_anew(stored, reference):
    first = reference.here()
    for hold in list(stored.state().holds):
        stored.distributed.release(hold)
    stored.append(at(1, 3), upper=20)
    stored.advance_since(15)
    again = reference.here()
    assert again is not first and ids(again) == [1, 2, 3]


def test_an_arrangement_whose_columns_have_changed_is_made_anew(stored, reference):
    first = reference.here()
    stored.evolve(pa.schema([SCHEMA.field("id")]), drop=[name for name in SCHEMA.names if name != "id"])
    stored.append(pa.table({"id": [1], "_time": [stored.upper.elements[0]], "_diff": [-1]}))
    again = reference.here()
    assert again is not first and again.schema.names == ["id"]
    assert ids(again) == [2]


def test_it_begins_with_a_checkpoint(stored, tmp_path):
    with stored.arrange(follow=False) as arrangement:
        arrangement.save(tmp_path / "saved")
    stored.append(at(1, 3))
    reference = tidelake.arrangement_reference(stored, restore=tmp_path / "saved")
    assert ids(reference.here()) == [1, 2, 3]
    reference.forget_here()


def test_a_dropped_collection_is_said_to_be_dropped(stored, tmp_path):
    reference = tidelake.arrangement_reference(stored)
    with tidelake.open(tmp_path / "lake") as lake:
        lake.drop("c")
    with pytest.raises(CollectionDropped, match="'c'"):
        reference.here()


def test_wrong_arguments_are_refused(stored):
    with pytest.raises(UsageError, match="columns"):
        tidelake.arrangement_reference(stored, columns="v")
    with pytest.raises(UsageError, match="no column named"):
        tidelake.arrangement_reference(stored, columns=["nope"]).here()


def _in_child(reference, parent_folder, answers):
    found = reference.here()
    answers.put((ids(found), parent_folder != found._home.path))
    reference.forget_here()


@pytest.mark.full
@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_each_process_has_one_of_its_own(stored, reference, method):
    mine = reference.here()
    context = multiprocessing.get_context(method)
    answers = context.Queue()
    child = context.Process(target=_in_child, args=(reference, mine._home.path, answers))
    child.start()
    assert answers.get(timeout=60) == ([1, 2], True)
    child.join(60)
    assert child.exitcode == 0
    assert os.path.isdir(mine._home.path) and ids(mine) == [1, 2]
