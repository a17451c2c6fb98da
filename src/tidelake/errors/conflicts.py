"""Errors of calls that are right: others were first, or too much time has gone by."""

import typing

from tidelake.errors.base import CLOSED_FOR_GOOD, TidelakeError, TimedError, Told
from tidelake.timetext import span


class TransactionExpired(Told, TidelakeError):
    """A transaction took so long that it was given up. Nothing of it is committed."""

    transaction: str
    says = (
        "transaction {transaction} was given up: more than the setting upload_age_s went by before its "
        "commit; nothing of it is in, write it again"
    )


class LeftGroup(Told, TidelakeError):
    """A collection left its group while a transaction wrote to it. Nothing of that is committed."""

    collection: str
    says = (
        "collection {collection!r} left its group while a transaction wrote to it; nothing of the "
        "transaction is in, write it again"
    )


class UpperMismatch(TimedError, TidelakeError):
    """The shard's upper was not the expected one. Nothing was written.

    `name` is the collection's, if several were written; `remedy` says what to do, if that is another thing.
    """

    expected: object
    current: object
    name: str = ""
    remedy: str = ""

    def _said(self) -> str:
        if str(self.current) == "[]":
            return CLOSED_FOR_GOOD
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


class InlineFull(Told, TidelakeError):
    """The state holds as many bytes of inline parts as it may. Nothing was written."""

    size_bytes: int
    limit_bytes: int
    says = (
        "inline parts of {size_bytes} bytes would pass the limit of {limit_bytes}: merge the collection, or "
        "store the parts"
    )


class HistoryCompacted(TimedError, TidelakeError):
    """The time asked for lies before `since`: its history has been compacted.

    `remedy` says what to do, if that is not to ask for another time.
    """

    asked: object
    since: object
    remedy: str = "ask for a time at or after since, or hold it back with a reader next time"
    says = "history at {asked} is compacted: since={since}; {remedy}"


class NotYetClosed(TimedError, TidelakeError):
    """The time asked for is still open; the message names the last closed time.

    Attributes:
        collection: the collection whose last closed time was asked for, if it has none; else "".
        wait_by: what says how long to wait.
    """

    wait_by = "timeout_s"

    asked: object
    upper: object
    timeout_s: float
    collection: str = ""

    def _said(self) -> str:
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


class UploadExpired(Told, TidelakeError):
    """A part was uploaded too long ago, or before rows were erased. Nothing was written."""

    name: str
    seqno: int
    floor: int
    erased: bool = False

    def _said(self) -> str:
        if self.erased:
            return (
                f"part {self.name!r} was uploaded under version {self.seqno} of the collection, and version "
                f"{self.floor} erased rows, which it might bring back: make the upload again"
            )
        return (
            f"part {self.name!r} was uploaded under version {self.seqno} of the collection, and uploads from "
            f"before version {self.floor} are given up: upload again, or raise the setting upload_age_s"
        )


class WriterFenced(Told, TidelakeError):
    """A newer epoch of this writer exists; this one may write no more."""

    writer: str
    epoch: int
    current_epoch: int
    says = (
        "writer {writer!r} of epoch {epoch} is fenced by epoch {current_epoch}: another process opened it; "
        "stop, or open the writer again to take over"
    )


class LeaseExpired(Told, TidelakeError):
    """The hold of this reader expired, or a read without a hold took too long; open a new reader."""

    reader: str
    part: str = ""

    def _said(self) -> str:
        if self.reader:
            gone = f", and part {self.part!r} was collected" if self.part else ""
            return f"reader {self.reader} no longer holds the collection{gone}: open a new reader"
        return (
            f"part {self.part!r} was collected while it was still to be read: read again; for long reads "
            "open a reader (collection.reader), which keeps what it reads, or raise the setting garbage_age_s"
        )


class ForkExpired(Told, TidelakeError):
    """A fork was not finished in time, and a collector removed it. Nothing is left of it."""

    collection: str
    says = (
        "the fork of collection {collection!r} took so long that it was given up: fork again, or raise the "
        "setting upload_age_s"
    )


class RowsErased(Told, TidelakeError):
    """Rows were erased that an arrangement has: it answers no more, and takes no more updates."""

    collection: str
    says = (
        "rows of collection {collection!r} were erased since this arrangement was loaded: close it, and "
        "arrange the collection anew"
    )


class ErasureWaits(Told, TidelakeError):
    """An erasure is noted, but cannot be carried out yet. `Collection.maintain` carries it out later."""

    collection: str
    reason: str
    says = (
        "rows of collection {collection!r} are to be erased and are still there: {reason}; then run maintain "
        "on the collection, which finishes the erasure"
    )


class RefreshFailed(Told, TidelakeError):
    """The query of a view has no answer at one of the next times, such as a number that is too large.

    Nothing was written: the view stays as it was.
    """

    view: str
    stage: str
    reason: str
    says = (
        "view {view!r} cannot be refreshed: its stage {stage} fails: {reason}; make it with a query that has "
        "an answer at these times, such as with TRY(...) or TRY_CAST"
    )


class RebuildNeeded(Told, TidelakeError):
    """What a refresh of a view needs is gone, or has become something else. The view stays as it was."""

    view: str
    reason: str
    says = "view {view!r} can no longer be refreshed: {reason}; lake.rebuild({view!r})"


class ViewsFailed(Told, TidelakeError):
    """Several views could not be refreshed; `failed` has the error of each, by name. All others were."""

    failed: dict[str, TidelakeError]
    says = "views could not be refreshed: {failed}"

    def _text(self, value: typing.Any) -> str:
        return "; ".join(map(str, value.values()))
