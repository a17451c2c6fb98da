"""Errors after which the caller corrects the call."""

from tidelake.errors.base import CLOSED_FOR_GOOD, TimedError, Told, UsageError
from tidelake.timetext import is_clock


class InvalidUpdates(UsageError):
    """A table of updates does not fit the collection: columns, types, nulls, times or diffs."""


class UpdateBeforeLower(TimedError, UsageError):
    """An update lies before the interval that it is written to."""

    time: object
    lower: object
    says = (
        "an update at time {time} is not at or after the lower frontier {lower}: closed times keep their "
        "contents. Write a correction at an open time ({how}), keep its date in the key, or "
        "fork and swap, as docs/corrections.md shows; give a token to calls that may be made twice"
    )

    def _said(self) -> str:
        if str(self.lower) == "[]":
            return CLOSED_FOR_GOOD
        # A write of a clock that leaves the time out closes all times until now, or is refused.
        how = f"the first is {self._text(self.lower)}" if is_clock(self.unit) else "leave the time out"
        return self.says.format(time=self._text(self.time), lower=self._text(self.lower), how=how)


class UpdateNotBeforeUpper(TimedError, UsageError):
    """An update lies at or after the end of the interval that it is written to."""

    time: object
    upper: object
    says = "an update at time {time} is at or after the upper frontier {upper}: append up to a later frontier"


class InvalidBatchBounds(UsageError):
    """A batch does not cover the interval that it is to be appended to."""


class InvalidRewrite(UsageError):
    """The times of a batch cannot be rewritten like this; the message names the condition that fails."""


class BatchConsumed(UsageError):
    """The batch was used before: appended, deleted or turned into bytes. A batch can be used once."""


class AlreadyTaken(Told, UsageError):
    """The upload or batch, or a copy of it, was committed before. Nothing was written."""

    name: str
    where: str
    says = (
        "part {name!r} was taken in before, and is {where}: an upload is taken once; upload the rows again "
        "if they are to be added again"
    )


class IncompatibleSchema(UsageError):
    """A schema does not fit the registered one."""


class CollectionExists(UsageError):
    """The name is taken."""


class CollectionNotFound(UsageError, KeyError):
    """There is no collection of that name. Also a `KeyError`, as `lake["name"]` raises it."""


class CollectionDropped(Told, CollectionNotFound):
    """The collection was dropped while, or before, it was used."""

    collection: str
    says = "collection {collection!r} was dropped: nothing of it can be read or written"


class CollectionInGroup(Told, UsageError):
    """The collection is in a group, which decides its writes; a command on it alone wrote nothing.

    The methods of `Collection` and `Lake` catch it, and write through the group.
    """

    collection: str
    says = (
        "collection {collection!r} belongs to a group, which decides its writes, since it was written or "
        "sealed together with others: use the methods of tidelake.Collection or Lake, or take it out of the "
        "group with lake.leave"
    )


class CollectionIsView(Told, UsageError):
    """A view is written by its refresh alone."""

    name: str
    says = (
        "collection {name!r} is a view, which only its refresh changes: change its inputs, make another "
        "view, or write to a fork of it (lake.fork)"
    )


class CollectionInUse(Told, UsageError):
    """Others hold the collection. Nothing was written."""

    collection: str
    holders: tuple[str, ...]

    def _said(self) -> str:
        return (
            f"collection {self.collection!r} is held by {', '.join(self.holders)}: close these "
            "readers, drop these holds and views, end published tables (unpublish, publish --end), or "
            "drop with force=True, which ends them"
        )


class NotALake(UsageError):
    """The place holds no lake, or holds something else."""


class ReadOnlyLake(Told, UsageError):
    """The lake is open for reading only. Nothing was written."""

    lake: str
    says = (
        "lake {lake!r} is open for reading only, which writes nothing, also no holds of readers: open it "
        "without read_only, as a user who may write there; snapshot, changes and updates need no hold"
    )


class Closed(UsageError):
    """The lake was closed; open it again."""


class StaysHere(UsageError, TypeError):
    """A handle does not go to another process, by pickle or a copy: open the lake there.

    A `TypeError` as well, which is what pickle raises.
    """
