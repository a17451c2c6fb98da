"""Errors of what lies below: stores, bytes, threads, and Tidelake itself."""

from tidelake.errors.base import TidelakeError, Told


class StoreUnavailable(Told, TidelakeError):
    """The store refused or could not be reached; the operation certainly did not happen.

    `retryable` is false where trying again soon cannot help: a full disk, a missing permission.
    """

    message: str
    retryable: bool = True
    says = "{message}"


class OutOfThreads(Told, TidelakeError):
    """The system starts no further thread for this process, and the work cannot be done by the caller."""

    name: str
    says = (
        "the system starts no further thread for {name}: let this process do less at a time, or raise its "
        "limits of processes (ulimit -u) and of memory"
    )


class OutcomeUnknown(TidelakeError):
    """The store did not answer; the operation may or may not have happened."""


class BlobNotFound(Told, TidelakeError):
    """No object of that name in the store."""

    name: str
    says = "no object {name!r} in the store"


class BlobExists(Told, TidelakeError):
    """An object of that name is already in the store; it was left as it is."""

    name: str
    says = "object {name!r} already exists"


class CorruptionError(Told, TidelakeError):
    """Stored bytes are not what was written."""

    name: str
    reason: str
    says = "object {name!r} is damaged: {reason}; restore it from a copy"


class SymbolicLink(CorruptionError):
    """A symbolic link stands inside a lake, where it leads out of it. Nothing was touched."""

    says = "{name!r}: {reason}"


class UnknownFormat(TidelakeError):
    """Written by another version of Tidelake, in a format that this one does not read."""

    name: str


class FormatTooNew(Told, UnknownFormat):
    """Written by a newer version of Tidelake."""

    name: str
    found: int
    known: int
    says = "{name!r} has format {found} and this Tidelake reads up to {known}: upgrade Tidelake"


class FormatTooOld(Told, UnknownFormat):
    """Written by an unreleased version of Tidelake, whose formats are read no more."""

    name: str
    says = (
        "{name!r} is of an unreleased version of Tidelake, which this one does not read: write the "
        "collections of its lake to files with that version (`tidelake snapshot LAKE NAME --out FILE`), and "
        "append them to a new lake"
    )


class InternalError(TidelakeError):
    """An invariant of Tidelake does not hold: a bug. Nothing was committed."""
