"""`tidelake restore`, and jobs that run again under a token."""

import pyarrow as pa
import pytest

import tidelake

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])


@pytest.fixture
def place(tmp_path):
    with tidelake.open(tmp_path / "lake") as lake:
        made = lake.create("c", SCHEMA, key=["id"])
        for time in (1, 2):
            made.upsert(pa.table({"id": [1], "v": [f"v{time}"]}), time=time)
    return tmp_path / "lake"


def values(place):
    with tidelake.open(place) as lake:
        return lake.collection("c").to_arrow()["v"].to_pylist()


def test_contents_come_back_once_under_a_token(run, place):
    code, out, err = run("restore", place, "c", "--as-of", "1", "--token", "back", "--json")
    assert (code, err, values(place)) == (0, "", ["v1"]) and '"already":false' in out.replace(" ", "")
    code, out, err = run("restore", place, "c", "--as-of", "1", "--token", "back")
    assert (code, err, out.split()[-1]) == (0, "", "yes")
    assert run("restore", place, "c", "--as-of", "9").code == 4


@pytest.mark.parametrize(
    "command",
    [
        ["append", "day.csv"],
        ["append", "day.csv", "--envelope", "snapshot"],
        ["append", "day.csv", "--envelope", "upsert"],
        ["upsert", "day.csv"],
        ["delete", "--where", "id = 1"],
        ["restore", "--as-of", "1"],
    ],
    ids=" ".join,
)
def test_a_job_that_runs_again_at_its_time_answers_already(run, place, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "day.csv").write_text("id,v\n7,x\n", encoding="utf-8")
    verb, *more = command
    for said in ("no", "yes"):
        code, out, err = run(verb, place, "c", *more, "--time", "5", "--token", "day 5")
        assert (code, err, out.split()[-1]) == (0, "", said)
    # Without the token, the time is closed, and the error names what to do.
    code, _, err = run(verb, place, "c", *more, "--time", "5")
    assert code == 2 and "give a token" in err and "docs/corrections.md" in err
