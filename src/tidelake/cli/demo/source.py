"""Where the demo's history and its truth come from: a repository, or the export in the package.

Owns the one interface to both and the choice between them; must not know Spark or a lake.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from tidelake.cli.demo.export import COMMITS_PER_FILE, HistoryExport
from tidelake.cli.demo.history import GitCommit, Progress
from tidelake.cli.demo.packaged import open_packaged
from tidelake.cli.demo.repository import open_repository, own_checkout
from tidelake.cli.demo.truth import DiffEntry
from tidelake.errors import UsageError


class DemoSource(Protocol):
    """A history to ingest, and the answers to compare with. Commit i is time i."""

    @property
    def commits(self) -> Sequence[GitCommit]:
        """The window of the first-parent line, oldest first; never empty."""

    @property
    def checked(self) -> Sequence[int]:
        """Indexes of the commits to read as of: evenly spread, first and last among them; five, or all."""

    @property
    def pair(self) -> tuple[int, int]:
        """Indexes a <= b of two checked commits, different if there are two: `diff` answers for them."""

    @property
    def description(self) -> str:
        """A clause for the report, such as `the git repository 'tidelake'`."""

    @property
    def note(self) -> str:
        """One sentence that the reader of the report must know about the source; may be empty."""

    def write_change_files(
        self, directory: Path, progress: Progress | None = None, *, commits_per_file: int = COMMITS_PER_FILE
    ) -> HistoryExport:
        """Write the whole window as change files (see `export`) into a folder that has none."""

    def tree(self, sha: str) -> pa.Table:
        """All paths of a checked commit: path, mode, blob, size, in order of path."""

    def sample(self, sha: str) -> pa.Table:
        """Some whole rows of a checked commit: the columns of `rows.SCHEMA`, in order of path."""

    def diff(self, a: str, b: str) -> frozenset[DiffEntry]:
        """What differs between the two commits of `pair`."""


def open_source(repo: Path | None = None, *, limit: int | None = None) -> DemoSource:
    """The history of a repository; by default of Tidelake's own checkout.

    Without an own checkout (an installed package), or without git to read it, the export that ships
    with the package is taken, and `note` says so.

    Args:
        repo: a directory in a git repository, which may be bare.
        limit: only the last so many commits of the first-parent line.

    Raises:
        UsageError: `repo` was named and is not a repository, has no commits, or git is not installed.
    """
    if repo is not None:
        return open_repository(repo, limit=limit)
    checkout = own_checkout()
    if checkout is None:
        return open_packaged("this Tidelake is installed without its git history")
    try:
        return open_repository(checkout, limit=limit)
    except UsageError as error:
        return open_packaged(f"Tidelake's own git history cannot be read: {error}")
