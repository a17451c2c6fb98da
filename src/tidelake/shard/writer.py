"""Named writers: appends that are decided for ever.

A writer has a name, an epoch and a sequence number; the shard remembers the last number in the same
commit that adds the data. Whoever opens the name again learns what is in, and fences the old holder.
"""

from collections.abc import Sequence
from functools import partial

from tidelake.errors import UsageError
from tidelake.model.frontier import Frontier
from tidelake.shard import append
from tidelake.shard.shard import Shard
from tidelake.state import commands
from tidelake.state.append import Appended, Claim


class Writer:
    """One epoch of a named writer. Not for several threads at once: sequence numbers need one order.

    Attributes:
        name: of the writer.
        epoch: of this handle; a later `Writer` of the same name has a higher one.
        last_sequence: number of the last append of this name that is in; None before the first.
    """

    def __init__(self, shard: Shard, name: str, owner: str = "", take_over: bool = False) -> None:
        if not name or not isinstance(name, str):
            raise UsageError(f"writer name {name!r} must be a non-empty string")
        self._shard = shard
        self.name = name
        record = shard.run(partial(commands.open_writer, name=name, owner=owner, take_over=take_over))
        self.epoch = record.epoch
        self.last_sequence = record.sequence

    def append(
        self,
        updates: object,
        lower: Frontier | None = None,
        upper: Frontier | None = None,
        sequence: int | None = None,
    ) -> Appended:
        """Append as number `sequence` (default: the next one). Already in: success without writing.

        With `lower` and `upper` it is a compare-and-append, otherwise as `append_rows`.

        Raises:
            WriterFenced: a later epoch of this name is open.
        """
        claim = self._claim(sequence)
        if lower is not None:
            if upper is None:
                raise UsageError(f"lower={lower} needs an upper: give upper=[...]")
            answer = append.compare_and_append(self._shard, updates, lower, upper, claim)
        else:
            answer = append.append_rows(self._shard, updates, upper, claim)
        self.last_sequence = max(claim.sequence, self.last_sequence or 0)
        return answer

    def append_uploaded(
        self, uploads: Sequence[bytes], *, lower: Frontier, upper: Frontier, sequence: int | None = None
    ) -> Appended:
        """Append what workers uploaded, as number `sequence`; see `append.append_uploaded`."""
        claim = self._claim(sequence)
        answer = append.append_uploaded(self._shard, uploads, lower, upper, claim)
        self.last_sequence = max(claim.sequence, self.last_sequence or 0)
        return answer

    def _claim(self, sequence: int | None) -> Claim:
        if sequence is None:
            sequence = 0 if self.last_sequence is None else self.last_sequence + 1
        if sequence < 0:
            raise UsageError(f"sequence={sequence} must not be negative")
        return Claim(self.name, self.epoch, sequence)
