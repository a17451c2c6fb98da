"""The books: all transfers between accounts, and the rules for what readers of the accounts may see.

Owns the record of transfers, and the rules: at any time a transfer is seen in all of its accounts or in none;
an acknowledged transfer is seen; a refused one never is; and the contents of an account at a closed time do
not change. Must not know how transfers are carried out.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn

from simulation.judge import Judge
from simulation.witness import Actor
from tidelake.model.frontier import Frontier
from tidelake.state.core.edits import Transition
from tidelake.state.core.state import ShardState

Contents = Mapping[int, int]
"""Amounts by the numbers of transfers."""


@dataclass(eq=False)
class Transfer:
    """One transfer that a client asked for.

    Attributes:
        number: its number.
        amounts: amount by account; they add up to zero.
        time: the time it was committed at, if the client was told.
        barred: why it must never be seen; empty if it may be.
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
        """Record a transfer before its first attempt."""
        self.transfers.append(Transfer(len(self.transfers), amounts))
        return self.transfers[-1]

    def acknowledged(self) -> list[Transfer]:
        """The transfers whose clients were told so far that they are in."""
        return [one for one in self.transfers if one.time is not None]

    def seen(self, at: int, found: Mapping[str, Contents], due: list[Transfer]) -> None:
        """Judge reads of several accounts as of one time, which was closed in all of them.

        Args:
            at: the time.
            found: the contents of each account.
            due: the transfers that were acknowledged before the reads began.
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
    return _key_of(state) in ("transfer", "nothing")


def _key_of(state: ShardState) -> str:
    return state.schemas[0].schema.key[0].name


class JudgeOfAccounts(Judge):
    """Follows the log of an account, or of a group. The books judge its contents."""

    def _stepped(self, step: Transition, actor: Actor) -> None:  # noqa: ARG002 - the signature
        self.state = step.after
        self.uppers.append(step.after.upper)
        self.held.append(bool(step.after.holds or step.after.critical))
        self.counts["steps of accounts and groups"] += 1

    def _ended(self, before: ShardState, after: ShardState, actor: Actor) -> None:  # noqa: ARG002
        self.dropped = self.bench.clock()[0]
        if before.memberships or after.upper != Frontier():
            self.wrong(f"{self.key} was dropped, and has collections: {before.memberships}")
        if before.seqno and _key_of(before) == "transfer":
            self.wrong(f"account {self.key} was taken for a leftover at {before.seqno}, and had its name")

    def check_order(self) -> None:
        """Do nothing: transfers are not recorded as appends."""
