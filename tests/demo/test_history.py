"""The git side of the demo: what the change files say is what git says, at every commit."""

import json
import os
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from git_repositories import git, init, make_repository

from demo import truth
from demo.history import GitCommit, commits, open_history
from demo.repository import RepositorySource, open_source
from demo.rows import SCHEMA, path_bytes, path_text
from tidelake.errors import UsageError

RAW = os.fsdecode(b"raw-\xff\xfe")
ESCAPED = "raw-\\xff\\xfe"  # the same path to a careless decoder
ODD_NAMES = [
    RAW,
    ESCAPED,
    "ünï日本🌊",
    'quo"te',
    "new\nline",
    "tab\there",
    " lead",
    "-x",
    "a\\b",
    ":(top)x",
    "*",
]


def read_lines(directory: Path) -> list[dict[str, Any] | None]:
    return [
        json.loads(line)
        for file in sorted(directory.glob("changes-*.jsonl"))
        for line in file.read_text("ascii").split("\n")[:-1]
    ]


def replay(directory: Path) -> dict[str, list[dict[str, Any]]]:
    """The rows after each commit, by applying the change files and nothing else."""
    state: dict[str, dict[str, Any]] = {}
    states: dict[str, list[dict[str, Any]]] = {}
    after_delete = False
    for event in read_lines(directory):
        assert (event is None) == after_delete, "a tombstone follows each delete, and nothing else"
        after_delete = event is not None and event["op"] == "d"
        if event is None:
            continue
        before, after = event["before"], event["after"]
        kind = {(True, False): "d", (True, True): "u"}.get((bool(before), bool(after)))
        assert event["op"] == kind or (kind is None and event["op"] in ("cr" if after else "h"))
        if before:
            assert state.pop(before["path"]) == before
        if after:
            assert after["path"] not in state
            state[after["path"]] = after
        states[event["source"]["commit"]] = list(state.values())
    return states


def table(rows: list[dict[str, Any]]) -> pa.Table:
    typed = [{**row, "committed": datetime.fromisoformat(row["committed"])} for row in rows]
    return pa.Table.from_pylist(typed, schema=SCHEMA)


def sides(rows: list[dict[str, Any]]) -> set[truth.TruthSide]:
    return {truth.TruthSide(row["path"], row["mode"], row["blob"]) for row in rows}


def check_against_git(source: RepositorySource, directory: Path, *, samples: int = 5) -> None:
    """Every commit's tree, every step's difference, and whole rows at some commits."""
    report = source.write_change_files(directory)
    states = replay(directory)
    assert [*states] == [commit.sha for commit in source.commits]
    previous: GitCommit | None = None
    for commit in source.commits:
        rows = states[commit.sha]
        compared = truth.compare(source.tree(commit.sha), table(rows))
        assert compared.equal, compared.examples
        if previous is not None:
            old, new = sides(states[previous.sha]), sides(rows)
            assert truth.diff_of(old - new, new - old) == source.diff(previous.sha, commit.sha)
        previous = commit
    for index in truth.pick_commits(len(source.commits), samples):
        sha = source.commits[index].sha
        compared = truth.compare_sample(source.sample(sha), table(states[sha]))
        assert compared.equal, compared.examples
    lines = read_lines(directory)
    counted = report.creates + report.updates + report.deletes + report.reads + report.tombstones
    assert counted + report.heartbeats == len(lines)
    assert report.commits == len(source.commits)


