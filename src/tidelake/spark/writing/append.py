"""Writing a DataFrame to a collection, all or nothing: the functions for users.

Owns the arguments of a batch write, and the token that identifies a repeated job. The envelope owns the
meaning of rows; `tidelake.spark.writing.commit` commits them.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame

from tidelake.errors import UsageError
from tidelake.feeds.commit import Numbered
from tidelake.feeds.reports import WriteReport
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.handle import times_of
from tidelake.lake.api.writer import Writer
from tidelake.lake.arguments.times import FrontierLike
from tidelake.lake.arguments.tokens import noted
from tidelake.model.instants import TimeLike
from tidelake.model.time import parts
from tidelake.spark.columns import quoted
from tidelake.spark.envelopes.envelope import Envelope
from tidelake.spark.envelopes.named import DEFAULT, EnvelopeLike, named
from tidelake.spark.envelopes.updates import Updates
from tidelake.spark.writing import commit
from tidelake.spark.writing.token import TokenWriter
from tidelake.state.write.write import Appended


def append(
    collection: Collection,
    frame: DataFrame,
    *,
    lower: FrontierLike | None = None,
    upper: FrontierLike | None = None,
    time: TimeLike | None = None,
    ranges: int | None = None,
    token: str | None = None,
    author: str = "",
    message: str = "",
) -> Appended:
    """Append a DataFrame of updates in one commit.

    Args:
        collection: the collection to append to.
        frame: the key and value columns, by name in any order, types as `tidelake.spark.columns` maps
            them. Without `_time` all rows get one time, the collection's upper (for clock times: now, if
            that is later); without `_diff` all are `+1`. Columns that a change of the schema added may
            be missing, and are null. It is evaluated once, and once more if it was larger than estimated.
        lower: append iff the collection's upper equals it; default: whatever the upper is.
        upper: close all times before it; default: just past the last time. Tuple times need both.
        time: the time of all rows, or (a text) the column with the time of each; see `upsert`.
        ranges: first sort the rows into so many key ranges (a shuffle), so that the parts do not
            overlap and later reads merge fewer runs; pays off from about ten million rows on.
        token: see `write`.
        author: see `write`.
        message: see `write`.

    Returns:
        The times written, and the new upper.

    Raises:
        InvalidUpdates: columns do not fit (nothing ran), or values do not (nothing was appended).
        UpdateBeforeLower, UpdateNotBeforeUpper: a time lies outside the interval.
        UpperMismatch: the collection's upper is not `lower`.
    """
    domain = collection.domain
    start = None if lower is None else times_of(collection).bound(lower, "lower")
    end = None if upper is None else times_of(collection).bound(upper, "upper")
    timed = time is not None or any(name in frame.columns for name in domain.columns)
    if not timed and (start is not None or end is not None):
        raise UsageError(f"lower and upper need times: add {', '.join(domain.columns)}, or leave them out")
    return write(
        collection,
        frame,
        Updates(**at_time(collection, {"time": time})),
        lower=start,
        upper=end,
        ranges=ranges,
        token=token,
        author=author,
        message=message,
    ).appended


def at_time(collection: Collection, options: Mapping[str, object]) -> dict[str, Any]:
    """The options of an envelope, with an instant that is given as `time` in the collection's unit.

    A text stays as it is: it may name a column.
    """
    time: Any = options.get("time")
    if time is None or isinstance(time, str):
        return dict(options)
    return {**options, "time": parts(times_of(collection).at(time, "time"))[0]}


def write(
    collection: Collection,
    frame: DataFrame,
    envelope: EnvelopeLike = DEFAULT,
    *,
    lower: FrontierLike | None = None,
    upper: FrontierLike | None = None,
    ranges: int | None = None,
    token: str | None = None,
    author: str = "",
    message: str = "",
    **options: object,
) -> WriteReport:
    """Write a DataFrame whose rows mean what the envelope says, in one commit.

    Args:
        collection: the collection to write to.
        frame: evaluated once, and once more if it was larger than estimated; again only if it is not small,
            another writer commits meanwhile, and the write depends on the contents.
        envelope: `"updates"` (rows to add or, by `_diff`, to remove), `"upsert"` (the new rows of their
            keys), `"snapshot"` (the new contents), `"debezium"`, `"maxwell"`, `"canal"`, `"dms"` (change
            events of these tools), `"delta"`, `"paimon"`, `"hudi"` (changelogs of such tables), or an
            envelope object.
        lower: write iff the collection's upper equals it; default: whatever the upper is.
        upper: close all times before it; default: just past the last time. Without rows, the time of the
            commit is closed too: by updates always, by other envelopes if none is closed yet. Rows with times
            of their own have none to close then. Tuple times need both.
        ranges: first sort the rows into so many key ranges; see `append`.
        token: a text that identifies this write, such as `"orders 2026-01-31"`. A write whose token is
            committed already succeeds without writing, whatever its rows are, so that a job that is run
            again writes once. A record of the token stays in the collection's state (about 100 bytes).
        author: who makes the commit, as for `Collection.append`; default: the id of the application.
        message: what the commit is for.
        **options: options of the named envelope, such as `time="ts"`.

    Returns:
        The times written and the new upper (`appended`), and counts of what was done.

    Raises:
        InvalidUpdates: columns do not fit (nothing ran), or values do not (nothing was appended).
        UpdateBeforeLower, UpdateNotBeforeUpper: a time lies outside the interval.
        UpperMismatch: the collection's upper is not `lower`.
        WriterFenced: another process that began later is writing under the same token.
    """
    made: Envelope = named(envelope, at_time(collection, options))
    start = None if lower is None else times_of(collection).bound(lower, "lower")
    end = None if upper is None else times_of(collection).bound(upper, "upper")
    total_order = collection.domain.total_order
    if isinstance(made, Updates) and not total_order and start is not None and end is not None:
        made = replace(made, interval=(start, end))
    _check_ranges(ranges)
    numbered: Numbered[Writer] | None = None
    if token is not None:
        tokens = TokenWriter(collection, token)
        done = tokens.done()
        if done is not None:
            return WriteReport(done)
        numbered = tokens.open()
    if ranges is not None:
        # The key may have another name since the handle has looked.
        collection.state()
        frame = frame.repartitionByRange(ranges, *map(quoted, collection.key))
    title = f"tidelake: write to {collection.name}"
    with noted(author, message):
        return commit.write(
            collection,
            frame,
            made,
            lower=start,
            upper=end,
            numbered=numbered,
            title=title,
            by_tasks=ranges is not None,
        )


def _check_ranges(ranges: object) -> None:
    if ranges is not None and (not isinstance(ranges, int) or ranges < 1):
        raise UsageError(f"ranges={ranges!r} must be a number of key ranges, 1 or more")
