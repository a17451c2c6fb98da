"""Every exception of Tidelake, grouped by what the caller does next.

A class exists only if a caller acts differently on it. Fields are positional, so that every error
survives pickling (Spark sends them between processes). The message is one lower-case sentence that
names the object and, if there is one, the remedy.

    TidelakeError
    ├── UsageError                    correct the call; nothing was written
    │   ├── InvalidUpdates            the given table does not fit the collection
    │   ├── UpdateBeforeLower         an update lies before the interval it is written to
    │   ├── UpdateNotBeforeUpper      an update lies at or after the end of that interval
    │   ├── InvalidBatchBounds        a batch does not cover the interval that it is to be appended to
    │   ├── InvalidRewrite            the times of a batch cannot be rewritten like this
    │   ├── BatchConsumed             a batch is used again: it was appended, deleted or turned into bytes
    │   ├── AlreadyTaken              an upload or batch was committed before: continue with the next
    │   ├── IncompatibleSchema        a schema does not fit the registered one
    │   ├── CollectionExists          a name is taken (by another schema, or was dropped)
    │   ├── CollectionNotFound        no collection of that name
    │   │   └── CollectionDropped     the collection was dropped
    │   ├── CollectionInGroup         its group decides its writes; handled inside Tidelake
    │   ├── CollectionIsView          only its refresh writes to it: change its inputs
    │   ├── CollectionInUse           others hold it: close these readers, or use force
    │   ├── NotALake                  the directory holds no lake
    │   ├── ReadOnlyLake              the lake is open for reading only: open it with write access
    │   ├── StaysHere                 a handle does not go to another process: open the lake there
    │   └── Closed                    the lake was closed
    ├── UpperMismatch                 a conflict: read `current`, decide, try again
    ├── InlineFull                    the state holds enough tiny parts: merge them, or store the parts
    ├── HistoryCompacted              ask for a later time
    ├── NotYetClosed                  ask again later: the time is not final yet
    ├── UploadExpired                 the upload is older than the limit: upload again
    ├── LeftGroup                     a collection left its group meanwhile: write it again
    ├── TransactionExpired            it took too long, and is not committed: write it again
    ├── WriterFenced                  a newer writer of this name took over: stop
    ├── LeaseExpired                  the hold is gone: open a new reader
    ├── ForkExpired                   the fork was not finished in time: fork again
    ├── ErasureWaits                  rows are to be erased, and stay until something else is done: do that
    ├── RowsErased                    an index of a collection has rows that were erased since: make it anew
    ├── RefreshFailed                 the query of a view has no answer at a time: make it with another query
    ├── RebuildNeeded                 a view can no longer be refreshed: rebuild it
    ├── StoreUnavailable              the store certainly did not do it: try again later
    ├── OutOfThreads                  the system starts no further thread: do less at a time
    ├── OutcomeUnknown                the store may have done it: check before trying again
    ├── BlobNotFound                  no object of that name
    ├── BlobExists                    an object of that name is already there
    ├── CorruptionError               stored bytes are damaged: restore them
    │   └── SymbolicLink              a lake contains a symbolic link: replace it by its target
    ├── UnknownFormat                 written by another version of Tidelake
    │   ├── FormatTooNew              by a newer one: upgrade
    │   └── FormatTooOld              by an unreleased one: carry the data over
    └── InternalError                 a bug in Tidelake: report it
"""

from typing import Self

from tidelake.timetext import shown, span


class TidelakeWarning(UserWarning):
    """Something was not done, which costs no correctness, such as a batch that was never appended."""


def to_install(extra: str) -> str:
    """How to install an extra, for messages. Tidelake is on no package index yet."""
    return (
        f"install tidelake[{extra}]: pip install '.[{extra}]' in a checkout of Tidelake, or "
        f"pip install 'WHEEL[{extra}]' with the path of its wheel"
    )


_MESSAGE_MAX = 4_000


