"""Upserts and full dumps of DataFrames: the helpers for users."""

from pyspark.sql import DataFrame

from tidelake.lake.collection import Collection
from tidelake.model.time import Time
from tidelake.spark.envelopes.snapshot import Snapshot
from tidelake.spark.envelopes.updates import Late
from tidelake.spark.envelopes.upsert import Upsert
from tidelake.spark.writing.append import write
from tidelake.state.append import Appended


def upsert(
    collection: Collection,
    frame: DataFrame,
    *,
    order_by: str | None = None,
    delete_column: str | None = None,
    time: str | int | None = None,
    late: Late = "refuse",
    token: str | None = None,
) -> Appended:
    """Let the rows of a DataFrame be those of their keys, in one commit; rows of other keys stay.

    Equal keys are brought together by a range shuffle, into as many tasks as run at once. Each looks up the
    old rows of its keys and stores what differs; only descriptors come to the driver. Few events come to the
    driver instead, which does the same. If another writer commits meanwhile, all of it is done again.

    Args:
        collection: to write to.
        frame: the key and value columns, by name in any order, and those named here. It is evaluated twice,
            since the shuffle takes a sample first, or once if it is small: cache it if that is expensive.
        order_by: a column: of events of one key and time the one with the greatest value wins; without
            it such events must be equal. If it is a column of the collection, events older than the stored
            row are late and change nothing.
        delete_column: a boolean column, true where the key is removed; default: a row whose value columns
            (but `order_by`) are all null removes.
        time: of all events, or the column that says when each was: those of one key follow each other.
            Default: `_time` if the frame has it, otherwise the time of the commit.
        late: what to do with events whose time is closed: `"refuse"` is an error, `"advance"` lets them
            happen at the least time that is open.
        token: see `tidelake.spark.write`.

    Returns:
        The times written, and the upper after it. Each task costs an `open` and some reads for each part
        that may hold one of its keys, and one `put` a part; the driver a few log scans and one log write. A
        job that takes longer than `garbage_age_s` may fail because what it reads was collected; nothing was
        appended then.

    Raises:
        InvalidUpdates: columns do not fit (nothing ran), or values do not, or events of a key differ and none
            is the last (nothing was appended).
        UpdateNotBeyondLower: a time is closed.
    """
    envelope = Upsert(order_by, delete_column, time, late)
    return write(collection, frame, envelope, token=token).appended


def replace(
    collection: Collection, frame: DataFrame, *, time: Time | None = None, token: str | None = None
) -> Appended:
    """Let the contents be exactly the rows of a DataFrame, of which only what differs is kept.

    The rows are stored, compared with what is there key range by key range, and deleted again; nothing is
    shuffled. Whole rows are compared, with their multiplicity.

    Args:
        collection: to write to.
        frame: the key and value columns, by name in any order; with `_diff`, that often.
        time: of the change; default: the time of the commit.
        token: see `tidelake.spark.write`.

    Returns:
        The times written, and the upper after it. Errors as `upsert`.
    """
    at = None if time is None else int(collection.domain.check(time, "time"))  # type: ignore[arg-type]
    return write(collection, frame, Snapshot(at), token=token).appended
