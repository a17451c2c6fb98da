"""The one door to git: its command line, run without a shell and without surprises.

Owns the environment, the fixed options, and how a failure becomes a `UsageError` with a remedy; must
not know what the commands mean. The options switch off whatever a user or a repository may have
configured that changes what git prints (quoting, relative paths, order files, signatures, rename
following, pager); the rest of the configuration stays, `safe.directory` above all. Replace refs are
ignored, so that every command sees the objects as they were committed.
"""

import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tidelake.errors import InternalError, UsageError

_CHUNK_BYTES = 1 << 20
_FIXED = {
    "core.quotepath": "off",
    "diff.ignoreSubmodules": "none",
    "diff.noprefix": "false",
    "diff.relative": "false",
    "diff.renames": "false",
    "i18n.logOutputEncoding": "UTF-8",
    "log.diffMerges": "separate",
    "log.follow": "false",
    "log.mailmap": "false",
    "log.showSignature": "false",
}
_KEPT = ("GIT_CONFIG", "GIT_EXEC_PATH", "GIT_CEILING_DIRECTORIES", "GIT_DISCOVERY_ACROSS_FILESYSTEM")


class Git:
    """Runs git commands in one repository. Cheap to make; holds no process."""

    def __init__(self, repo: Path) -> None:
        self.repo = repo
        options = [option for name, value in _FIXED.items() for option in ("-c", f"{name}={value}")]
        self._command = ["git", "--no-pager", "--literal-pathspecs", "-C", str(repo), *options]
        self._env = _environment()

    def run(self, arguments: Sequence[str | bytes], *, stdin: bytes = b"") -> bytes:
        """The whole output of a command whose output is small.

        Raises:
            UsageError: git is not installed, or the command failed.
        """
        done = self.attempt(arguments, stdin=stdin)
        if done.returncode != 0:
            raise self._failed(arguments, done.returncode, done.stderr)
        return done.stdout

    def attempt(
        self, arguments: Sequence[str | bytes], *, stdin: bytes = b""
    ) -> subprocess.CompletedProcess[bytes]:
        """As `run`, but a failure is the caller's to judge."""
        try:
            return subprocess.run(
                [*self._command, *arguments], input=stdin, capture_output=True, env=self._env, check=False
            )
        except FileNotFoundError as error:
            raise _not_installed() from error

    def stream(self, arguments: Sequence[str | bytes], *, stdin: bytes = b"") -> Iterator[bytes]:
        """The output of a command in chunks of up to 1 MiB, while it runs.

        The input goes through a temporary file: a pipe would need a second thread to feed it.

        Raises:
            UsageError: git is not installed, or the command failed (after its last chunk).
        """
        with tempfile.TemporaryFile() as source:
            source.write(stdin)
            source.seek(0)
            with self._process(arguments, source) as process:
                output = _pipe(process.stdout)
                while chunk := output.read(_CHUNK_BYTES):
                    yield chunk

    @contextmanager
    def conversation(self, arguments: Sequence[str | bytes]) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
        """A process to write to and read from, as (its input, its output)."""
        with self._process(arguments, subprocess.PIPE) as process:
            yield _pipe(process.stdin), _pipe(process.stdout)
            _pipe(process.stdin).close()

    @contextmanager
    def _process(
        self, arguments: Sequence[str | bytes], stdin: int | IO[bytes]
    ) -> Iterator[subprocess.Popen[bytes]]:
        with tempfile.TemporaryFile() as stderr:
            try:
                process = subprocess.Popen(
                    [*self._command, *arguments],
                    stdin=stdin,
                    stdout=subprocess.PIPE,
                    stderr=stderr,
                    env=self._env,
                )
            except FileNotFoundError as error:
                raise _not_installed() from error
            try:
                yield process
                code = process.wait()
            except BrokenPipeError:
                code = process.wait() or 1  # it went away while we asked: it says why
            except BaseException:
                process.kill()
                raise
            finally:
                for pipe in (process.stdin, process.stdout):
                    if pipe is not None and not pipe.closed:
                        _close(pipe)
                process.wait()
            if code != 0:
                stderr.seek(0)
                raise self._failed(arguments, code, stderr.read())

    def _failed(self, arguments: Sequence[str | bytes], code: int, stderr: bytes) -> UsageError:
        said = stderr.decode("utf-8", "backslashreplace").strip() or f"exit code {code}"
        verb = next((os.fsdecode(a) for a in arguments if not os.fsdecode(a).startswith("-")), "git")
        return UsageError(
            f"`git {verb}` failed in {str(self.repo)!r}: {said}; `git fsck` tells if it is damaged"
        )


def _environment() -> dict[str, str]:
    """The caller's environment without what points git elsewhere, in the C locale."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("GIT_") or k.startswith(_KEPT)}
    return {
        **kept,
        "LC_ALL": "C",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_TERMINAL_PROMPT": "0",
    }


def _not_installed() -> UsageError:
    return UsageError("git was not found on the PATH: install git, or hand in change files of your own")


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise InternalError("the process was started without this pipe")
    return pipe


def _close(pipe: IO[bytes]) -> None:
    """Close a pipe whose other end may be gone."""
    try:
        pipe.close()
    except BrokenPipeError:
        return


def split_nul(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The NUL-terminated fields of a stream; a last one without its NUL comes too.

    Memory: a chunk and the longest field.
    """
    rest: list[bytes] = []
    for chunk in chunks:
        first, *others = chunk.split(b"\0")
        rest.append(first)
        if others:
            yield b"".join(rest)
            yield from others[:-1]
            rest = [others[-1]]
    if last := b"".join(rest):
        yield last
