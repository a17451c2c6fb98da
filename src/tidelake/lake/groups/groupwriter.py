"""Named writers of groups: numbered transactions, each committed exactly once.

Owns how the record of a writer of one collection, the register, numbers writes to all collections of its
group. The group keeps the records of its collections' writers (`tidelake.state.group.memberwriters`), so the
compare-and-set that decides a transaction also records its number.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from tidelake.errors import TidelakeError
from tidelake.lake.arguments.numbers import NumberedHandle
from tidelake.lake.arguments.times import FrontierLike
from tidelake.lake.groups.groups import Groups
from tidelake.lake.groups.transactions import Committed, Transaction
from tidelake.shard.engine.shard import Shard
from tidelake.shard.writing.memberwrite import MemberWrite, offered_of
from tidelake.shard.writing.uploads import REFUSED
from tidelake.state.write.heldback import StreamContent
from tidelake.state.write.idempotency import IdempotencyKey


class GroupWriter(NumberedHandle):
    """One epoch of a named writer of a group. Threads may share it: its writes follow each other.

    It is a writer of the collection that it was opened for, its register: `register.writers` shows it, and
    `register.writer` with its name fences it.
    """

    def __init__(
        self,
        groups: Groups,
        open_: Callable[[str], Shard],
        new_id: Callable[[], str],
        *,
        register: str,
        name: str,
        owner: str,
        take_over: bool,
    ) -> None:
        self._groups, self._open, self._new_id = groups, open_, new_id
        self._members: dict[str, Shard] = {}
        self._register = register
        super().__init__(self._joined, name, owner, take_over=take_over)

    def join(self, names: Sequence[str]) -> int:
        """Let collections be in the group, and tell how far the group is.

        A log scan of each collection and two of the group; to join, a log write of each and one of the group.

        Returns:
            The seqno of the group's newest state, for `write`.

        Raises:
            UsageError: they cannot be in this group: one counts times in another unit, or is in another one.
        """
        for name in names:
            self._member(name)
        group, _ = self._groups.of(self._of([self._register, *names]))
        return group.state().seqno

    def write(
        self,
        uploads: Mapping[str, Sequence[bytes]],
        *,
        sequence: int,
        content: str | StreamContent = "",
        upper: FrontierLike | None = None,
        read_at: int | None = None,
    ) -> Committed:
        """Append uploads of workers to several collections as number `sequence`, all or nothing.

        One log write for each collection that gets rows, and one that decides. If the number is committed
        already, nothing is written.

        Args:
            uploads: what the workers returned, by name of the collection; without any, only the number is
                recorded.
            sequence: the number.
            content: describes the input of the data. The same number with another content is refused.
            upper: close the times of the whole group before it.
            read_at: what `join` returned before the contents were read that the uploads depend on; None: they
                depend on none.

        Raises:
            UpperMismatch, UpdateBeforeLower: others wrote meanwhile. Nothing is committed: make the uploads
                again.
            WriterFenced: a later epoch of this name is open.
            UsageError: the number is one that earlier writes left out.
            OutcomeUnknown: it may be committed. Open the writer again to learn it.
        """
        register = self._member(self._register).spec.shard_id

        def attempt(key: IdempotencyKey) -> Committed:
            number = replace(key, member=register)
            transaction = _Numbered(self._groups, self._member, self._new_id, number, upper)
            transaction.take_part(self._register)
            for name, given in uploads.items():
                transaction.offer(name, given, read_at)
            try:
                return transaction.commit()
            except REFUSED:
                # The caller must learn of the refusal. Rows that cannot be removed now are collected later.
                with suppress(TidelakeError):
                    transaction.abort()
                raise

        return self._numbered(sequence, attempt, content)

    def _joined(self) -> Shard:
        """The register, in its group: the group must have the record that its decisions number."""
        shard = self._member(self._register)
        self._groups.of({self._register: shard})
        return shard

    def _member(self, name: str) -> Shard:
        """A collection that a name led to when this writer first met it."""
        if name not in self._members:
            self._members[name] = self._open(name)
        return self._members[name]

    def _of(self, names: Sequence[str]) -> dict[str, Shard]:
        return {name: self._members[name] for name in names}


class _Numbered(Transaction):
    """A transaction under a number."""

    def __init__(
        self,
        groups: Groups,
        open_: Callable[[str], Shard],
        new_id: Callable[[], str],
        number: IdempotencyKey,
        upper: FrontierLike | None,
    ) -> None:
        super().__init__(groups, open_, new_id, upper=upper)
        self._numbered = number

    def take_part(self, name: str) -> None:
        """Let a collection be in the group of the transaction, also if it gets no rows."""
        self._draft.shard(name)

    def offer(self, name: str, uploads: Sequence[bytes], read_at: int | None) -> None:
        """Add uploads that depend on contents which were read at a state of the group."""
        draft = self._draft
        offered = offered_of(draft.shard(name), list(uploads))
        if offered is not None:
            draft.kind = "write"
            draft.rows.append(MemberWrite(name, replace(offered, read_at=read_at)))

    def _number(self, group: Shard) -> IdempotencyKey | None:  # noqa: ARG002
        return self._numbered
