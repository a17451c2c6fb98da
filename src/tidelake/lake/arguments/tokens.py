"""Writes with a token (an idempotency key): repeated under the same token, they are committed once.

Owns how a token becomes a named writer: each token has its own writer, which only writes number 0. So the
token and the data are in one compare-and-set, and two processes with the same token fence each other.
`tidelake.state.core.tokens` says how long a token is remembered.
"""

from collections.abc import Callable
from typing import TypeVar

from tidelake.lake.arguments.names import check_name
from tidelake.shard.engine.shard import Shard
from tidelake.shard.writing.committing import open_writer, writer_record
from tidelake.state.core.state import WriterRecord
from tidelake.state.core.writername import PREFIX, WriterName
from tidelake.state.write.idempotency import IdempotencyKey

R = TypeVar("R")
_BYTES_MAX = 255 - len(PREFIX)


def writer_of(token: str) -> str:
    """The name of the writer of a token.

    Raises:
        UsageError: it is empty, too long or has control characters.
    """
    return WriterName.of_token(check_name(token, "token", bytes_max=_BYTES_MAX)).name


def written(shard: Shard, token: str) -> WriterRecord | None:
    """The record of a committed write under a token; None if there is none. One log scan; in a group two."""
    record = writer_record(shard, writer_of(token))
    return None if record is None or record.sequence is None else record


def under_token(
    shard: Shard,
    token: str | None,
    write: Callable[[IdempotencyKey | None], R],
    already: Callable[[WriterRecord], R],
) -> R:
    """Carry out a write under a token, once. With a token a log scan and a log write more, in a group two.

    Args:
        shard: the collection.
        token: the token; None: none.
        write: carries the write out, under a key.
        already: makes the answer of a write that is committed.

    Raises:
        WriterFenced: another process that began later is writing under the same token.
    """
    if token is None:
        return write(None)
    known = written(shard, token)
    if known is not None:
        return already(known)
    record = open_writer(shard, writer_of(token))
    if record.sequence is not None:
        return already(record)
    return write(IdempotencyKey(writer_of(token), record.epoch, 0))
