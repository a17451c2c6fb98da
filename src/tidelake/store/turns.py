"""Turns: of several processes of one machine that want to do the same work, one does it.

Owns the files that say whose turn it is. Must not know what is done in a turn.

INVARIANT: a turn is a courtesy, and nobody waits for one. Nothing is right only because of it; where none
can be kept, everybody has it.

    <root>/<key, its / written as ~>/<name>.turn     locked by whoever has the turn; empty
"""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import Protocol

from tidelake.errors import SymbolicLink
from tidelake.store.files import SYSTEM_FILES, Files, locked, refuse_links


class Turns(Protocol):
    """Turns by key and name."""

    def take(self, key: str, name: str) -> AbstractContextManager[bool]:
        """A context that says whether the turn is ours; False if another one has it. No store call.

        Args:
            key: of the version log.
            name: of the turn; ASCII letters.
        """


class NoTurns:
    """For stores of one process, or of many machines: everybody goes at once."""

    @contextmanager
    def take(self, key: str, name: str) -> Iterator[bool]:  # noqa: ARG002 - as the Protocol has it
        """Always ours; see `Turns.take`."""
        yield True


class FileTurns:
    """Turns by locks on files, which end with their process.

    Args:
        root: the folder of the version log: a turn's file goes with its key.
        files: where it is.
        base: no symbolic link below it is followed; default: the folder.
    """

    def __init__(self, root: str, files: Files = SYSTEM_FILES, base: str | None = None) -> None:
        self._root, self._files = os.path.abspath(root), files
        self._base = self._root if base is None else os.path.abspath(base)

    @contextmanager
    def take(self, key: str, name: str) -> Iterator[bool]:
        """Lock the file of a turn; see `Turns.take`."""
        path = os.path.join(self._root, key.replace("/", "~"), f"{name}.turn")
        held = ExitStack()
        try:
            refuse_links(self._files, self._base, path)
            is_ours = held.enter_context(locked(self._files, path))
        except (OSError, SymbolicLink):
            # No such key any more, a full disk, no permission, a link, or no locks: it will show where it
            # matters.
            is_ours = True
        try:
            yield is_ours
        finally:
            with suppress(OSError):  # likewise
                held.close()
