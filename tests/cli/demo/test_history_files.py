"""How change files land in a folder, and the export that ships with the package."""

import gzip
import json
import time
from itertools import pairwise
from pathlib import Path

import pytest
from git_repositories import git, init, make_repository
from test_history import read_lines, replay, table

from tidelake.cli.demo import source as sources
from tidelake.cli.demo import truth
from tidelake.cli.demo.bundle import BYTES_MAX, make_bundle
from tidelake.cli.demo.export import write_lines
from tidelake.cli.demo.history import GitCommit
from tidelake.cli.demo.packaged import CHANGES, TRUTH, open_packaged
from tidelake.cli.demo.repository import own_checkout
from tidelake.cli.demo.rows import SCHEMA
from tidelake.cli.demo.source import DemoSource, open_source
from tidelake.errors import CorruptionError, FormatTooNew, UsageError

ROW_FIELDS = {"path", "blob", "size", "lines", "mode", "author", "committed"}


def check_source(source: DemoSource, directory: Path) -> None:
    """What the demo will do with any source."""
    report = source.write_change_files(directory, commits_per_file=7)
    assert report.commits == len(source.commits)
    states = replay(directory)
    for index in source.checked:
        sha = source.commits[index].sha
        assert truth.compare(source.tree(sha), table(states[sha])).equal
        compared = truth.compare_sample(source.sample(sha), table(states[sha]))
        assert compared.equal, compared.examples
        assert source.sample(sha).schema == SCHEMA
    shas = [source.commits[index].sha for index in source.pair]
    a, b = ({truth.TruthSide(r["path"], r["mode"], r["blob"]) for r in states[sha]} for sha in shas)
    assert truth.diff_of(a - b, b - a) == source.diff(*shas)


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


def test_a_repository_source_serves_the_demo(tmp_path: Path) -> None:
    check_source(open_source(make_repository(tmp_path / "r", 40, 4)), tmp_path / "landing")


@pytest.mark.full
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6])
def test_short_histories_serve_the_demo(tmp_path: Path, count: int) -> None:
    source = open_source(make_repository(tmp_path / "r", count, 9))
    assert len(source.checked) == min(count, 5)
    assert source.pair[0] < source.pair[1] or count == 1
    check_source(source, tmp_path / "landing")


def test_a_packaged_history_answers_like_its_repository(tmp_path: Path) -> None:
    repo = make_repository(tmp_path / "r", 40, 6)
    commits, size_bytes = make_bundle(repo, tmp_path / "bundle")
    assert (commits, size_bytes) == (40, sum(f.stat().st_size for f in (tmp_path / "bundle").iterdir()))
    live, packaged = open_source(repo), open_packaged("because", tmp_path / "bundle")
    check_source(packaged, tmp_path / "from-package")
    live.write_change_files(tmp_path / "from-git")
    assert read_lines(tmp_path / "from-git") == read_lines(tmp_path / "from-package")
    assert list(live.commits) == list(packaged.commits)
    assert (live.checked, live.pair) == (packaged.checked, packaged.pair)
    for index in live.checked:
        sha = live.commits[index].sha
        assert live.tree(sha) == packaged.tree(sha)
        assert live.sample(sha) == packaged.sample(sha)
    with pytest.raises(UsageError, match="ask for a checked one"):
        packaged.tree(packaged.commits[1].sha)
    with pytest.raises(UsageError, match="ask for its pair"):
        packaged.diff(packaged.commits[0].sha, packaged.commits[1].sha)


@pytest.mark.full
def test_a_bundle_keeps_to_its_size_by_taking_fewer_commits(tmp_path: Path) -> None:
    repo = make_repository(tmp_path / "r", 200, 6)
    commits, size_bytes = make_bundle(repo, tmp_path / "bundle", bytes_max=30_000)
    assert commits < 200
    assert size_bytes <= 30_000
    packaged = open_packaged("because", tmp_path / "bundle")
    assert packaged.commits[-1].sha == open_source(repo).commits[-1].sha
    check_source(packaged, tmp_path / "landing")
    with pytest.raises(UsageError, match="newest commit alone"):
        make_bundle(repo, tmp_path / "bundle", bytes_max=100)


def test_a_bundle_with_an_address_is_refused(tmp_path: Path) -> None:
    repo = init(tmp_path / "r")
    git(repo, "commit", "-q", "--allow-empty", "-m", "x", env={"GIT_AUTHOR_NAME": "me@example.org"})
    with pytest.raises(UsageError, match="must not be published"):
        make_bundle(repo, tmp_path / "bundle")


def test_damaged_and_newer_bundles_are_told_apart(tmp_path: Path) -> None:
    make_bundle(make_repository(tmp_path / "r", 3, 6), tmp_path / "bundle")
    truth_file = tmp_path / "bundle" / TRUTH
    answers = json.loads(gzip.decompress(truth_file.read_bytes()))
    truth_file.write_bytes(gzip.compress(json.dumps({**answers, "format": 2}).encode()))
    with pytest.raises(FormatTooNew):
        open_packaged("because", tmp_path / "bundle")
    truth_file.write_bytes(b"not gzip")
    with pytest.raises(CorruptionError):
        open_packaged("because", tmp_path / "bundle")
    with pytest.raises(CorruptionError):
        open_packaged("because", tmp_path / "missing")


def test_the_shipped_export_serves_the_demo_and_tells_nothing_else(tmp_path: Path) -> None:
    shipped = open_packaged("because")
    check_source(shipped, tmp_path / "landing")
    assert sum((shipped.directory / name).stat().st_size for name in (CHANGES, TRUTH)) <= BYTES_MAX
    for event in read_lines(tmp_path / "landing"):
        for side in (event or {}).items():
            if side[0] in ("before", "after") and side[1] is not None:
                assert set(side[1]) == ROW_FIELDS
                assert "@" not in side[1]["author"]
    assert set(shipped.answers) == {"format", "cut", "commits", "checked", "pair", "trees", "samples", "diff"}


def test_without_a_checkout_or_git_the_shipped_export_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if own_checkout() is not None:
        assert "git repository" in open_source().description
    monkeypatch.setattr(sources, "own_checkout", lambda: None)
    assert "without its git history" in open_source().note
    monkeypatch.setattr(sources, "own_checkout", lambda: init(tmp_path / "fresh"))
    assert "no commits" in open_source().note
    with pytest.raises(UsageError, match="no commits"):
        open_source(tmp_path / "fresh")