class TidelakeError(Exception):
    """The root of all errors that Tidelake raises on purpose."""

    def __init_subclass__(cls) -> None:
        """Leave out the middle of a very long message, as of a value that is quoted in it."""
        super().__init_subclass__()
        whole = cls.__str__

        def cut(self: Self) -> str:
            text, half = whole(self), _MESSAGE_MAX // 2
            return text if len(text) <= _MESSAGE_MAX else f"{text[:half]} ... {text[-half:]}"

        cls.__str__ = cut  # type: ignore[assignment, method-assign]


class UsageError(TidelakeError, ValueError):
    """The call cannot be carried out as given. Nothing was written."""


class TimedError:
    """An error that names times. The fields stay as they are stored; only the message depends on the unit.

    Attributes:
        unit: the unit of the times; `""` if it is unknown.
    """

    unit = ""

    def of(self, unit: str) -> Self:
        """The same error, whose message shows times of this unit."""
        self.unit = unit
        return self

    def _text(self, value: object) -> str:
        return shown(value, self.unit)


class InvalidUpdates(UsageError):
    """A table of updates does not fit the collection: columns, types, nulls, times or diffs."""


class UpdateBeforeLower(TimedError, UsageError):
    """An update lies before the interval that it is written to."""

    def __init__(self, time: object, lower: object) -> None:
        super().__init__(time, lower)
        self.time, self.lower = time, lower

    def __str__(self) -> str:
        return (
            f"an update at time {self._text(self.time)} is not at or after the lower frontier "
            f"{self._text(self.lower)}: closed times keep their contents. Write a correction at an open time "
            "(leave the time out), keep its date in the key, or fork and swap, as docs/corrections.md shows; "
            "give a token to calls that may be made twice"
        )


class UpdateNotBeforeUpper(TimedError, UsageError):
    """An update lies at or after the end of the interval that it is written to."""

    def __init__(self, time: object, upper: object) -> None:
        super().__init__(time, upper)
        self.time, self.upper = time, upper

    def __str__(self) -> str:
        return (
            f"an update at time {self._text(self.time)} is at or after the upper frontier "
            f"{self._text(self.upper)}: append up to a later frontier"
        )


class InvalidBatchBounds(UsageError):
    """A batch does not cover the interval that it is to be appended to."""


class InvalidRewrite(UsageError):
    """The times of a batch cannot be rewritten like this; the message names the condition that fails."""


class BatchConsumed(UsageError):
    """The batch was used before: appended, deleted or turned into bytes. A batch can be used once."""


class AlreadyTaken(UsageError):
    """The upload or batch, or a copy of it, was committed before. Nothing was written."""

    def __init__(self, name: str, where: str) -> None:
        super().__init__(name, where)
        self.name, self.where = name, where

    def __str__(self) -> str:
        return (
            f"part {self.name!r} was taken in before, and is {self.where}: an upload is taken once; "
            "upload the rows again if they are to be added again"
        )


class IncompatibleSchema(UsageError):
    """A schema does not fit the registered one."""


class CollectionExists(UsageError):
    """The name is taken."""


class CollectionNotFound(UsageError, KeyError):
    """There is no collection of that name. Also a `KeyError`, as `lake["name"]` raises it."""

    # That of `KeyError` would show the message as a literal.
    __str__ = UsageError.__str__


class CollectionDropped(CollectionNotFound):
    """The collection was dropped while, or before, it was used."""

    def __init__(self, collection: str) -> None:
        super().__init__(collection)
        self.collection = collection

    def __str__(self) -> str:
        return f"collection {self.collection!r} was dropped: nothing of it can be read or written"


class CollectionInGroup(UsageError):
    """The collection is in a group, which decides its writes; a command on it alone wrote nothing.

    The methods of `Collection` and `Lake` catch it, and write through the group.
    """

    def __init__(self, collection: str) -> None:
        super().__init__(collection)
        self.collection = collection

    def __str__(self) -> str:
        return (
            f"collection {self.collection!r} belongs to a group, which decides its writes, since it was "
            "written or sealed together with others: use the methods of tidelake.Collection or Lake, or take "
            "it out of the group with lake.leave"
        )


