"""Critical holds: by name, kept until they are dropped, moved only with the token of their owner.

For a pipeline that must never lose history: the hold does not expire, however long its owner sleeps. A second
owner takes over with a token of its own; the first one learns of it when its next move is refused.
"""

from dataclasses import dataclass
from functools import partial

from tidelake.model.frontier import Frontier
from tidelake.shard.engine.shard import Shard
from tidelake.state.life import holds


@dataclass(frozen=True)
class Moved:
    """The answer to a move of a critical hold.

    Attributes:
        done: whether the hold is now as asked for (or further on, with that token).
        token: the token of the hold now.
        since: the `since` of the hold now.
    """

    done: bool
    token: str
    since: Frontier


class CriticalHold:
    """A critical hold, as it was when this object last heard of it. At most one log write to open.

    Attributes:
        name: of the hold.
        token: of its owner.
        since: history from here on is kept.
    """

    def __init__(self, shard: Shard, name: str, token: str = "", since: Frontier | None = None) -> None:
        self._shard = shard
        self.name = name
        found = shard.run(partial(holds.open_critical, name=name, token=token, since=since))
        self.token, self.since = found.token, found.since

    def compare_and_downgrade_since(self, expected_token: str, token: str, since: Frontier) -> Moved:
        """Move it forward and put a token on it, iff its token is the expected one. One log write.

        The same call again, after a reply that was lost, is done as well.
        """
        command = partial(
            holds.compare_and_downgrade_since,
            name=self.name,
            expected_token=expected_token,
            token=token,
            since=since,
        )
        answer = self._shard.run(command)
        self.token, self.since = answer.hold.token, answer.hold.since
        return Moved(answer.done, self.token, self.since)

    def drop(self) -> bool:
        """End the hold, also if another token is on it. Returns whether it existed. One log write."""
        return self._shard.run(partial(holds.drop_critical, name=self.name))
