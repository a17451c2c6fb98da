"""What users say of a write: author, message, and a token, under which it is committed once if repeated.

Owns how a token becomes a named writer: each token has its own writer, which only writes number 0. So the
token and the data are in one compare-and-set, and two processes with the same token fence each other.
`tidelake.state.core.tokens` says how long a token is remembered.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TypeAlias, TypeVar

from tidelake.errors import UsageError
from tidelake.lake.arguments.names import check_name
from tidelake.shard.engine.requestqueue import NOTE
from tidelake.shard.engine.shard import Shard
from tidelake.shard.writing.committing import open_writer, writer_record
from tidelake.state.core.edits import Note
from tidelake.state.core.state import WriterRecord
from tidelake.state.core.writername import PREFIX, WriterName
from tidelake.state.write.idempotency import IdempotencyKey
from tidelake.state.write.write import Appended
from tidelake.timetext import US_PER_UNIT

AUTHOR_BYTES_MAX, MESSAGE_BYTES_MAX = 255, 4_096


def author_given() -> bool:
    """Whether commits that are made now have an author."""
    note = NOTE.get()
    return note is not None and bool(note.author)


_NOTHING = nullcontext()


def noted(author: str, message: str) -> AbstractContextManager[None]:
    """Commits in the block have an author and a message; empty ones leave those from outside."""
    for name, text, limit in (("author", author, AUTHOR_BYTES_MAX), ("message", message, MESSAGE_BYTES_MAX)):
        if not isinstance(text, str):
            raise UsageError(f"{name}={text!r} must be a text")
        if len(text.encode("utf-8", "surrogatepass")) > limit:
            raise UsageError(f"{name} has more than {limit:,} bytes: shorten it")
        if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
            raise UsageError(f"{name}={text!r} is not valid Unicode")
    if not (author or message):
        return _NOTHING
    return _noted(author, message)


@contextmanager
def _noted(author: str, message: str) -> Iterator[None]:
    outer = NOTE.get() or Note()
    token = NOTE.set(Note(author or outer.author, message or outer.message))
    try:
        yield
    finally:
        NOTE.reset(token)


R = TypeVar("R")
Commit: TypeAlias = Callable[[IdempotencyKey | None], Appended]
"""Carries out an append under a key, if there is one."""
_BYTES_MAX = 255 - len(PREFIX)


def writer_of(token: str) -> str:
    """The name of the writer of a token."""
    return WriterName.of_token(check_name(token, "token", bytes_max=_BYTES_MAX)).name


def written(shard: Shard, token: str) -> WriterRecord | None:
    """The record of a committed write under a token; None if there is none. One log scan; in a group two."""
    record = writer_record(shard, writer_of(token))
    return None if record is None or record.sequence is None else record


def commit_once(
    shard: Shard, commit: Commit, token: str | None = None, author: str = "", message: str = ""
) -> Appended:
    """Carry out an append under a token, if there is one, with an author and a message.

    Costs and errors as `under_token`, and as `noted`.
    """
    with noted(author, message):
        done = commit(None) if token is None else under_token(shard, token, commit, _before)
    unit = shard.spec.domain.unit
    return done.of_unit(unit) if unit in US_PER_UNIT else done


def _before(record: WriterRecord) -> Appended:
    return Appended.before(record.upper)


def under_token(
    shard: Shard,
    token: str | None,
    write: Callable[[IdempotencyKey | None], R],
    already: Callable[[WriterRecord], R],
) -> R:
    """Carry out a write under a token, once. With a token a log scan and a log write more, in a group two."""
    if token is None:
        return write(None)
    known = written(shard, token)
    if known is not None:
        return already(known)
    record = open_writer(shard, writer_of(token))
    if record.sequence is not None:
        return already(record)
    return write(IdempotencyKey(writer_of(token), record.epoch, 0))
