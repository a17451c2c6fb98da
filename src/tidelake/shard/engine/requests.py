"""The request to carry out a command, or to refresh: the handle that asks, the decision, and the answer.

Must not know how commands are decided or committed.
"""

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Generic, Protocol, TypeAlias, TypeVar

from tidelake.errors import InternalError, TidelakeError
from tidelake.shard.engine.history import LoadedVersion
from tidelake.shard.engine.requestqueue import Request
from tidelake.state.core.commands import Command, Commit, NoOp, Outcome, Refused
from tidelake.state.core.edits import Note
from tidelake.state.spine.fuel import MergeDue

R = TypeVar("R")
NOTE: ContextVar[Note | None] = ContextVar("NOTE", default=None)
"""What is said of the commits that are asked for here; threads that work for this one have it too."""


@dataclass(frozen=True)
class Done(Generic[R]):
    """A command's result, and the work that is now due.

    Attributes:
        result: the result of the command.
        rollup_due: whether the caller should write a rollup, which makes opening the shard cheaper. Only one
            of the commands that were committed together is told so.
        merges_due: merges that the levels of the spine have decided on.
    """

    result: R
    rollup_due: bool
    merges_due: tuple[MergeDue, ...] = ()


@dataclass(frozen=True)
class Failed:
    """The outcome of a command that raised an unexpected error instead of being refused."""

    error: Exception


Decided: TypeAlias = Outcome[R] | Failed


class Requester(Protocol):
    """The handle that a command comes from."""

    def named(self, error: TidelakeError) -> TidelakeError:
        """The error with the name of the shard that its user knows."""

    def seen(self) -> LoadedVersion | None:
        """The newest version that it has seen."""

    def adopt(self, known: LoadedVersion) -> LoadedVersion:
        """Take over a newer version."""


class CommitRequest(Request, Generic[R]):
    """The request of one thread to carry out a command.

    Attributes:
        machine: the machine of the handle that asks.
        command: the command.
        others: requests of the same thread, which are carried out with this one, and before it.
        note: what is said of its commit.
        attempt: the commit attempt that it is part of, from before the attempt until its outcome is known.
    """

    def __init__(
        self,
        machine: Requester,
        command: Command[R],
        *,
        alone: bool = False,
        hurried: bool = False,
        others: "Sequence[CommitRequest[R]]" = (),
    ) -> None:
        super().__init__(alone=alone, hurried=hurried)
        self.machine, self.command, self.others, self.note = machine, command, others, NOTE.get()
        self.attempt: object = None
        self._done: Done[R] | None = None

    def answer(self, decided: Decided[R], *, rollup_due: bool) -> bool:
        """Answer the request. Returns whether a rollup is due that another request has to write."""
        match decided:
            case NoOp(result):
                self._done = Done(result, rollup_due)
            case Commit(_, result, due):
                self._done = Done(result, rollup_due, due)
            case Refused(error):
                self.error = self.machine.named(error)
            case Failed(broken):
                self.error = broken
        self.answered = True
        return rollup_due and (self._done is None or self.gone)

    def fail(self, error: Exception) -> None:
        """End the request with an error that all requests of the round get."""
        self.attempt = None
        super().fail(error)

    def done(self) -> Done[R]:
        """The answer."""
        if self._done is None:
            raise InternalError("a command was not answered")
        return self._done


class RefreshRequest(Request):
    """The request of one thread to refresh the newest state."""

    def __init__(self, machine: Requester) -> None:
        super().__init__()
        self.machine = machine
