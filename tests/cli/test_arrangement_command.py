"""`tidelake show --arrangement`: a checkpoint as it lies there, and the arrangement that it becomes."""

import json

import pyarrow as pa
import pytest

import tidelake

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])


@pytest.fixture
def run(run, tmp_path, monkeypatch):
    """Runs a command in a folder with a lake `cl`, its collection `c`, and an arrangement in `saved`."""
    monkeypatch.chdir(tmp_path)
    with tidelake.open("cl") as lake:
        collection = lake.create("c", SCHEMA, key=["id"])
        collection.append(pa.table({"id": [1, 2, 3], "v": ["a", "b", "c"], "_time": [0, 0, 4]}))
        with collection.arrange(follow=False) as arrangement:
            arrangement.save("saved")
        collection.append(pa.table({"id": [3], "v": ["c"], "_time": [5], "_diff": [-1]}))

    return run


def test_a_checkpoint_is_shown(run):
    code, out, _ = run("show", "--arrangement", "saved")
    assert code == 0
    assert "levels" in out and "checkpoints" in out and "bytes_on_disk" in out

    code, out, _ = run("show", "--arrangement", "saved", "--json")
    shown = json.loads(out)
    assert (shown["checkpoint"], shown["collection"], shown["position"]) == (1, "c", [5])
    assert (shown["batches"], shown["updates"], shown["since"]) == (1, 3, [4])
    assert shown["levels"][0] | {"level": 0, "loose": 1, "updates_on_disk": 3} == shown["levels"][0]
    assert [found["checkpoint"] for found in shown["checkpoints"]] == [1]


def test_an_arrangement_brought_up_to_date_is_shown(run):
    code, out, _ = run("show", "cl", "c", "--arrangement", "saved", "--json")
    shown = json.loads(out)
    assert code == 0
    assert (shown["collection"], shown["last_time"], shown["keys"]) == ("c", 5, 2)
    assert (shown["updates"], shown["retractions"]) == (4, 1)


def test_what_is_not_there_is_said(run):
    code, _, err = run("show", "--arrangement", "nowhere")
    assert code == 2 and "no checkpoint" in err
    code, _, err = run("show")
    assert code == 2 and "--arrangement" in err
    code, _, err = run("show", "cl")
    assert code == 2 and "COLLECTION" in err
