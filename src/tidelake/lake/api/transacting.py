"""Writes to several collections of a lake at one instant.

Owns the arguments; `tidelake.lake.groups` commits.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from tidelake.errors import TidelakeError, UploadExpired, UpperMismatch, UsageError
from tidelake.lake.api.handle import LakeHandle
from tidelake.lake.arguments.names import check_name
from tidelake.lake.arguments.times import FrontierLike, check_any
from tidelake.model.instants import TimeLike

if TYPE_CHECKING:
    from tidelake.lake.groups.groupwriter import GroupWriter
    from tidelake.lake.groups.transactions import Committed, Transaction

T = TypeVar("T")


class Transacting(LakeHandle):
    """Methods of a lake that write to several collections, all or nothing; and what takes one out again."""

    def transaction(
        self,
        *,
        time: TimeLike | None = None,
        lower: FrontierLike | None = None,
        upper: FrontierLike | None = None,
        token: str | None = None,
    ) -> "Transaction":
        """Write to several collections at one instant: all of it is committed, or nothing.

        From then on the collections form a group: their times are closed together, so that a collection
        without updates advances too, at no cost. Writes to a single one work as before. See `leave`.

        Args:
            time: time of all rows; default: the first time that is open in all of the collections and, for
                clock times, not before the wall clock. Rows may have their own times instead.
            lower: commit only if the upper of each of its collections equals this; otherwise `UpperMismatch`.
            upper: close all times before it; default: just past the last row.
            token: any text of at most 249 bytes. A transaction that is repeated under the same token is
                committed once. The group remembers it for the lake's `token_age_s`, by default 30 days.
        """
        self._guard.check()
        if token is not None:
            check_name(token, "token")
        for bound, what in ((time, "time"), (lower, "lower"), (upper, "upper")):
            if bound is not None:
                # The collections and their unit are known later.
                check_any(bound, what, now_ms=self.env.clock.now_ms)
        from tidelake.lake.groups.transactions import Transaction

        return Transaction(
            self._groups,
            self._shards.named,
            self.env.ids.fresh,
            time=time,
            lower=lower,
            upper=upper,
            token=token,
        )

    def group_writer(
        self, register: str, name: str, *, owner: str = "", take_over: bool = False
    ) -> "GroupWriter":
        """Open a named writer of the group of a collection: its writes to all of the group are numbered.

        Each number is committed at most once. Opening fences every earlier handle of the same name. A few log
        writes if the collection is in no group yet, otherwise one.

        Args:
            register: name of the collection that keeps the writer's record; it joins a group.
            name: name of the writer.
            owner: the owner of the numbers; a name that has another owner is refused.
            take_over: take the name from another owner.
        """
        self._guard.check()
        from tidelake.lake.groups.groupwriter import GroupWriter

        return GroupWriter(
            self._groups,
            self._shards.named,
            self.env.ids.fresh,
            register=register,
            name=name,
            owner=owner,
            take_over=take_over,
        )

    def write(
        self,
        updates: Mapping[str, object],
        *,
        time: TimeLike | None = None,
        upper: FrontierLike | None = None,
        token: str | None = None,
        author: str = "",
        message: str = "",
    ) -> "Committed":
        """Append to several collections at one instant: `transaction` in one call.

        Args:
            updates: by name of the collection: a table or stream as for `Collection.append`, a `Batch`, the
                bytes of a worker's upload, or a list of batches and uploads; see `Transaction.write`.
            time: as for `transaction`, like the other arguments and errors.
            upper: as for `transaction`.
            token: as for `transaction`.
            author: as for `Collection.append`; each collection's `stage` has it.
            message: likewise.
        """
        transaction = self.transaction(time=time, upper=upper, token=token)
        for name, rows in _by_name(updates, "updates").items():
            transaction.write(name, rows)
        from tidelake.lake.arguments.tokens import noted

        with noted(author, message):
            return _committed(transaction)

    def stage(self, updates: Mapping[str, object], *, token: str | None = None) -> "Committed":
        """Stage updates of several collections at one instant, all or nothing; see `Collection.stage`."""
        transaction = self.transaction(token=token)
        for name, rows in _by_name(updates, "updates").items():
            transaction.stage(name, rows)
        return _committed(transaction)

    def seal(self, uppers: Mapping[str, FrontierLike]) -> "Committed":
        """Close times of several collections at one instant, each up to its own frontier.

        Raises:
            UsageError: a collection is closed further already, and which; nothing is sealed.
        """
        transaction = self.transaction()
        for name, upper in _by_name(uppers, "uppers").items():
            transaction.seal(name, upper)
        return transaction.commit()

    def join(self, names: Sequence[str]) -> None:
        """Let collections form a group, without a write; see `transaction`. The opposite of `leave`.

        A log write for each collection that comes in, and one of the group.

        Raises:
            UsageError: one is named twice; or they cannot be in one group: they count times in several
                units, or are in several groups of more than one collection.
        """
        self._guard.check()
        if isinstance(names, str) or not names:
            raise UsageError("names: give a list of collections, at least one")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise UsageError(f"names: {twice[0]!r} is named twice: name each collection once")
        self._groups.of({name: self._shards.named(name) for name in names})

    def leave(self, name: str) -> bool:
        """Remove a collection from its group: it is then written to alone. False if it is in no group.

        Committed transactions stay in it; undecided ones are no longer committed to it.
        """
        return self._groups.leave(self._shards.named(name))


def _committed(transaction: "Transaction") -> "Committed":
    """Commit a transaction that the caller cannot commit again: after a conflict, remove its staged rows."""
    try:
        return transaction.commit()
    except (UpperMismatch, UploadExpired, UsageError):
        with suppress(TidelakeError):
            transaction.abort()
        raise


def _by_name(given: Mapping[str, T], what: str) -> Mapping[str, T]:
    if not isinstance(given, Mapping):
        raise UsageError(f"{what} is a {type(given).__name__}: give a dict by name of the collection")
    return given
