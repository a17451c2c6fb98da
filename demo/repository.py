"""A git repository as the demo's source: exported by `history`, judged by `truth`.

Owns which repository is taken, which commits are checked, and how it is described.
"""

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from demo import truth
from demo.export import COMMITS_PER_FILE, HistoryExport, change_lines, write_lines
from demo.history import GitCommit, GitHistory, Progress, open_history

CHECKED_COMMITS = 5
SAMPLE_ROWS = 12


@dataclass(frozen=True)
class RepositorySource:
    """A history to ingest, and the answers to compare with. Commit i is time i.

    Attributes:
        history: the window of commits.
        description: how the report names it.
    """

    history: GitHistory
    description: str

    @property
    def commits(self) -> tuple[GitCommit, ...]:
        """The window of the first-parent line, oldest first; never empty."""
        return self.history.commits

    @property
    def checked(self) -> list[int]:
        """Indexes of the commits to read as of."""
        return truth.pick_commits(len(self.commits), CHECKED_COMMITS)

    @property
    def pair(self) -> tuple[int, int]:
        """Indexes of the two commits for `diff`: the second and fourth of five."""
        margin = len(self.checked) // 4
        return self.checked[margin], self.checked[-1 - margin]

    @property
    def note(self) -> str:
        """A sentence that says if older commits are missing."""
        if not self.history.cut:
            return ""
        return "older commits are left out (a shallow clone or a limit): the first counts as a whole tree"

    def write_change_files(
        self, directory: Path, progress: Progress | None = None, *, commits_per_file: int = COMMITS_PER_FILE
    ) -> HistoryExport:
        """Write the whole window as change files (see `export`) into a folder that has none."""
        return write_lines(
            change_lines(self.history),
            directory,
            total=len(self.commits),
            cut=self.history.cut,
            progress=progress,
            commits_per_file=commits_per_file,
        )

    def tree(self, sha: str) -> pa.Table:
        """All paths of a commit: path, mode, blob, size, in order of path."""
        return truth.tree(self.history.git, sha)

    def sample(self, sha: str) -> pa.Table:
        """Some whole rows of a commit: the columns of `rows.SCHEMA`, in order of path."""
        return truth.sample(self.history.git, self.commits[0].sha, sha, SAMPLE_ROWS)

    def diff(self, a: str, b: str) -> frozenset[truth.DiffEntry]:
        """What differs between two commits."""
        return truth.diff(self.history.git, a, b)


def open_source(repo: Path | None = None, *, limit: int | None = None) -> RepositorySource:
    """The history of a repository, or its last `limit` commits; by default of this checkout.

    Args:
        repo: a directory in a git repository, which may be bare.
        limit: only the last so many commits of the first-parent line.

    Raises:
        UsageError: git is not installed, there is no repository, or it has no commit.
    """
    history = open_history(own_checkout() if repo is None else repo, limit=limit)
    return RepositorySource(history, f"the git repository {history.git.repo.resolve().name!r}")


def own_checkout() -> Path:
    """The checkout that the demo runs from."""
    return Path(__file__).resolve().parents[1]
