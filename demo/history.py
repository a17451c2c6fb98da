"""A repository's first-parent line: its commits, what each changed, and the measure of each blob.

Owns the reading of commits, tree differences and blob contents for the export; must not know files or
rows. Commits are numbered from 0, oldest first; that number is the demo's data time. The first commit
of the window is compared with the empty tree, so a shallow clone or a window begins with a whole tree.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO

from demo.git import Git, split_nul
from demo.rows import name_text, path_text, seconds
from tidelake.errors import UsageError

Progress = Callable[[int, int], None]
"""Called as `progress(done, total)`; `done` never goes back and ends at `total`."""

ABSENT = "000000"
_BINARY_PREFIX_BYTES = 8_000
_BLOCK_BYTES = 1 << 20
_ASK_BLOBS = 60  # at most 3,900 bytes of ids: fits the smallest pipe, so asking cannot block


@dataclass(frozen=True, slots=True)
class GitCommit:
    """A commit of the first-parent line.

    Attributes:
        index: its place in the window, 0 for the oldest. This is the demo's data time.
        sha: object id.
        tree: object id of its tree.
        author: name of the author.
        committed_s: commit time, seconds since 1970 UTC. May go back from one commit to the next.
    """

    index: int
    sha: str
    tree: str
    author: str
    committed_s: int


@dataclass(frozen=True, slots=True)
class GitChange:
    """A path that a commit changed. A rename is a deletion and a creation.

    Attributes:
        path: as `path_text` spells it.
        old_mode, new_mode: six octal digits; `ABSENT` where the path was not or is no more.
        old_blob, new_blob: object ids; zeros where absent.
    """

    path: str
    old_mode: str
    new_mode: str
    old_blob: str
    new_blob: str


@dataclass(frozen=True, slots=True)
class Measure:
    """Size of a blob in bytes, and its lines (None when binary)."""

    size: int
    lines: int | None


@dataclass(frozen=True)
class GitHistory:
    """The commits of a window of the first-parent line, oldest first.

    Attributes:
        git: the repository.
        commits: at least one.
        cut: whether the first commit has a parent that is not in the window: the clone is shallow or a
            limit was given. Its whole tree then counts as its changes.
    """

    git: Git
    commits: tuple[GitCommit, ...]
    cut: bool

    def changes(self) -> Iterator[tuple[GitCommit, list[GitChange]]]:
        """Each commit with its changes against the one before, sorted by path; a commit may have none.

        One `git diff-tree` for the whole window. Memory: the changes of one commit.
        """
        empty = self.git.run(["hash-object", "-t", "tree", "--stdin"]).decode().strip()
        trees = [empty, *(commit.tree for commit in self.commits)]
        pairs = "".join(f"{old} {new}\n" for old, new in pairwise(trees))
        arguments = [
            "diff-tree",
            "--stdin",
            "-r",
            "-z",
            "--raw",
            "--no-renames",
            "--no-abbrev",
            "-O/dev/null",
        ]
        fields = split_nul(self.git.stream(arguments, stdin=pairs.encode()))
        waiting = iter(self.commits)
        commit: GitCommit | None = None
        found: list[GitChange] = []
        for field in fields:
            # Each pair prints `old new\n`; then its records, `:modes blobs status` NUL path NUL.
            *headers, record = field.split(b"\n")
            for header in headers:
                if commit is not None:
                    yield commit, found
                commit, found = _next_commit(waiting, header), []
            if record:
                path = path_text(next(fields))
                old_mode, new_mode, old_blob, new_blob, _ = record[1:].decode().split(" ")
                found.append(GitChange(path, old_mode, new_mode, old_blob, new_blob))
        if commit is not None:
            yield commit, found
        if (left := next(waiting, None)) is not None:
            raise UsageError(f"git said nothing about commit {left.sha}; `git fsck` tells if it is damaged")


def open_history(repo: Path, *, limit: int | None = None) -> GitHistory:
    """The first-parent line of HEAD, or its last `limit` commits.

    Raises:
        UsageError: git is not installed, there is no repository, or it has no commit.
    """
    if limit is not None and limit < 1:
        raise UsageError(f"a history needs at least one commit, not limit={limit}")
    if not repo.is_dir():
        raise UsageError(f"there is no directory {str(repo)!r}: name a git repository")
    git = Git(repo)
    if (probe := git.attempt(["rev-parse", "--git-dir"])).returncode != 0:
        said = name_text(probe.stderr).strip()
        raise UsageError(
            f"{str(repo)!r} is not a git repository that git will read ({said}): name another one"
        )
    # From the top: in a sub-folder, `git log -- path` takes the path as relative to it.
    top = git.attempt(["rev-parse", "--show-toplevel"])
    if top.returncode == 0:  # a bare repository has none
        git = Git(Path(os.fsdecode(top.stdout.removesuffix(b"\n"))))
    head = git.attempt(["rev-parse", "--verify", "--quiet", "HEAD^{commit}"])
    if head.returncode != 0:
        raise UsageError(
            f"the repository {str(repo)!r} has no commits: commit something, or name another one"
        )
    commits = tuple(_list_commits(git, head.stdout.decode().strip(), limit))
    # Asked of the object itself: git hides the parents at the edge of a shallow clone.
    raw_header = git.run(["cat-file", "commit", commits[0].sha]).split(b"\n\n", 1)[0]
    return GitHistory(git, commits, cut=b"\nparent " in raw_header)


def commits(repo: Path, *, limit: int | None = None) -> list[GitCommit]:
    """The commits of `open_history(repo)`."""
    return list(open_history(repo, limit=limit).commits)


def _list_commits(git: Git, head: str, limit: int | None) -> Iterator[GitCommit]:
    arguments = ["log", "--first-parent", "--reverse", "-z", "-s", "--no-notes", "--no-decorate"]
    arguments += ["--no-color", "--format=tformat:%H %T %ct %an"]
    arguments += [] if limit is None else [f"--max-count={limit}"]
    fields = split_nul(git.stream([*arguments, head, "--"]))
    for index, field in enumerate(fields):
        sha, tree, time, author = field.split(b" ", 3)
        yield GitCommit(index, sha.decode(), tree.decode(), name_text(author), seconds(time))


def _next_commit(waiting: Iterator[GitCommit], header: bytes) -> GitCommit:
    commit = next(waiting, None)
    if commit is None or not header.endswith(commit.tree.encode()):
        raise UsageError(f"git answered out of turn with {name_text(header)!r}: please report this")
    return commit


class Blobs:
    """Measures blobs by one `git cat-file --batch` process; made by `measuring`.

    Contents pass through in blocks, each blob once: what was measured is remembered.
    """

    def __init__(self, question: IO[bytes], answer: IO[bytes]) -> None:
        self._question, self._answer = question, answer
        self._known: dict[str, Measure] = {}

    def __len__(self) -> int:
        """How many different blobs were measured."""
        return len(self._known)

    def measure(self, blobs: Sequence[str]) -> dict[str, Measure]:
        """The measure of each blob.

        Raises:
            UsageError: an object is missing from the repository.
        """
        new = list(dict.fromkeys(blob for blob in blobs if blob not in self._known))
        for start in range(0, len(new), _ASK_BLOBS):
            asked = new[start : start + _ASK_BLOBS]
            self._question.write("".join(f"{blob}\n" for blob in asked).encode())
            self._question.flush()
            for blob in asked:
                self._known[blob] = self._read(blob)
        return {blob: self._known[blob] for blob in blobs}

    def _read(self, blob: str) -> Measure:
        header = self._answer.readline().split()
        if len(header) != 3 or header[0].decode() != blob:
            said = name_text(b" ".join(header)) or "nothing"
            raise UsageError(
                f"object {blob} cannot be read (git said {said!r}): a partial or damaged clone; "
                "`git fsck` tells more, a full clone mends it"
            )
        size = left = int(header[2])
        lines, last, binary = 0, b"\n", False
        while left > 0:
            block = self._answer.read(min(left, _BLOCK_BYTES))
            if not block:
                raise UsageError(
                    f"git stopped in the middle of object {blob}; `git fsck` tells if it is damaged"
                )
            if left == size:
                binary = b"\0" in block[:_BINARY_PREFIX_BYTES]
            lines, last, left = lines + block.count(b"\n"), block[-1:], left - len(block)
        self._answer.read(1)  # the newline after the contents
        return Measure(size, None if binary else lines + (last != b"\n"))
