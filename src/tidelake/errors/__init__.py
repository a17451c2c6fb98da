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
    ├── ViewsFailed                   several views were not refreshed: do what the error of each says
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

from tidelake.errors.base import *  # noqa: F403
from tidelake.errors.calls import *  # noqa: F403
from tidelake.errors.conflicts import *  # noqa: F403
from tidelake.errors.stored import *  # noqa: F403
