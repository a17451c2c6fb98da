"""The books of what was transferred between accounts, and what every reader of them must be told.

Owns the record of transfers, and the rules: a transfer is seen in all of its accounts at a time or in none,
once it is acknowledged it is seen, one that was refused never is, and what an account holds at a closed time
stays so. Must not know how any of it is carried out.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn

from simulation.judge import Judge
from simulation.witness import Actor
from tidelake.model.frontier import Frontier
from tidelake.state.edits import Step
from tidelake.state.state import ShardState

Contents = Mapping[int, int]
"""Amounts by the numbers of transfers."""


@dataclass(eq=False)
class Transfer:
    """One that somebody asked for.

    Attributes:
        number: of it.
        amounts: by account; together nothing.
        time: that it is in at, if that was told.
        barred: why it must never be seen.
    """

    number: int
    amounts: dict[str, int]
    time: int | None = None
    barred: str = ""


class Books:
    """All transfers of a run.

    Args:
        wrong: ends the run with a violation.
    """

    def __init__(self, wrong: Callable[[str], NoReturn]) -> None:
        self.wrong = wrong
        self.transfers: list[Transfer] = []
        self._final: dict[tuple[str, int], Contents] = {}

    def begins(self, amounts: dict[str, int]) -> Transfer:
        """A new transfer is about to be tried."""
        self.transfers.append(Transfer(len(self.transfers), amounts))
        return self.transfers[-1]

    def acknowledged(self) -> list[Transfer]:
        """Those whose caller was told that they are in, so far."""
        return [one for one in self.transfers if one.time is not None]

    def seen(self, at: int, found: Mapping[str, Contents], due: list[Transfer]) -> None:
        """Accounts were read at one time, which was closed in all of them.

        Args:
            at: the time.
            found: what each held.
            due: what had been acknowledged before the reads began.
        """
        for name, contents in found.items():
            known = self._final.setdefault((name, at), contents)
            if known != contents:
                self.wrong(f"{name} held {known} at {at}, and now holds {contents}")
        for number in sorted({number for contents in found.values() for number in contents}):
            transfer = self.transfers[number]
            expected = {name: amount for name, amount in transfer.amounts.items() if name in found}
            amounts = {name: contents[number] for name, contents in found.items() if number in contents}
            if amounts != expected:
                self.wrong(f"half of transfer {number} is seen at {at}: {amounts} of {expected}")
            if transfer.barred:
                self.wrong(f"transfer {number} is seen at {at} although {transfer.barred}")
            if transfer.time is not None and at < transfer.time:
                self.wrong(f"transfer {number} is seen at {at}, and was to come in at {transfer.time}")
        for transfer in due:
            if transfer.time is not None and transfer.time <= at:
                missing = [n for n in transfer.amounts if n in found and transfer.number not in found[n]]
                if missing:
                    self.wrong(f"transfer {transfer.number} is in, and not seen at {at} in {missing}")


def is_account(state: ShardState) -> bool:
    """Whether a shard is an account, or a group of them."""
    return state.schemas[0].schema.key[0].name in ("transfer", "nothing")


class JudgeOfAccounts(Judge):
    """Follows the log of an account, or of a group. What is in it, the books know."""

    def _stepped(self, step: Step, actor: Actor) -> None:  # noqa: ARG002 - whoever does it
        self.state = step.after
        self.uppers.append(step.after.upper)
        self.held.append(bool(step.after.holds or step.after.critical))
        self.counts["steps of accounts and groups"] += 1

    def _ended(self, before: ShardState, after: ShardState, actor: Actor) -> None:  # noqa: ARG002
        self.dropped = self.bench.clock()[0]
        if before.memberships or after.upper != Frontier():
            self.wrong(f"{self.key} was dropped, and has collections: {before.memberships}")

    def check_order(self) -> None:
        """Nothing is asked for here."""
