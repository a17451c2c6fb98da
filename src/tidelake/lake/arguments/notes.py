"""What users say of commits: author and message."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from tidelake.errors import UsageError
from tidelake.shard.engine.requests import NOTE
from tidelake.state.core.edits import Note

AUTHOR_BYTES_MAX, MESSAGE_BYTES_MAX = 255, 4_096


def author_given() -> bool:
    """Whether commits that are made now have an author."""
    note = NOTE.get()
    return note is not None and bool(note.author)


def noted(author: str, message: str) -> AbstractContextManager[None]:
    """Commits that are made in the block have an author and a message; empty ones leave those from outside.

    Args:
        author: at most 255 bytes.
        message: at most 4,096 bytes.

    Raises:
        UsageError: they are too long or no text.
    """
    for name, text, limit in (("author", author, AUTHOR_BYTES_MAX), ("message", message, MESSAGE_BYTES_MAX)):
        if not isinstance(text, str):
            raise UsageError(f"{name}={text!r} must be a text")
        if len(text.encode("utf-8", "surrogatepass")) > limit:
            raise UsageError(f"{name} has more than {limit:,} bytes: shorten it")
        if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
            raise UsageError(f"{name}={text!r} is not valid Unicode")
    if not (author or message):
        return nullcontext()
    return _noted(author, message)


@contextmanager
def _noted(author: str, message: str) -> Iterator[None]:
    outer = NOTE.get() or Note()
    token = NOTE.set(Note(author or outer.author, message or outer.message))
    try:
        yield
    finally:
        NOTE.reset(token)
