"""Rounds: several threads ask for tasks and wait, and one thread carries out all these tasks at once.

Owns the meeting of the threads: a round begins when every thread that is still at work waits for tasks. Must
not know what tasks are. INVARIANT: a waiting thread gets an answer, or `Closed` if there are no more rounds.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from tidelake.errors import Closed, TidelakeError

Output = bytes | TidelakeError


@dataclass
class MemberTasks:
    """The tasks of one member, and their outputs once they are carried out."""

    tasks: Sequence[bytes]
    outputs: list[Output] = field(default_factory=list)
    answered: bool = False


class Rounds:
    """Combines the tasks of several members, each in its own thread, into rounds."""

    def __init__(self, members: int) -> None:
        self._members = members
        self._waiting: list[MemberTasks] = []
        self._ended = False
        self._changed = threading.Condition()

    def run(self, tasks: Sequence[bytes]) -> Sequence[bytes]:
        """As a member: have tasks carried out in the next round. Returns their outputs, in order."""
        asked = MemberTasks(tasks)
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
        """As a member: end; this member asks for no more tasks."""
        with self._changed:
            self._members -= 1
            self._changed.notify_all()

    def gather(self) -> list[MemberTasks]:
        """Wait until all remaining members have asked for tasks. Empty if there are no members left."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._waiting) >= self._members)
            asked, self._waiting = self._waiting, []
            return asked

    def answer(self, asked: Sequence[MemberTasks], outputs: Sequence[Output]) -> None:
        """Hand the outputs of all gathered tasks to their members."""
        with self._changed:
            at = 0
            for one in asked:
                one.outputs = list(outputs[at : at + len(one.tasks)])
                one.answered = True
                at += len(one.tasks)
            self._changed.notify_all()

    def end(self) -> None:
        """End all rounds: waiting and later calls of `run` raise `Closed`. May be repeated."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