class TransactionExpired(TidelakeError):
    """A transaction took so long that it was given up. Nothing of it is committed."""

    def __init__(self, transaction: str) -> None:
        super().__init__(transaction)
        self.transaction = transaction

    def __str__(self) -> str:
        return (
            f"transaction {self.transaction} was given up: more than the setting upload_age_s went by before "
            "its commit; nothing of it is in, write it again"
        )


class LeftGroup(TidelakeError):
    """A collection left its group while a transaction wrote to it. Nothing of that is committed."""

    def __init__(self, collection: str) -> None:
        super().__init__(collection)
        self.collection = collection

    def __str__(self) -> str:
        return (
            f"collection {self.collection!r} left its group while a transaction wrote to it; nothing of the "
            "transaction is in, write it again"
        )


class CollectionIsView(UsageError):
    """A view is written by its refresh alone."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return (
            f"collection {self.name!r} is a view, which only its refresh changes: change its inputs, make "
            "another view, or write to a fork of it (lake.fork)"
        )


class CollectionInUse(UsageError):
    """Others hold the collection. Nothing was written."""

    def __init__(self, collection: str, holders: tuple[str, ...]) -> None:
        super().__init__(collection, holders)
        self.collection, self.holders = collection, holders

    def __str__(self) -> str:
        return (
            f"collection {self.collection!r} is held by {', '.join(self.holders)}: close these readers and "
            "drop these holds and views, or drop with force=True, which ends them"
        )


class NotALake(UsageError):
    """The place holds no lake, or holds something else."""


class ReadOnlyLake(UsageError):
    """The lake is open for reading only. Nothing was written."""

    def __init__(self, lake: str) -> None:
        super().__init__(lake)
        self.lake = lake

    def __str__(self) -> str:
        return (
            f"lake {self.lake!r} is open for reading only, which writes nothing, also no holds of readers: "
            "open it without read_only, as a user who may write there; snapshot, changes and updates need no "
            "hold"
        )


class Closed(UsageError):
    """The lake was closed; open it again."""


class StaysHere(UsageError, TypeError):
    """A handle does not go to another process, by pickle or a copy: open the lake there.

    A `TypeError` as well, which is what pickle raises.
    """


class UpperMismatch(TimedError, TidelakeError):
    """The shard's upper was not the expected one. Nothing was written.

    `name` is the collection's, if several were written; `remedy` says what to do, if that is another thing.
    """

    def __init__(self, expected: object, current: object, name: str = "", remedy: str = "") -> None:
        super().__init__(expected, current, *([name, remedy] if remedy else [name] if name else []))
        self.expected, self.current, self.name, self.remedy = expected, current, name, remedy

    def __str__(self) -> str:
        if str(self.current) == "[]":
            return "all times are closed for good (upper=[]): make another collection for further updates"
        if str(self.current) == str(self.expected):
            return (
                f"updates were staged at times from {self._text(self.current)} on since the contents were "
                "read that this write depends on: read them again and write what follows from them"
            )
        return (
            f"the upper{f' of {self.name!r}' if self.name else ''} is {self._text(self.current)}, not the "
            f"expected {self._text(self.expected)}: "
            + (self.remedy or "another writer was first; read up to the current upper and append from there")
        )


class InlineFull(TidelakeError):
    """The state holds as many bytes of inline parts as it may. Nothing was written."""

    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(size_bytes, limit_bytes)
        self.size_bytes, self.limit_bytes = size_bytes, limit_bytes

    def __str__(self) -> str:
        return (
            f"inline parts of {self.size_bytes} bytes would pass the limit of {self.limit_bytes}: "
            "merge the collection, or store the parts"
        )


class HistoryCompacted(TimedError, TidelakeError):
    """The time asked for lies before `since`: its history has been compacted.

    `remedy` says what to do, if that is not to ask for another time.
    """

    def __init__(self, asked: object, since: object, remedy: str = "") -> None:
        super().__init__(asked, since, remedy)
        self.asked, self.since, self.remedy = asked, since, remedy

    def __str__(self) -> str:
        remedy = "ask for a time at or after since, or hold it back with a reader next time"
        return (
            f"history at {self._text(self.asked)} is compacted: since={self._text(self.since)}; "
            f"{self.remedy or remedy}"
        )


class NotYetClosed(TimedError, TidelakeError):
    """The time asked for is still open; the message names the last closed time.

    Attributes:
        collection: the collection whose last closed time was asked for, if it has none; else "".
        wait_by: what says how long to wait.
    """

    wait_by = "timeout_s"

    def __init__(self, asked: object, upper: object, timeout_s: float, collection: str = "") -> None:
        super().__init__(asked, upper, timeout_s, collection)
        self.asked, self.upper, self.timeout_s, self.collection = asked, upper, timeout_s, collection

    def __str__(self) -> str:
        if self.collection:
            return (
                f"collection {self.collection!r} has no closed time yet, so it has no contents to read: "
                "append rows to it first, or an empty table, which closes a time too"
            )
        waited = f" after waiting {self.timeout_s:g} s" if self.timeout_s else ""
        return (
            f"time {self._text(self.asked)} is not closed{waited}: {self._behind()}; ask for an earlier "
            f"time, wait for it ({self.wait_by}), or append up to a later frontier"
        )

    def _behind(self) -> str:
        """How far the closed times reach."""
        if not isinstance(self.upper, int):
            return f"upper={self._text(self.upper)}"
        if not self.upper:
            return "no time is closed yet"
        short = ""
        if isinstance(self.asked, int):
            short = f", {span(self.asked - self.upper + 1, self.unit)} short of it"
        return f"the last closed time is {self._text(self.upper - 1)}{short}"


class UploadExpired(TidelakeError):
    """A part was uploaded too long ago, or before rows were erased. Nothing was written."""

    def __init__(self, name: str, seqno: int, floor: int, erased: bool = False) -> None:
        super().__init__(name, seqno, floor, erased)
        self.name, self.seqno, self.floor, self.erased = name, seqno, floor, erased

    def __str__(self) -> str:
        if self.erased:
            return (
                f"part {self.name!r} was uploaded under version {self.seqno} of the collection, and version "
                f"{self.floor} erased rows, which it might bring back: make the upload again"
            )
        return (
            f"part {self.name!r} was uploaded under version {self.seqno} of the collection, and uploads from "
            f"before version {self.floor} are given up: upload again, or raise the setting upload_age_s"
        )


class WriterFenced(TidelakeError):
    """A newer epoch of this writer exists; this one may write no more."""

    def __init__(self, writer: str, epoch: int, current_epoch: int) -> None:
        super().__init__(writer, epoch, current_epoch)
        self.writer, self.epoch, self.current_epoch = writer, epoch, current_epoch

    def __str__(self) -> str:
        return (
            f"writer {self.writer!r} of epoch {self.epoch} is fenced by epoch {self.current_epoch}: "
            "another process opened it; stop, or open the writer again to take over"
        )


class LeaseExpired(TidelakeError):
    """The hold of this reader expired, or a read without a hold took too long; open a new reader."""

    def __init__(self, reader: str, part: str = "") -> None:
        super().__init__(reader, part)
        self.reader, self.part = reader, part

    def __str__(self) -> str:
        if self.reader:
            gone = f", and part {self.part!r} was collected" if self.part else ""
            return f"reader {self.reader} no longer holds the collection{gone}: open a new reader"
        return (
            f"part {self.part!r} was collected while it was still to be read: read again; for long reads "
            "open a reader (collection.reader), which keeps what it reads, or raise the setting garbage_age_s"
        )


class ForkExpired(TidelakeError):
    """A fork was not finished in time, and a collector removed it. Nothing is left of it."""

    def __init__(self, collection: str) -> None:
        super().__init__(collection)
        self.collection = collection

    def __str__(self) -> str:
        return (
            f"the fork of collection {self.collection!r} took so long that it was given up: fork again, or "
            "raise the setting upload_age_s"
        )


class RowsErased(TidelakeError):
    """Rows were erased that an arrangement has: it answers no more, and takes no more updates."""

    def __init__(self, collection: str) -> None:
        super().__init__(collection)
        self.collection = collection

    def __str__(self) -> str:
        return (
            f"rows of collection {self.collection!r} were erased since this arrangement was loaded: close "
            "it, and arrange the collection anew"
        )


class ErasureWaits(TidelakeError):
    """An erasure is noted, but cannot be carried out yet. `Collection.maintain` carries it out later."""

    def __init__(self, collection: str, reason: str) -> None:
        super().__init__(collection, reason)
        self.collection, self.reason = collection, reason

    def __str__(self) -> str:
        return (
            f"rows of collection {self.collection!r} are to be erased and are still there: {self.reason}; "
            "then run maintain on the collection, which finishes the erasure"
        )


class RefreshFailed(TidelakeError):
    """The query of a view has no answer at one of the next times, such as a number that is too large.

    Nothing was written: the view stays as it was.
    """

    def __init__(self, view: str, stage: str, reason: str) -> None:
        super().__init__(view, stage, reason)
        self.view, self.stage, self.reason = view, stage, reason

    def __str__(self) -> str:
        return (
            f"view {self.view!r} cannot be refreshed: its stage {self.stage} fails: {self.reason}; make it "
            "with a query that has an answer at these times, such as with TRY(...) or TRY_CAST"
        )


class RebuildNeeded(TidelakeError):
    """What a refresh of a view needs is gone, or has become something else. The view stays as it was."""

    def __init__(self, view: str, reason: str) -> None:
        super().__init__(view, reason)
        self.view, self.reason = view, reason

    def __str__(self) -> str:
        return f"view {self.view!r} can no longer be refreshed: {self.reason}; lake.rebuild({self.view!r})"


class StoreUnavailable(TidelakeError):
    """The store refused or could not be reached; the operation certainly did not happen.

    `retryable` is false where trying again soon cannot help: a full disk, a missing permission.
    """

    def __init__(self, message: str, retryable: bool = True) -> None:
        super().__init__(message, retryable)
        self.message, self.retryable = message, retryable

    def __str__(self) -> str:
        return self.message


class OutOfThreads(TidelakeError):
    """The system starts no further thread for this process, and the work cannot be done by the caller."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return (
            f"the system starts no further thread for {self.name}: let this process do less at a time, or "
            "raise its limits of processes (ulimit -u) and of memory"
        )