def commit_all(repo: Path, message: str, when_s: int, author: str = "Ada") -> None:
    git(repo, "add", "-A")
    dated = {
        "GIT_COMMITTER_DATE": f"@{when_s} +0200",
        "GIT_AUTHOR_NAME": author,
        "GIT_AUTHOR_DATE": "@1 +0000",
    }
    git(repo, "commit", "-q", "--allow-empty", "-m", message, env=dated)


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """A repository with about everything that git can hold, in eleven commits."""
    repo = init(tmp_path / "odd")
    for name in ODD_NAMES:
        (repo / name).write_text(f"{name.encode(errors='replace')!r}\nunterminated")
    (repo / "empty").touch()
    (repo / "newline").write_text("\n")
    (repo / "binary").write_bytes(b"a\nb\0c\n")
    (repo / "late-nul").write_bytes(b"x" * 7_999 + b"\n" + b"\0\n")
    (repo / "large").write_bytes(b"0123456789\n" * 300_000)
    (repo / "link").symlink_to("newline")
    (repo / "dir").mkdir()
    (repo / "dir" / "file").write_text("one\ntwo\n")
    commit_all(repo, "root", 1_000_000_000)
    git(repo, "mv", "dir/file", "dir/moved")
    commit_all(repo, "rename", 1_000_000_100)
    (repo / "newline").chmod(0o755)
    (repo / "link").unlink()
    (repo / "link").write_text("no link any more")
    commit_all(repo, "mode and type", 1_000_000_050, "Žofie 🌊")
    commit_all(repo, "nothing", 1_000_000_200)
    (repo / "empty").unlink()
    (repo / "empty").mkdir()
    (repo / "empty" / "inside").write_text("a file became a folder\n")
    (repo / RAW).unlink()
    commit_all(repo, "file to folder", 1_000_000_300)
    (repo / "empty" / "inside").unlink()
    (repo / "empty").rmdir()
    (repo / "empty").write_text("and back")
    commit_all(repo, "folder to file", 1_000_000_400)
    git(repo, "update-index", "--add", "--cacheinfo", f"160000,{'12' * 20},module")
    git(repo, "commit", "-q", "-m", "submodule")
    git(repo, "update-index", "--cacheinfo", f"160000,{'34' * 20},module")
    git(repo, "commit", "-q", "-m", "submodule moves")
    git(repo, "checkout", "-q", "-b", "side", "HEAD~3")
    (repo / "on-the-side").write_text("s\n")
    (repo / "newline").write_text("side\n")
    git(repo, "add", "on-the-side", "newline")
    git(repo, "commit", "-q", "-m", "side")
    git(repo, "checkout", "-q", "main")
    git(repo, "merge", "-q", "--no-ff", "-m", "merge", "side")
    git(repo, "merge", "-q", "-s", "ours", "--allow-unrelated-histories", "-m", "kept ours", unrelated(repo))
    git(repo, "rm", "-rq", "--cached", ".")
    git(repo, "commit", "-q", "-m", "all gone")
    return repo


def unrelated(repo: Path) -> str:
    empty_tree = git(repo, "hash-object", "-t", "tree", "--stdin", "-w").strip()
    return git(repo, "commit-tree", empty_tree, "-m", "another root").decode().strip()


def test_change_files_replay_to_git_at_every_commit(odd: Path, tmp_path: Path) -> None:
    source = open_source(odd)
    assert len(source.commits) == 11
    assert not source.history.cut
    check_against_git(source, tmp_path / "landing", samples=11)


def test_rows_hold_what_the_schema_promises(odd: Path, tmp_path: Path) -> None:
    source = open_source(odd)
    source.write_change_files(tmp_path / "landing")
    states = replay(tmp_path / "landing")

    def rows(index: int) -> dict[str, dict[str, Any]]:
        return {row["path"]: row for row in states[source.commits[index].sha]}

    first = rows(0)
    lines = {
        "empty": 0,
        "newline": 1,
        "binary": None,
        "late-nul": 2,
        "large": 300_000,
        "link": 1,
        "new\nline": 2,
    }
    assert {path: first[path]["lines"] for path in lines} == lines
    assert (first["link"]["mode"], first["link"]["size"]) == ("120000", 7)
    assert first["newline"]["committed"] == "2001-09-09T01:46:40Z"
    assert (rows(1)["dir/moved"]["lines"], rows(1)["dir/moved"]["committed"]) == (2, "2001-09-09T01:48:20Z")
    assert (rows(2)["newline"]["mode"], rows(2)["newline"]["author"]) == ("100755", "Žofie 🌊")
    assert (rows(2)["binary"]["author"], rows(2)["link"]["mode"]) == ("Ada", "100644")
    module = rows(7)["module"]
    assert (module["blob"], module["size"], module["lines"], module["mode"]) == (
        "34" * 20,
        None,
        None,
        "160000",
    )
    assert rows(10) == {}


def test_paths_stay_distinct_and_can_be_undone() -> None:
    paths = [os.fsencode(name) for name in ODD_NAMES]
    paths += [
        b"\xff",
        b"\\xff",
        b"\\\xff",
        b"\\\\xff",
        b"\\x5c\xff",
        b"a/\xed\xa0\x80",
        "é\\".encode() + b"\xe9",
    ]
    texts = [path_text(path) for path in paths]
    assert len(set(texts)) == len(paths)
    assert [path_bytes(text) for text in texts] == paths
    assert all(text.encode("utf-8") for text in texts)


