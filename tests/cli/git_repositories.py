"""Git repositories for the tests of the demo: small ones by hand, large ones by `git fast-import`."""

import os
import random
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_ENV = {
    **{k: v for k, v in os.environ.items() if not k.startswith("GIT_")},
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.org",
    "GIT_COMMITTER_NAME": "Bob",
    "GIT_COMMITTER_EMAIL": "bob@example.org",
}
_NAMES = [b"Ada", "Žofie 🌊".encode(), b"Ren\xe9", b'O"Neil \\ \ttab', b"Bob"]
_PATHS = [b"plain", "ünï/日本".encode(), b"\xff\xfe raw", b'quo"te', b"new\nline", b"back\\slash", b"a b/c"]


def git(repo: Path, *arguments: str | bytes, stdin: bytes = b"", env: dict[str, str] | None = None) -> bytes:
    """Run git in a repository and give its output."""
    command = ["git", "-C", str(repo), *arguments]
    return subprocess.run(
        command, input=stdin, env={**_ENV, **(env or {})}, check=True, capture_output=True
    ).stdout


def init(path: Path) -> Path:
    """An empty repository with the branch `main`."""
    path.mkdir(parents=True)
    git(path, "init", "-q")
    git(path, "symbolic-ref", "HEAD", "refs/heads/main")
    return path


def make_repository(path: Path, commits: int, seed: int, *, changes_per_commit: int = 6) -> Path:
    """A repository with `commits` commits on the first-parent line of `main`, nothing checked out.

    The same arguments give the same commit ids. In it: creations, edits, renames, mode changes,
    deletions, files that become folders and back, symlinks, submodules, binary and empty files,
    odd paths and author names, merges, commits that change nothing, times that go back. 1,000 commits
    take about half a second.
    """
    init(path)
    stream = b"".join(_fast_import(commits, random.Random(seed), changes_per_commit))
    git(path, "fast-import", "--quiet", stdin=stream)
    return path


@dataclass
class _Tree:
    """Which files a commit has; only names and modes, enough to propose changes that make sense."""

    rng: random.Random
    modes: dict[bytes, bytes] = field(default_factory=dict)

    def edits(self, count: int) -> Iterator[bytes]:
        touched: set[bytes] = set()
        for _ in range(count):
            path = self._path()
            # git would let the later of two edits to one place win; so does this, by not making them
            if any(a == path or a.startswith(path + b"/") or path.startswith(a + b"/") for a in touched):
                continue
            touched.add(path)
            if path in self.modes and self.rng.random() < 0.2:
                del self.modes[path]
                yield b"D " + _quoted(path) + b"\n"
            else:
                yield self._put(path)

    def _path(self) -> bytes:
        if self.modes and self.rng.random() < 0.5:
            return self.rng.choice(sorted(self.modes))
        stem = self.rng.choice(_PATHS) + str(self.rng.randrange(40)).encode()
        return stem + b"/in" if self.rng.random() < 0.2 else stem

    def _put(self, path: bytes) -> bytes:
        for other in list(self.modes):
            if other.startswith(path + b"/") or path.startswith(other + b"/"):
                del self.modes[other]  # fast-import replaces a file by a folder and the reverse
        mode = self.rng.choice([b"100644"] * 6 + [b"100755", b"120000", b"160000"])
        self.modes[path] = mode
        if mode == b"160000":
            return b"M 160000 %040x " % self.rng.getrandbits(160) + _quoted(path) + b"\n"
        contents = self._contents()
        return b"M %s inline %s\ndata %d\n%s\n" % (mode, _quoted(path), len(contents), contents)

    def _contents(self) -> bytes:
        kind = self.rng.randrange(8)
        if kind == 0:
            return b""
        if kind == 1:
            return b"\n" * self.rng.randrange(4) + b"\0" + self.rng.randbytes(40)
        lines = [b"line %d" % self.rng.randrange(100) for _ in range(self.rng.randrange(1, 20))]
        return b"\n".join(lines) + (b"\n" if kind > 2 else b"")


def _fast_import(commits: int, rng: random.Random, changes_per_commit: int) -> Iterator[bytes]:
    tree, now_s = _Tree(rng), 1_700_000_000
    for index in range(commits):
        now_s += rng.randrange(-100, 4_000)
        empty = index % 17 == 5
        merges = index > 0 and index % 10 == 9
        if merges:
            # A side commit on top of the main line, then a merge whose own edits are what counts.
            yield _commit(b"refs/heads/side", rng, now_s, b"from refs/heads/main\n")
            yield b"M 100644 inline side-%d\ndata 5\nside\n\n" % index
        parents = b"merge refs/heads/side\n" if merges else b""
        yield _commit(b"refs/heads/main", rng, now_s, parents)
        if not empty:
            yield from tree.edits(rng.randrange(1, 2 * changes_per_commit))
        if index % 23 == 11 and tree.modes:
            old = rng.choice(sorted(tree.modes))
            new = b"moved-%d" % index
            tree.modes[new] = tree.modes.pop(old)
            yield b"R " + _quoted(old) + b" " + _quoted(new) + b"\n"
        yield b"\n"


def _commit(branch: bytes, rng: random.Random, now_s: int, parents: bytes) -> bytes:
    who = b"%s <a@example.org> %d +0130\n" % (rng.choice(_NAMES), now_s - 60)
    by = b"Bob <b@example.org> %d -0700\n" % now_s
    return b"commit %s\nauthor %scommitter %sdata 1\nx\n%s" % (branch, who, by, parents)


def _quoted(path: bytes) -> bytes:
    escaped = path.replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n")
    return b'"' + escaped + b'"'