class OutcomeUnknown(TidelakeError):
    """The store did not answer; the operation may or may not have happened."""


class BlobNotFound(TidelakeError):
    """No object of that name in the store."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"no object {self.name!r} in the store"


class BlobExists(TidelakeError):
    """An object of that name is already in the store; it was left as it is."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"object {self.name!r} already exists"


class CorruptionError(TidelakeError):
    """Stored bytes are not what was written."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.name, self.reason = name, reason

    def __str__(self) -> str:
        return f"object {self.name!r} is damaged: {self.reason}; restore it from a copy"


class SymbolicLink(CorruptionError):
    """A symbolic link stands inside a lake, where it leads out of it. Nothing was touched."""

    def __str__(self) -> str:
        return f"{self.name!r}: {self.reason}"


class UnknownFormat(TidelakeError):
    """Written by another version of Tidelake, in a format that this one does not read."""

    name: str


class FormatTooNew(UnknownFormat):
    """Written by a newer version of Tidelake."""

    def __init__(self, name: str, found: int, known: int) -> None:
        super().__init__(name, found, known)
        self.name, self.found, self.known = name, found, known

    def __str__(self) -> str:
        return (
            f"{self.name!r} has format {self.found} and this Tidelake reads up to {self.known}: "
            "upgrade Tidelake"
        )


class FormatTooOld(UnknownFormat):
    """Written by an unreleased version of Tidelake, whose formats are read no more."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return (
            f"{self.name!r} is of an unreleased version of Tidelake, which this one does not read: write the "
            "collections of its lake to files with that version (`tidelake snapshot LAKE NAME --out FILE`), "
            "and append them to a new lake"
        )


class InternalError(TidelakeError):
    """An invariant of Tidelake does not hold: a bug. Nothing was committed."""
