"""Upserts, deletes and full dumps of DataFrames: the functions for users."""

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from tidelake.data.ingest.events import DELETED
from tidelake.feeds.rows import Late
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.handle import times_of
from tidelake.model.instants import TimeLike
from tidelake.model.time import parts
from tidelake.spark.columns import quoted
from tidelake.spark.envelopes.snapshot import Snapshot
from tidelake.spark.envelopes.upsert import Upsert
from tidelake.spark.writing.append import write
from tidelake.spark.writing.token import TokenWriter
from tidelake.state.write.write import Appended


def upsert(
    collection: Collection,
    frame: DataFrame,
    *,
    order_by: str | None = None,
    delete_column: str | None = None,
    time: TimeLike | None = None,
    late: Late = "refuse",
    token: str | None = None,
    author: str = "",
    message: str = "",
) -> Appended:
    """Replace the rows of a DataFrame's keys with its rows, in one commit; rows of other keys stay.

    A range shuffle brings equal keys together, into as many tasks as run at once. Each task looks up the old
    rows of its keys and stores the differences; only descriptors come to the driver. If there are few events,
    the driver does this work itself. If another writer commits meanwhile, all of it is repeated.

    Args:
        collection: the collection to write to.
        frame: the key and value columns, by name in any order, and those named here. It is evaluated twice,
            since the shuffle takes a sample first, or once if it is small: cache it if that is expensive.
        order_by: a column: of the events of one key and time, the one with the greatest value wins; without
            it such events must be equal. If it is a column of the collection, events older than the stored
            row are late and change nothing.
        delete_column: a boolean column that is true where the key is removed; default: no row removes its
            key, also if its values are all null. If all rows are removals, value columns may be missing.
        time: the time of all events, or (a text) the column with the time of each; a text such as `"now"` is
            a time if there is no such column. Events of one key apply in the order of times. Default: `_time`
            if the frame has it, otherwise the time of the commit.
        late: what to do with events whose time is closed: `"refuse"` is an error, `"advance"` moves them to
            the least open time.
        token: see `tidelake.spark.write`.
        author: see `tidelake.spark.write`.
        message: see `tidelake.spark.write`.

    Returns:
        The times written, and the new upper. Each task costs an `open` and some reads for each part that may
        hold one of its keys, and one `put` for each new part; the driver a few log scans and one log write. A
        job that takes longer than `garbage_age_s` may fail because parts that it reads were collected; then
        nothing was appended.

    Raises:
        InvalidUpdates: columns do not fit (nothing ran), or values do not, or events of one key and time
            differ and have no order (nothing was appended).
        UpdateBeforeLower: a time is closed.
    """
    envelope = Upsert(order_by, delete_column, _at(collection, time), late)
    return write(collection, frame, envelope, token=token, author=author, message=message).appended


def delete(
    collection: Collection,
    keys: Any = None,
    *,
    where: str | None = None,
    time: TimeLike | None = None,
    late: Late = "refuse",
    token: str | None = None,
    author: str = "",
    message: str = "",
) -> Appended:
    """Remove rows, by their keys or by a condition, in one commit. See `Collection.delete`.

    Keys of a DataFrame are looked up by tasks, as by `upsert`; other keys by the driver. So is a condition,
    in bounded memory: for one that many rows match, use `tidelake.spark.sql("DELETE FROM ...")`.

    Args:
        collection: the collection to write to.
        keys: a DataFrame with the key columns, in any order, or keys as for `Collection.lookup`.
        where: a condition, as for `Collection.snapshot`; `"TRUE"` deletes all rows.
        time: as for `upsert`; a column only with a DataFrame.
        late: as for `upsert`.
        token: see `tidelake.spark.write`.
        author: see `tidelake.spark.write`.
        message: see `tidelake.spark.write`.

    Returns:
        As `Collection.delete`. Errors as there, and as for `upsert`.
    """
    if keys is None or where is not None or not hasattr(keys, "sparkSession"):
        if token is None:
            return collection.delete(keys, where=where, time=time, author=author, message=message)
        tokens = TokenWriter(collection, token)
        done = tokens.done()
        if done is not None:
            return done
        numbered = tokens.open()
        return numbered.writer.delete(
            keys, where=where, time=time, sequence=numbered.sequence, author=author, message=message
        )
    columns = [quoted(name) for name in keys.columns]
    events = keys.select(*columns, f.lit(True).alias(DELETED))
    envelope = Upsert(None, DELETED, _at(collection, time), late)
    return write(collection, events, envelope, token=token, author=author, message=message).appended


def replace(
    collection: Collection,
    frame: DataFrame,
    *,
    time: TimeLike | None = None,
    token: str | None = None,
    author: str = "",
    message: str = "",
) -> Appended:
    """Replace the contents with the rows of a DataFrame; only differences are stored.

    The rows are stored, compared with the contents one key range after the other, and deleted again; nothing
    is shuffled. Whole rows and their multiplicities are compared.

    Args:
        collection: the collection to write to.
        frame: the key and value columns, by name in any order; `_diff`, if present, is the multiplicity.
        time: time of the change; default: the time of the commit.
        token: see `tidelake.spark.write`.
        author: see `tidelake.spark.write`.
        message: see `tidelake.spark.write`.

    Returns:
        The times written, and the new upper. Errors as for `upsert`.
    """
    at = None if time is None else parts(times_of(collection).at(time, "time"))[0]
    return write(collection, frame, Snapshot(at), token=token, author=author, message=message).appended


def _at(collection: Collection, time: TimeLike | None) -> str | int | None:
    """The time of all events, in the collection's unit; or the column that has it."""
    if time is None or isinstance(time, str):
        return time
    return parts(times_of(collection).at(time, "time"))[0]
