"""What shards remember of transactions: the members of a group, and what the group decided for them.

A group is a shard without rows. Its log decides: a transaction is in from the commit on that writes its
`Decision` there. The collections apply decisions later; until then each reader applies them in memory
(`tidelake.state.group.applying`).
"""

from dataclasses import dataclass, field

from tidelake.model.frontier import Frontier
from tidelake.model.names import PlainName


@dataclass(frozen=True)
class Membership:
    """A collection of a group, as the group knows it.

    Attributes:
        upper: times of this collection before it are closed, also where the group's upper is earlier.
        admitted: seqno of the group's state that took the collection in. A collection that leaves and comes
            back gets another one, so that the two stays are not confused.
        leaving: new transactions may no longer write to it.
        closed_ms: wall clock when the last time before `upper` was closed; 0: unknown.
    """

    upper: Frontier
    admitted: int
    leaving: bool = False
    closed_ms: int = 0


@dataclass(frozen=True)
class Decision:
    """The outcome of a transaction.

    Attributes:
        members: ids of the collections for which it staged rows that are now in; none: it never comes in.
        time: the time that all its rows are advanced to; None: they keep their own times.
    """

    members: tuple[PlainName, ...]
    time: int | None


@dataclass(frozen=True)
class GroupView:
    """What a group has decided for one collection, as of a state of the group.

    Attributes:
        admitted: of the collection; see `Membership`. None: the group does not know the collection.
        leaving: the group decides nothing more for the collection.
        decided: times of the transactions that are in, by id; see `Decision.time`.
        closed_ms: wall clock when the last time before `upper` was closed; 0: unknown.
    """

    group: str
    seqno: int
    upper: Frontier
    admitted: int | None = None
    leaving: bool = False
    decided: dict[str, int | None] = field(default_factory=dict)
    closed_ms: int = 0

    def is_of(self, group: str, joined: int) -> bool:
        """Whether it is about the collection's present stay: in this group, admitted at that seqno."""
        return self.group == group and self.admitted == joined

    def is_older(self, group: str, joined: int) -> bool:
        """Whether it is older than the collection's present stay in that group."""
        return self.group != group or joined > self.seqno
