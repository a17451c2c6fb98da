"""A command on its way: who asks, what was decided, and the answer.

Must not know how commands are decided or committed.
"""

from dataclasses import dataclass
from typing import Generic, Protocol, TypeAlias, TypeVar

from tidelake.errors import InternalError, TidelakeError
from tidelake.shard.combining import Request
from tidelake.shard.history import Known
from tidelake.state.commands import Command, Commit, NoOp, Outcome, Refused
from tidelake.state.fuel import MergeDue

R = TypeVar("R")


@dataclass(frozen=True)
class Done(Generic[R]):
    """A command's result, and the work that is now due.

    Attributes:
        result: of the command.
        rollup_due: opening the shard has become dearer than it need be. Of commands that were committed
            together one is told.
        merges_due: merges that the levels of the spine have decided on.
    """

    result: R
    rollup_due: bool
    merges_due: tuple[MergeDue, ...] = ()


@dataclass(frozen=True)
class Failed:
    """A command that raised an error of its own, instead of being refused."""

    error: Exception


Decided: TypeAlias = Outcome[R] | Failed


class Handle(Protocol):
    """Whose command it is."""

    def named(self, error: TidelakeError) -> TidelakeError:
        """An error of a state, with the name that its user knows."""

    def seen(self) -> Known | None:
        """The newest state that it has seen."""

    def adopt(self, known: Known) -> Known:
        """Let it know a newer state."""


class Asked(Request, Generic[R]):
    """A command of one thread.

    Attributes:
        machine: of the handle that asks.
        command: that is asked for.
        attempt: the commit that it is in, from before the commit is tried until it is settled.
    """

    def __init__(self, machine: Handle, command: Command[R], *, alone: bool) -> None:
        super().__init__(alone=alone)
        self.machine, self.command = machine, command
        self.attempt: object = None
        self._done: Done[R] | None = None

    def answer(self, decided: Decided[R], *, rollup_due: bool) -> bool:
        """Give the answer, which is true from now on; whether a rollup is left for others to write."""
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
        """Tell of an error that all hear of who were to be committed together."""
        self.attempt = None
        super().fail(error)

    def done(self) -> Done[R]:
        """The answer."""
        if self._done is None:
            raise InternalError("a command was not answered")
        return self._done


class Look(Request):
    """A wish to know the newest state."""

    def __init__(self, machine: Handle) -> None:
        super().__init__()
        self.machine = machine
