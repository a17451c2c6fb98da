"""What a shard remembers of erasures: which were asked for, and how far they are.

An erasure takes the rows of some keys out of a shard at all times. `tidelake.state.life.erasing` has its
commands.

INVARIANT: the keys are in the record only while their rows may be in the shard. Afterwards it tells when and
why, how many keys there were, and what was rewritten.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tidelake.tabletext import FieldsAsHtml


@dataclass(frozen=True, repr=False)
class Erasure(FieldsAsHtml):
    """One erasure.

    Attributes:
        reason: given by the caller, for people.
        count: how many keys it is about.
        asked_ms: wall clock when it was asked for.
        keys: the encoded keys, ascending; empty once their rows are out.
        seqno: of the first state without the rows; 0: they are still in.
        erased_ms: wall clock of that commit.
        rows: how many updates were taken out of batches.
        parts: how many parts were replaced or removed.
        gone_ms: wall clock when it was found that no stored object and no log entry has the rows; 0: not yet.
    """

    reason: str
    count: int
    asked_ms: int
    keys: tuple[bytes, ...] = ()
    seqno: int = 0
    erased_ms: int = 0
    rows: int = 0
    parts: int = 0
    gone_ms: int = 0

    @property
    def pending(self) -> bool:
        """Whether the rows are still in."""
        return self.seqno == 0


def last_erased(erasures: Mapping[str, Erasure]) -> int:
    """Seqno of the first state without the rows of any finished erasure; 0: there was none."""
    return max((one.seqno for one in erasures.values()), default=0)
