"""What shards remember of transactions: a group of collections, and what was decided for them.

A group is a shard without rows. Its log decides: a transaction is in from the commit on that writes its
`Decision` there. The collections apply decisions when it suits them; until then readers do so for themselves
(`tidelake.state.transactions`).
"""

from dataclasses import dataclass, field

from tidelake.model.frontier import Frontier


@dataclass(frozen=True)
class Membership:
    """A collection of a group, as the group knows it.

    Attributes:
        upper: times of this one are closed up to here, if that is beyond the upper of the group.
        admitted: seqno of the group's state that took it in. A collection that leaves and comes back has
            another one, so that nobody takes the two stays for one.
        leaving: no transaction takes it in any more.
    """

    upper: Frontier
    admitted: int
    leaving: bool = False


@dataclass(frozen=True)
class Decision:
    """What became of a transaction.

    Attributes:
        members: ids of the collections for which it staged something that is in now; none: it never comes in.
        time: that all of it is advanced to; None: it has its own times.
    """

    members: tuple[str, ...]
    time: int | None


@dataclass(frozen=True)
class View:
    """What a group has decided for one collection, as of a state of the group.

    Attributes:
        group: its id.
        seqno: of the group's state.
        upper: times up to here are closed.
        admitted: of the collection; see `Membership`. None: the group does not know it.
        leaving: nothing more is decided for it.
        decided: the times of transactions that are in, by id; see `Decision.time`.
    """

    group: str
    seqno: int
    upper: Frontier
    admitted: int | None = None
    leaving: bool = False
    decided: dict[str, int | None] = field(default_factory=dict)

    def is_of(self, group: str, joined: int) -> bool:
        """Whether it speaks of a collection that is in this group since that seqno of the group."""
        return self.group == group and self.admitted == joined

    def is_older(self, group: str, joined: int) -> bool:
        """Whether a collection has come into that group after this."""
        return self.group != group or joined > self.seqno
