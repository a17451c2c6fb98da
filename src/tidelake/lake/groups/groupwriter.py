"""Named writers of groups: numbered transactions, each committed exactly once.

Owns how the record of a writer of one collection, the register, numbers writes to all collections of its
group. The group keeps the records of its collections' writers (`tidelake.state.group.memberwriters`), so the
compare-and-set that decides a transaction also records its number.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from tidelake.errors import TidelakeError, UsageError
from tidelake.handle import Handle
from tidelake.lake.arguments.frontiers import FrontierLike
from tidelake.lake.arguments.names import check_name
from tidelake.lake.arguments.numbers import WriterNumbers
from tidelake.lake.groups.groups import Groups
from tidelake.lake.groups.transactions import Committed, Transaction
from tidelake.shard.engine.shard import Shard
from tidelake.shard.write.memberwrite import MemberWrite, offered_of
from tidelake.shard.write.single import open_writer
from tidelake.shard.write.uploads import NOT_IN
from tidelake.state.group.memberwriters import GroupNumber
from tidelake.state.write.idempotency import IdempotencyKey


class GroupWriter(Handle):
    """One epoch of a named writer of a group. Threads may share it: its writes follow each other.

    It is a writer of the collection that it was opened for, its register: `register.writers` shows it, and
    `register.writer` with its name fences it.

    Attributes:
        name: name of the writer.
        owner: the owner of the sequence numbers, such as a streaming query's id.
        epoch: a later `GroupWriter` of the same name has a higher one.
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
        self.name = check_name(name, "writer name")
        if owner != "":
            check_name(owner, f"owner of writer {name!r}")
        self.owner = owner
        self._members = {register: open_(register)}
        self._register = register
        # In the group first: the group must have the record that its decisions number.
        self._group, _ = groups.of(self._members)
        record = open_writer(self._members[register], name, owner, take_over=take_over)
        self.epoch = record.epoch
        self._numbers = WriterNumbers(name, record.sequence, record.content, alone=True)

    @property
    def last_sequence(self) -> int | None:
        """Number of the last committed write of this name.

        None before the first, -1 if this owner took the name over and has not written yet.
        """
        return self._numbers.last

    @property
    def last_content(self) -> str:
        """The `content` of that write."""
        return self._numbers.content

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
        self._group, _ = self._groups.of({self._register: self._members[self._register]} | self._of(names))
        return self._group.state().seqno

    def write(
        self,
        uploads: Mapping[str, Sequence[bytes]],
        *,
        sequence: int,
        content: str = "",
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
        register = self._members[self._register].spec.shard_id
        number = GroupNumber(IdempotencyKey(self.name, self.epoch, sequence, content), register)
        with self._numbers.take(sequence, content):
            transaction = _Numbered(self._groups, self._member, self._new_id, number, upper)
            transaction.take_part(self._register)
            for name, given in uploads.items():
                transaction.offer(name, given, read_at)
            try:
                done = transaction.commit()
            except (*NOT_IN, UsageError):
                # The caller must learn of the refusal. Rows that cannot be removed now are collected later.
                with suppress(TidelakeError):
                    transaction.abort()
                raise
            return done

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
        number: GroupNumber,
        upper: FrontierLike | None,
    ) -> None:
        super().__init__(groups, open_, new_id, upper=upper)
        self._numbered = number

    def take_part(self, name: str) -> None:
        """Let a collection be in the group of the transaction, also if it gets no rows."""
        self._shard(name)

    def offer(self, name: str, uploads: Sequence[bytes], read_at: int | None) -> None:
        """Add uploads that depend on contents which were read at a state of the group."""
        offered = offered_of(self._shard(name), list(uploads))
        if offered is not None:
            self._kind = "write"
            self._rows.append(MemberWrite(name, replace(offered, read_at=read_at)))

    def _number(self, group: Shard) -> GroupNumber | None:  # noqa: ARG002
        return self._numbered
