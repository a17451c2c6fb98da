"""`python -m tidelake.cli.demo.bundle`: make the packaged export anew from a repository's history.

Owns how much history goes in: as many of the newest commits as fit the limit. Run before a release.
"""

from pathlib import Path
from typing import Any

import click

from tidelake.cli.demo.export import change_lines
from tidelake.cli.demo.packaged import write_packaged
from tidelake.cli.demo.repository import RepositorySource, open_repository, own_checkout
from tidelake.errors import UsageError

BYTES_MAX = 200_000


def make_bundle(repo: Path, directory: Path, *, bytes_max: int = BYTES_MAX) -> tuple[int, int]:
    """Write the packaged export of a repository into a folder.

    The whole first-parent line if it fits; else its newest half, quarter, ...

    Returns:
        How many commits it holds, and its size in bytes.

    Raises:
        UsageError: there is no history, one commit alone is too big, or a name holds an e-mail address.
    """
    source = open_repository(repo)
    while (size_bytes := write_packaged(directory, _lines(source), _answers(source))) > bytes_max:
        if len(source.commits) == 1:
            raise UsageError(f"the newest commit alone takes {size_bytes} bytes of at most {bytes_max}")
        source = open_repository(repo, limit=len(source.commits) // 2)
    return len(source.commits), size_bytes


def _lines(source: RepositorySource) -> list[str]:
    return [line for _, lines in change_lines(source.history) for line in lines]


def _answers(source: RepositorySource) -> dict[str, Any]:
    shas = [source.commits[index].sha for index in source.checked]
    a, b = (source.commits[index].sha for index in source.pair)
    for commit in source.commits:
        if "@" in commit.author:
            raise UsageError(
                f"the author of {commit.sha} is an e-mail address: it must not be published here"
            )
    return {
        "cut": source.history.cut,
        "commits": [[c.sha, c.tree, c.author, c.committed_s] for c in source.commits],
        "checked": source.checked,
        "pair": source.pair,
        "trees": {sha: [list(row.values()) for row in source.tree(sha).to_pylist()] for sha in shas},
        "samples": {sha: [_plain(row) for row in source.sample(sha).to_pylist()] for sha in shas},
        "diff": sorted(source.diff(a, b)),
    }


def _plain(row: dict[str, Any]) -> list[Any]:
    *values, committed = row.values()
    return [*values, int(committed.timestamp())]


@click.command()
@click.option("--repo", type=click.Path(path_type=Path), help="A git repository; by default this checkout.")
@click.option("--out", type=click.Path(path_type=Path), help="A folder; by default the one in the package.")
def main(repo: Path | None, out: Path | None) -> None:
    """Make the packaged export of the demo anew."""
    place = repo or own_checkout()
    if place is None:
        raise click.ClickException("this Tidelake runs from no checkout: name one with --repo")
    commits, size_bytes = make_bundle(place, out or Path(__file__).parent / "bundled")
    click.echo(f"{commits} commits in {size_bytes:,} bytes")


if __name__ == "__main__":
    main()
