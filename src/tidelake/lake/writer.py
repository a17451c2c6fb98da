"""Named writers: appends that are decided for ever.

A writer has a name, an epoch and a sequence number; the shard remembers the last number in the same
commit that adds the data. Whoever opens the name again learns what is in, and fences the old holder.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from tidelake.data.events import EventColumns
from tidelake.errors import UsageError
from tidelake.lake.frontiers import FrontierLike, frontier
from tidelake.lake.names import check_name
from tidelake.model.frontier import Frontier
from tidelake.model.time import Time
from tidelake.shard.shard import Shard
from tidelake.shard.writing import append, batches, stage, upsert
from tidelake.shard.writing.append import REFUSALS
from tidelake.shard.writing.batch import Batch
from tidelake.shard.writing.single import open_writer
from tidelake.state.append import Appended, Claim
from tidelake.state.staging import Seen

R = TypeVar("R")


class Writer:
    """One epoch of a named writer. Not for several threads at once: sequence numbers need one order.

    Attributes:
        name: of the writer.
        owner: whose sequence numbers these are, such as a streaming query's id; may be empty.
        epoch: of this handle; a later `Writer` of the same name has a higher one, unless it resumes.
        last_sequence: number of the last append of this name that is in; None before the first, -1 if this
            owner took the name over and has not written yet.
        last_content: what that append said it was made of.
    """

    def __init__(
        self, shard: Shard, name: str, owner: str = "", take_over: bool = False, resume: bool = False
    ) -> None:
        self._shard = shard
        self.name = check_name(name, "writer name")
        if owner != "":
            check_name(owner, f"owner of writer {name!r}")
        self.owner = owner
        record = open_writer(shard, name, owner, take_over=take_over, resume=resume)
        self.epoch = record.epoch
        self.last_sequence = record.sequence
        self.last_content = record.content
        self._unsure: int | None = None

    def append(
        self, updates: object, *, upper: FrontierLike | None = None, sequence: int | None = None
    ) -> Appended:
        """Append as number `sequence` (default: the next one). Already in: success without writing.

        Updates and `upper` as `Collection.append`, which takes a batch as well.

        Raises:
            WriterFenced: a later epoch of this name is open.
            UsageError: the outcome of an earlier number is unknown, and none is given now.
        """
        if isinstance(updates, Batch):
            if upper is not None:
                raise UsageError("a batch has its own upper: append it without, or by append_batches")
            return self._numbered(sequence, lambda claim: batches.append_batch(self._shard, updates, claim))
        end = None if upper is None else self._frontier(upper, "upper")
        return self._numbered(sequence, lambda claim: append.append_rows(self._shard, updates, end, claim))

    def compare_and_append(
        self, updates: object, lower: FrontierLike, upper: FrontierLike, *, sequence: int | None = None
    ) -> Appended:
        """Append all updates of `[lower, upper)` as number `sequence`, iff the upper equals `lower`.

        Already in: success without writing, whatever the upper is. Errors as `append`, and
        `UpperMismatch`.
        """
        start, end = self._frontier(lower, "lower"), self._frontier(upper, "upper")
        return self._numbered(
            sequence, lambda claim: append.compare_and_append(self._shard, updates, start, end, claim)
        )

    def stage(self, updates: object, *, sequence: int | None = None) -> bool:
        """`Collection.stage` as number `sequence`; False if nothing had to be kept. Errors as `append`."""
        return self._numbered(sequence, lambda claim: stage.stage(self._shard, updates, claim))

    def stage_uploaded(
        self,
        uploads: Sequence[bytes],
        *,
        seal: FrontierLike | None = None,
        sequence: int | None = None,
        content: str = "",
    ) -> bool:
        """Stage what workers uploaded, as number `sequence`; `content` as for `append_uploaded`.

        With `seal` the same commit closes all times before that, if it is later than the upper.
        """
        end = None if seal is None else self._frontier(seal, "seal")
        return self._numbered(
            sequence, lambda claim: stage.stage_uploaded(self._shard, uploads, claim, end), content
        )

    def seal(self, upper: FrontierLike, *, sequence: int | None = None) -> Appended:
        """`Collection.seal` as number `sequence`. Already in: success without writing."""
        end = self._frontier(upper, "upper")
        return self._numbered(sequence, lambda claim: stage.seal(self._shard, end, claim))

    def upsert(
        self,
        table: object,
        *,
        time: Time | None = None,
        order_by: str | None = None,
        delete_column: str | None = None,
        sequence: int | None = None,
    ) -> Appended:
        """`Collection.upsert` as number `sequence`. Already in: success without writing."""
        at, columns = self._time(time), EventColumns(order_by, delete_column)
        return self._numbered(sequence, lambda claim: upsert.upsert(self._shard, table, columns, at, claim))

    def replace(self, table: object, *, time: Time | None = None, sequence: int | None = None) -> Appended:
        """`Collection.replace` as number `sequence`. Already in: success without writing."""
        at = self._time(time)
        return self._numbered(sequence, lambda claim: upsert.replace(self._shard, table, at, claim))

    def append_batches(
        self,
        offered: Sequence[Batch],
        *,
        lower: FrontierLike,
        upper: FrontierLike,
        sequence: int | None = None,
        content: str = "",
    ) -> Appended:
        """Append batches as number `sequence`; see `Collection.append_batches`.

        If the number is in already, the batches count as used, and their parts stay: they may be the ones
        that are in.
        """
        start, end = self._frontier(lower, "lower"), self._frontier(upper, "upper")
        return self._numbered(
            sequence,
            lambda claim: batches.append_batches(self._shard, offered, start, end, claim),
            content,
        )

    def append_uploaded(
        self,
        uploads: Sequence[bytes],
        *,
        lower: FrontierLike,
        upper: FrontierLike,
        sequence: int | None = None,
        content: str = "",
        advance: bool = False,
        read_at: int | None = None,
    ) -> Appended:
        """Append what workers uploaded, as number `sequence`; see `Collection.append_uploaded`.

        `content` says what the data was made of. The same number with another content is refused.
        """
        start, end = self._frontier(lower, "lower"), self._frontier(upper, "upper")
        seen = None if read_at is None else Seen(read_at)
        return self._numbered(
            sequence,
            lambda claim: batches.append_uploaded(
                self._shard, uploads, start, end, claim, advance=advance, seen=seen
            ),
            content,
        )

    def _time(self, value: Time | None) -> Time | None:
        return None if value is None else self._shard.spec.domain.check(value, "time")

    def _frontier(self, value: FrontierLike, name: str) -> Frontier:
        return frontier(value, self._shard.spec.domain, name)

    def _numbered(self, sequence: int | None, attempt: Callable[[Claim], R], content: str = "") -> R:
        number = self._next() if sequence is None else sequence
        if number < 0:
            raise UsageError(f"sequence={number} must not be negative")
        try:
            answer = attempt(Claim(self.name, self.epoch, number, content))
        except (*REFUSALS, UsageError):
            raise
        except BaseException:
            # It may be in. Giving its number to other rows would take those for in as well.
            self._unsure = number if self._unsure is None else max(number, self._unsure)
            raise
        if self._unsure is not None and self._unsure <= number:
            self._unsure = None
        if self.last_sequence is None or self.last_sequence < number:
            self.last_sequence, self.last_content = number, content
        return answer

    def _next(self) -> int:
        if self._unsure is not None:
            raise UsageError(
                f"the outcome of append {self._unsure} of writer {self.name!r} is unknown: give the same "
                f"rows again with sequence={self._unsure}, or open the writer again to learn it"
            )
        return 0 if self.last_sequence is None else self.last_sequence + 1
