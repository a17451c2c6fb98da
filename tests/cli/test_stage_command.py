"""`tidelake stage`, `tidelake seal`, and what reads and `show` say of what is staged."""

import json

import pytest


@pytest.fixture
def run(run, tmp_path, monkeypatch):
    """Runs a command in this process, in an empty directory."""
    monkeypatch.chdir(tmp_path)
    return run


@pytest.fixture
def lake(run, tmp_path):
    (tmp_path / "some.csv").write_text("id,_time\n1,1\n2,3\n3,9\n")
    (tmp_path / "late.csv").write_text("id,_time\n4,2\n5,12\n")
    (tmp_path / "untimed.csv").write_text("id\n7\n")
    assert run("create", "cl", "c", "--key", "id", "--column", "id:int64")[0] == 0
    return "cl"


def ids(out):
    return [json.loads(line)["id"] for line in out.splitlines()]


def test_what_is_staged_is_read_on_request_until_it_is_sealed(run, lake):
    code, out, _ = run("stage", lake, "c", "some.csv", "--json")
    assert code == 0 and json.loads(out) == [{"rows": 3, "upper": [0], "already": False}]
    assert ids(run("snapshot", lake, "c", "--staged", "--json")[1]) == [1, 2, 3]
    assert ids(run("snapshot", lake, "c", "--staged", "--as-of", "4", "--json")[1]) == [1, 2]
    assert ids(run("changes", lake, "c", "1", "9", "--staged", "--json")[1]) == [2, 3]
    code, _, err = run("snapshot", lake, "c", "--timeout", "0")
    assert code == 4 and "closed" in err
    code, out, _ = run("seal", lake, "c", "5", "--json")
    assert code == 0 and json.loads(out) == [{"lower": [0], "upper": [5], "already": False}]
    assert ids(run("snapshot", lake, "c", "--json")[1]) == [1, 2]
    assert json.loads(run("seal", lake, "c", "3", "--json")[1])[0]["already"] is True


def test_a_token_stages_once(run, lake):
    for already in (False, True):
        answer = json.loads(run("stage", lake, "c", "some.csv", "--token", "day 1", "--json")[1])
        assert answer == [{"rows": 0 if already else 3, "upper": [0], "already": already}]
    assert ids(run("snapshot", lake, "c", "--staged", "--json")[1]) == [1, 2, 3]


@pytest.mark.parametrize("command", ["append", "upsert"])
def test_a_token_writes_once_and_the_second_call_says_already(run, lake, command):
    call = (command, lake, "c", "untimed.csv", "--time", "1", "--token", "day 1", "--json")
    for already in (False, True):
        code, out, _ = run(*call)
        (answer,) = json.loads(out)
        assert (code, answer["rows"], answer["already"]) == (0, 0 if already else 1, already)
    code, _, err = run(*call[:-3], "--json")
    assert code == 2 and "closed times keep their contents" in err


def test_closed_times_and_rows_without_times_are_refused(run, lake):
    run("seal", lake, "c", "5")
    code, _, err = run("stage", lake, "c", "late.csv")
    assert code == 2 and "time 2" in err
    assert ids(run("snapshot", lake, "c", "--staged", "--json")[1]) == []
    code, _, err = run("stage", lake, "c", "untimed.csv")
    assert code == 2 and "--time" in err
    assert run("stage", lake, "c", "untimed.csv", "--time", "8")[0] == 0
    assert ids(run("snapshot", lake, "c", "--staged", "--json")[1]) == [7]


def test_show_tells_what_is_staged_and_how_far_it_is_drained(run, lake):
    run("stage", lake, "c", "some.csv")
    shown = json.loads(run("show", lake, "c", "--json")[1])
    assert (shown["drained"], shown["staged_updates"]) == ([0], 3)
    (staged,) = shown["staged"]
    assert (staged["first_time"], staged["last_time"], staged["updates"]) == (1, 9, 3)
    assert "staged batches" in run("show", lake, "c")[1]
    run("seal", lake, "c", "5")
    run("maintain", lake, "c", "--once")
    shown = json.loads(run("show", lake, "c", "--json")[1])
    assert (shown["drained"], shown["staged_updates"]) == ([5], 1)
    run("seal", lake, "c", "10")
    assert "staged batches" not in run("show", lake, "c")[1]