@pytest.mark.parametrize("seed", range(3))
def test_random_histories_replay_to_git(tmp_path: Path, seed: int) -> None:
    check_against_git(open_source(make_repository(tmp_path / "r", 60, seed)), tmp_path / "landing", samples=3)


def test_a_shallow_clone_begins_with_a_whole_tree(odd: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", "--no-local", "--depth", "6", f"file://{odd}", "shallow")
    source = open_source(tmp_path / "shallow")
    assert [c.sha for c in source.commits] == [c.sha for c in commits(odd)][-6:]
    assert source.history.cut
    assert "shallow" in source.note
    check_against_git(source, tmp_path / "landing", samples=6)
    ops = [e["op"] for e in read_lines(tmp_path / "landing") if e and e["source"]["lsn"] == 0]
    assert set(ops) == {"r"}


def test_a_limit_takes_the_newest_commits(odd: Path, tmp_path: Path) -> None:
    source = open_source(odd, limit=4)
    assert [c.sha for c in source.commits] == [c.sha for c in commits(odd)][-4:]
    assert source.history.cut
    check_against_git(source, tmp_path / "landing", samples=4)
    assert not open_source(odd, limit=11).history.cut
    with pytest.raises(UsageError, match="at least one commit"):
        open_source(odd, limit=0)


def test_configuration_and_environment_change_nothing(
    odd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_source(odd).write_change_files(tmp_path / "plain")
    for name, value in {
        "log.showSignature": "true", "log.diffMerges": "combined", "log.follow": "true",
        "log.date": "relative", "diff.ignoreSubmodules": "all", "diff.renames": "copies",
        "diff.orderFile": "/nowhere",
        "diff.external": "false", "diff.relative": "true", "diff.noprefix": "true", "core.quotepath": "on",
        "core.abbrev": "5", "core.pager": "false", "color.ui": "always", "format.pretty": "fuller",
        "i18n.logOutputEncoding": "latin1",
    }.items():  # fmt: skip
        git(odd, "config", name, value)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", "false")
    (odd / "sub").mkdir()
    source = open_source(odd / "sub")
    check_against_git(source, tmp_path / "landing", samples=3)
    assert read_lines(tmp_path / "landing") == read_lines(tmp_path / "plain")


def test_what_is_no_repository_is_refused_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    with pytest.raises(UsageError, match=r"no directory .*name a git repository"):
        open_history(tmp_path / "missing")
    (tmp_path / "plain").mkdir()
    with pytest.raises(UsageError, match=r"not a git repository.*name another"):
        open_history(tmp_path / "plain")
    with pytest.raises(UsageError, match="no commits"):
        open_history(init(tmp_path / "fresh"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="install git"):
        open_history(tmp_path / "fresh")


def test_a_missing_object_is_named(odd: Path, tmp_path: Path) -> None:
    blob = git(odd, "rev-parse", "HEAD~1:binary").decode().strip()
    (odd / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    with pytest.raises(UsageError, match=f"{blob}.*full clone"):
        open_source(odd).write_change_files(tmp_path / "landing")
    assert list((tmp_path / "landing").iterdir()) == []
    tree = open_history(odd).commits[1].tree
    (odd / ".git" / "objects" / tree[:2] / tree[2:]).unlink()
    with pytest.raises(UsageError, match="git fsck"):
        open_source(odd).write_change_files(tmp_path / "landing")


def test_comparison_counts_what_differs(odd: Path) -> None:
    source = open_source(odd)
    right = source.tree(source.commits[0].sha)
    assert truth.compare(right, right.take(list(reversed(range(right.num_rows))))).equal
    twice = truth.compare(right, pa.concat_tables([right, right.slice(0, 1)]))
    assert (twice.rows, twice.missing, twice.surplus) == (right.num_rows + 1, 0, 1)
    other = right.set_column(1, "mode", pa.array(["100600", *right["mode"].to_pylist()[1:]]))
    changed = truth.compare(right, other)
    assert (changed.missing, changed.surplus, len(changed.examples)) == (1, 1, 2)
    assert not changed.equal
    nothing = truth.compare_sample(source.sample(source.commits[0].sha), table([]))
    assert nothing.missing == 12
