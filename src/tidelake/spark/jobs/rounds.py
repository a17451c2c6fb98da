"""Several that wait for tasks of theirs, and one that carries out all of these at once.

Owns the meeting of their threads: a round begins when everybody who is still at work waits for tasks. Must
not know what tasks are. Invariant: whoever waits is answered, or told that nobody will answer any more.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from tidelake.errors import Closed, TidelakeError

Output = bytes | TidelakeError


@dataclass
class Asked:
    """Tasks of one member, and what came of them once they are carried out."""

    tasks: Sequence[bytes]
    outputs: list[Output] = field(default_factory=list)
    answered: bool = False


class Rounds:
    """A meeting place for a number of members, each in a thread of its own."""

    def __init__(self, members: int) -> None:
        self._members = members
        self._waiting: list[Asked] = []
        self._ended = False
        self._changed = threading.Condition()

    def run(self, tasks: Sequence[bytes]) -> Sequence[bytes]:
        """As a member: have tasks carried out in the next round; their outputs, in order.

        Raises:
            TidelakeError: the first that a task answered with; `Closed` if there are no more rounds.
        """
        asked = Asked(tasks)
        with self._changed:
            self._waiting.append(asked)
            self._changed.notify_all()
            self._changed.wait_for(lambda: asked.answered or self._ended)
        if not asked.answered:
            raise Closed("the job that carries out merges has ended")
        outputs: list[bytes] = []
        for output in asked.outputs:
            if isinstance(output, TidelakeError):
                raise output
            outputs.append(output)
        return outputs

    def leave(self) -> None:
        """As a member: ask for no more."""
        with self._changed:
            self._members -= 1
            self._changed.notify_all()

    def gather(self) -> list[Asked]:
        """Wait until all members that are left have asked for tasks; nothing when none is left."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._waiting) >= self._members)
            asked, self._waiting = self._waiting, []
            return asked

    def answer(self, asked: Sequence[Asked], outputs: Sequence[Output]) -> None:
        """Hand out the outputs of all tasks that were gathered, in their order."""
        with self._changed:
            at = 0
            for one in asked:
                one.outputs = list(outputs[at : at + len(one.tasks)])
                one.answered = True
                at += len(one.tasks)
            self._changed.notify_all()

    def end(self) -> None:
        """Tell everybody who waits, or will, that there are no more rounds. May be repeated."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
