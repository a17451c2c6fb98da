"""How change files land in a folder."""

import json
import time
from itertools import pairwise
from pathlib import Path

import pytest
from git_repositories import make_repository

from demo.export import write_lines
from demo.history import GitCommit
from demo.repository import open_source
from tidelake.errors import UsageError


def test_files_hold_whole_commits_in_order_and_are_dated_in_order(tmp_path: Path) -> None:
    source = open_source(make_repository(tmp_path / "r", 50, 1))
    report = source.write_change_files(tmp_path / "landing", commits_per_file=8)
    files = sorted((tmp_path / "landing").iterdir())
    assert [f.name for f in files] == [f"changes-{first:09d}.jsonl" for first in range(0, 50, 8)]
    assert (report.files, report.bytes) == (len(files), sum(f.stat().st_size for f in files))
    dates = [f.stat().st_mtime for f in files]
    assert all(later - earlier == 8 for earlier, later in pairwise(dates))
    assert dates[-1] <= time.time()
    assert [f.name for f in sorted(files, key=lambda f: f.stat().st_mtime)] == [f.name for f in files]
    seen: list[int] = []
    for file in files:
        events = [json.loads(line) for line in file.read_text("ascii").splitlines()]
        lsns = [event["source"]["lsn"] for event in events if event is not None]
        assert lsns == sorted(lsns)
        assert not set(lsns) & set(seen)
        seen += sorted(set(lsns))
    assert seen == list(range(50))


def test_a_size_limit_cuts_files_after_a_commit(tmp_path: Path) -> None:
    lines = [(GitCommit(i, f"{i:040x}", "", "", 0), ["x" * 99] * 3) for i in range(10)]
    report = write_lines(lines, tmp_path, total=10, cut=False, file_bytes_max=500)
    assert (report.files, report.bytes) == (5, 3_000)


def test_two_exports_are_equal_byte_for_byte(tmp_path: Path) -> None:
    source = open_source(make_repository(tmp_path / "r", 20, 2))
    for name in "ab":
        source.write_change_files(tmp_path / name)
    a, b = ({f.name: f.read_bytes() for f in (tmp_path / name).iterdir()} for name in "ab")
    assert a == b


def test_a_folder_with_change_files_is_refused(tmp_path: Path) -> None:
    source = open_source(make_repository(tmp_path / "r", 3, 2))
    source.write_change_files(tmp_path / "landing")
    with pytest.raises(UsageError, match="holds change files already"):
        source.write_change_files(tmp_path / "landing")
    with pytest.raises(UsageError, match="at least a commit"):
        source.write_change_files(tmp_path / "other", commits_per_file=0)


def test_no_half_file_is_ever_visible(tmp_path: Path) -> None:
    names: set[str] = set()
    whole: set[int] = set()

    def look(done: int, total: int) -> None:
        for file in tmp_path.joinpath("landing").iterdir():
            names.add(file.name[0])
            if file.name[0] == "c":
                whole.add(len({e["source"]["lsn"] for e in map(json.loads, file.open()) if e}))

    open_source(make_repository(tmp_path / "r", 20, 3)).write_change_files(
        tmp_path / "landing", look, commits_per_file=4
    )
    assert names == {".", "c"}
    assert whole == {4}
