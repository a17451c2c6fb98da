"""The numbers of one handle of a named writer: its calls follow each other, also those of several threads.

Owns which number a call gets, and which numbers a call may name; `tidelake.state.write.idempotency` decides
on the state. A state keeps the last number only, and takes each one before it for committed. So a number is
given out when the one before is decided, and a number that this handle left out is refused.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from tidelake.errors import UsageError, WriterFenced
from tidelake.handle import Handle
from tidelake.lake.arguments.names import check_name
from tidelake.process import PerProcess
from tidelake.shard.engine.shard import Shard
from tidelake.shard.writing.committing import open_writer, writer_record
from tidelake.shard.writing.uploads import REFUSED
from tidelake.state.write.heldback import StreamContent
from tidelake.state.write.idempotency import IdempotencyKey

R = TypeVar("R")


class WriterNumbers:
    """The numbers of one epoch of a writer. Thread-safe; a fork has its own lock.

    Attributes:
        last: the last committed number of the writer, as far as this handle knows; None before the first, -1
            after a take-over.
    """

    def __init__(self, writer: str, last: int | None, content: str, *, alone: bool) -> None:
        """Begin after a record."""
        self._writer, self._alone = writer, alone
        self.last, self.content = last, content
        self._skipped: list[range] = []
        self._unsure: int | None = None
        self._one_by_one = PerProcess(threading.RLock)

    @contextmanager
    def take(self, sequence: int | None, content: str | StreamContent) -> Iterator[tuple[int, str]]:
        """Carry out one append inside the block, under a number (None: the next). Other threads wait.

        Gives the number, and the content as it is stored.
        """
        # Both are stored: another type could not be read back.
        if sequence is not None and type(sequence) is not int:
            raise UsageError(f"sequence={str(sequence)[:80]!r} must be a whole number")
        text = _text(content)
        with self._one_by_one.get():
            number = self._after_last() if sequence is None else self._given(sequence)
            try:
                yield number, text
            except REFUSED:
                raise
            except BaseException:
                # It may be committed. Other rows under this number would then count as committed too.
                self._unsure = number if self._unsure is None else max(number, self._unsure)
                raise
            if self._unsure is not None and self._unsure <= number:
                self._unsure = None
            if self.last is None or self.last < number:
                if self._first < number:
                    self._skipped.append(range(self._first, number))
                self.last, self.content = number, text

    @property
    def _first(self) -> int:
        """The first number that may come."""
        return 0 if self.last is None else self.last + 1

    def _after_last(self) -> int:
        if self._unsure is not None:
            raise UsageError(
                f"the outcome of append {self._unsure} of writer {self._writer!r} is unknown: give the same "
                f"rows again with sequence={self._unsure}, or open the writer again to learn it"
            )
        return self._first

    def _given(self, sequence: int) -> int:
        if not 0 <= sequence < 2**63:
            raise UsageError(f"sequence={sequence} must be from 0 to 2^63 - 1")
        if self._alone and any(sequence in skipped for skipped in self._skipped):
            raise UsageError(
                f"sequence={sequence} comes after number {self.last} of writer {self._writer!r}, which left "
                "it out: nothing was written. Numbers go up: give these rows a later one"
            )
        return sequence


class NumberedHandle(Handle):
    """One epoch of a named writer, whose writes have numbers.

    Attributes:
        owner: the owner of the sequence numbers, such as a streaming query's id; may be empty.
        epoch: epoch of this handle; a later one of the same name has a higher one, unless it resumes.
    """

    def __init__(
        self,
        register: Callable[[], Shard],
        name: str,
        owner: str,
        *,
        take_over: bool = False,
        resume: bool = False,
    ) -> None:
        """Open the writer."""
        self.name = check_name(name, "writer name")
        if owner != "":
            check_name(owner, f"owner of writer {name!r}")
        self.owner = owner
        self._register_of = register
        record = open_writer(register(), name, owner, take_over=take_over, resume=resume)
        self.epoch = record.epoch
        self._numbers = WriterNumbers(name, record.sequence, record.content, alone=not resume)

    @property
    def last_sequence(self) -> int | None:
        """Number of the last committed write of this name.

        None before the first, -1 if this owner took the name over and has not written yet.
        """
        return self._numbers.last

    @property
    def last_content(self) -> str:
        """The `content` of that write."""
        return self._numbers.content

    def _numbered(
        self, sequence: int | None, attempt: Callable[[IdempotencyKey], R], content: str | StreamContent = ""
    ) -> R:
        with self._numbers.take(sequence, content) as (number, text):
            return attempt(IdempotencyKey(self.name, self.epoch, number, text, fresh=sequence is None))


def check_not_fenced(writer: NumberedHandle) -> None:
    """Check that no other process has opened a writer since. One log scan; in a group two.

    Raises:
        WriterFenced: one has.
    """
    record = writer_record(writer._register_of(), writer.name)
    if record is not None and record.epoch > writer.epoch:
        raise WriterFenced(writer.name, writer.epoch, record.epoch)


def _text(content: str | StreamContent) -> str:
    """The text that a record gets; errors as for `WriterNumbers.take`."""
    if isinstance(content, StreamContent):
        return content.text
    if not isinstance(content, str):
        raise UsageError(f"content={str(content)[:80]!r} must be a text")
    if StreamContent.of(content).kept is not None:
        raise UsageError(
            f"content={content[:80]!r} looks like the record of a stream, which holds rows back: give another"
        )
    return content
