"""The options of the format: texts in, frozen values out.

Owns their names and which of them can be combined; must not know lakes. The meaning of a time depends on the
collection, so times stay texts here (`tidelake.spark.source.times`). Unknown options are refused, since Spark
does not check them.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast, get_args

from tidelake.errors import UsageError
from tidelake.model.selection import TimesAs
from tidelake.spark.source import othernames
from tidelake.spark.source.texts import count, flag, names_of, seconds

# The form of rows: those of a table; updates with time and `_diff`; those of a change feed.
Rows: TypeAlias = Literal["table", "updates", "feed"]

_PLACE = ("path", "collection", "storeOptions")
_SHAPE = ("columns", "where", "withDiff", "changeFeed", "times")
_CHANGES = ("after", "through")
_UPDATES = ("lower", "upper")
READ = (
    *(*_PLACE, *_SHAPE, "asOf", *_CHANGES, *_UPDATES, "staged", "holdFor", "parallelism", "timeout"),
    *othernames.BATCH,
)
STREAM_READ = (
    *(*_PLACE, *_SHAPE, "startingAt", "maxRowsPerTrigger", "maxTimesPerTrigger"),
    *("holdFor", "parallelism"),
    *othernames.STREAM,
)
WRITE = (
    *(
        *_PLACE,
        "envelope",
        "time",
        "deleteColumn",
        "orderBy",
        "writer",
        "takeOver",
        "token",
        "late",
        "rejects",
        "encodings",
        "oldRows",
        "table",
        "missing",
        "key",
        "timeUnit",
        "author",
        "message",
    ),
    # Spark passes these on to the sink of a stream.
    *("checkpointLocation", "queryName"),
    # Options of reads: a view can be read and inserted into.
    *("holdFor", "parallelism", "timeout", "withDiff"),
)
_KINDS = {"batch reads": READ, "streaming reads": STREAM_READ, "writes": WRITE}

MEANINGS = {
    ("`asOf`"): (
        "contents at a time: a number or, for clocks, a timestamp with its zone (`2026-01-31 "
        "12:00:00Z`), `now`, `today`, `yesterday`, or a time back such as `-1d`. Default: the last "
        "closed time"
    ),
    ("`after`, `through`"): (
        "the netted difference between two times; the second is the last closed one by default"
    ),
    ("`lower`, `upper`"): (
        "every update at its own time, from a frontier up to another (default: the upper)"
    ),
    ("`withDiff`"): ("with the times and `_diff`; changes and updates always have them"),
    ("`times`"): ("`timestamp`: `_time` is a timestamp; for clocks. Default: `int64`"),
    ("`staged`"): ("with the updates that are staged at open times; does not wait"),
    ("`changeFeed`"): ("changes with `_change_type`, `_commit_version`, `_commit_timestamp` instead"),
    ("`versionAsOf`, `timestampAsOf`"): ("as Delta Lake calls `asOf`"),
    ("`readChangeFeed`, `startingVersion` or `startingTimestamp`, `endingVersion` or `endingTimestamp`"): (
        "as Delta Lake calls `changeFeed`, `lower`, and the last time that is read"
    ),
    ("`columns`, `where`"): (
        "names, separated by commas; a [condition](guide.md#some-rows-and-columns). What cannot "
        "match is not read"
    ),
    ("`holdFor`"): ("how long the DataFrame can be used: `24h` (default), `30m`, seconds; `none`"),
    ("`parallelism`, `timeout`"): (
        "tasks at most (default: by size); how long to wait for a time that is open (default: not at all)"
    ),
}
"""What the options of batch reads mean, for the site."""

# What Spark's catalog adds to the options of a table.
_OF_TABLES = ("owner", "provider", "location")

HOLD_FOR_S = 86_400.0


@dataclass(frozen=True)
class RowShape:
    """Which rows and columns are read, and in which form.

    Attributes:
        rows: the form of the rows.
        columns: key and value columns, in this order; None: all.
        where: an SQL condition on the rows; None: all.
        times: the type of `_time`, in updates.
    """

    rows: Rows
    columns: tuple[str, ...] | None = None
    where: str | None = None
    times: TimesAs = "int64"


@dataclass(frozen=True)
class FormatReadOptions:
    """A batch read; times are still texts.

    Attributes:
        shape: the rows and columns.
        as_of: time of a snapshot; None: the last closed time.
        after, through: times of net changes; `after` is None for other reads.
        lower, upper: bounds of updates; `lower` is None for other reads.
        hold_for_s: how long the parts are held; None: not at all.
        parallelism: the most tasks; None: by size.
        timeout_s: how long to wait for a time to be closed; None: the default setting.
        staged: include updates that are staged at open times; then it does not wait.
        last: instead of `upper`: the last time of the updates.
    """

    shape: RowShape
    as_of: str | None
    after: str | None
    through: str | None
    lower: str | None
    upper: str | None
    hold_for_s: float | None
    parallelism: int | None
    timeout_s: float | None
    staged: bool = False
    last: str | None = None

    @property
    def ends(self) -> bool:
        """Whether the options say where it ends: otherwise it does at the last closed time."""
        return any(one is not None for one in (self.as_of, self.through, self.upper, self.last))


@dataclass(frozen=True)
class StreamReadOptions:
    """A streaming read.

    Attributes:
        shape: the rows and columns.
        starting_at: `snapshot`, `latest`, or the text of a time; None: not given.
        rows_max: the most rows of a micro-batch, as near as whole times allow; None: no limit.
        times_max: the most times of a micro-batch; None: no limit.
        hold_for_s, parallelism: as for a batch read.
    """

    shape: RowShape
    starting_at: str | None
    rows_max: int | None
    times_max: int | None
    hold_for_s: float | None
    parallelism: int | None


@dataclass(frozen=True)
class WriteOptions:
    """A write, batch or streaming. Envelopes check their own options.

    Attributes:
        envelope: what the rows mean.
        time: the column with the times, or the time, of rows without `_time`.
        delete_column: a column that is true for rows that remove their key.
        order_by: the column that orders rows of one key.
        writer: the named writer that records what is committed.
        take_over: whether the writer may belong to another query.
        token: identifies a batch write, so that it can be repeated.
        late: what to do with rows whose time is closed.
        rejects: a folder for rows that cannot be read.
        encodings: encodings of columns in change events.
        old_rows: where old rows are: `events` or `stored`.
        table: the table whose messages are read.
        missing: what a column is that a message leaves out.
        checkpoint: checkpoint of a stream, if it was given as an option and not by a setting of Spark.
        key: key columns of the collection, which is made if it is not there; None: it must be there.
        time_unit: what times of a collection that is made count.
        author: who makes the commits; empty: the application.
        message: what they are for.
    """

    envelope: str | None
    time: str | None
    delete_column: str | None
    order_by: str | None
    writer: str | None
    take_over: bool
    token: str | None
    late: str | None
    rejects: str | None
    encodings: str | None
    old_rows: str | None
    table: str | None
    missing: str | None
    checkpoint: str | None
    key: tuple[str, ...] | None = None
    time_unit: str | None = None
    author: str = ""
    message: str = ""


def shape(options: Mapping[str, str]) -> RowShape:
    """The rows and columns of a read, a stream, or a view to insert into: Spark does not say which it is."""
    known = _known(options, "anything", tuple({*READ, *STREAM_READ, *WRITE}))
    return _shape(othernames.renamed(known, is_batch=False))


def read_options(options: Mapping[str, str]) -> FormatReadOptions:
    """The options of a batch read."""
    given = othernames.renamed(_known(options, "batch reads", READ), is_batch=True)
    kinds = [name for name in ("asOf", *_CHANGES, *_UPDATES) if name in given]
    if not (set(kinds) <= {"asOf"} or set(kinds) <= set(_CHANGES) or set(kinds) <= set(_UPDATES)):
        raise UsageError(
            f"options {' and '.join(kinds)} ask for several reads at once: give asOf for a snapshot, "
            "after and through for the netted difference of two, or lower and upper "
            "for every update"
        )
    if othernames.LAST in given and "upper" in given:
        raise UsageError("options upper and endingVersion both say where changes end: give one of them")
    for start, end in (_CHANGES, _UPDATES, ("lower", othernames.LAST)):
        if end in given and start not in given:
            raise UsageError(f"option {end} says where changes end: give {start}, where they begin, as well")
    asked = _shape(given)
    if asked.rows == "feed" and set(kinds) <= {"asOf"}:
        raise UsageError(
            "option changeFeed asks for changes, and this is a snapshot: give lower (every update) or "
            "after (netted) as well"
        )
    return FormatReadOptions(
        asked,
        as_of=given.get("asOf"),
        after=given.get("after"),
        through=given.get("through"),
        lower=given.get("lower"),
        upper=given.get("upper"),
        hold_for_s=_hold_for_s(given),
        parallelism=count(given, "parallelism"),
        timeout_s=seconds(given, "timeout"),
        staged=flag(given, "staged") or False,
        last=given.get(othernames.LAST),
    )


def stream_read_options(options: Mapping[str, str]) -> StreamReadOptions:
    """The options of a streaming read. Errors as for `read_options`."""
    given = othernames.renamed(_known(options, "streaming reads", STREAM_READ), is_batch=False)
    return StreamReadOptions(
        _shape(given),
        starting_at=given.get("startingAt"),
        rows_max=count(given, "maxRowsPerTrigger"),
        times_max=count(given, "maxTimesPerTrigger"),
        hold_for_s=_hold_for_s(given),
        parallelism=count(given, "parallelism"),
    )


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """The options of a write. Errors as for `read_options`."""
    given = _known(options, "writes", WRITE)
    if "timeUnit" in given and "key" not in given:
        raise UsageError(
            "option timeUnit is of a collection that is made: give its key columns as key=id, say"
        )
    return WriteOptions(
        envelope=given.get("envelope"),
        time=given.get("time"),
        delete_column=given.get("deleteColumn"),
        order_by=given.get("orderBy"),
        writer=given.get("writer"),
        take_over=flag(given, "takeOver") or False,
        token=given.get("token"),
        late=given.get("late"),
        rejects=given.get("rejects"),
        encodings=given.get("encodings"),
        old_rows=given.get("oldRows"),
        table=given.get("table"),
        missing=given.get("missing"),
        checkpoint=given.get("checkpointLocation"),
        key=names_of(given, "key"),
        time_unit=given.get("timeUnit"),
        author=given.get("author", ""),
        message=given.get("message", ""),
    )


def _known(options: Mapping[str, str], what: str, names: tuple[str, ...]) -> dict[str, str]:
    """The options by their documented names: Spark ignores the case of names."""
    spelled = {name.lower(): name for name in names}
    found: dict[str, str] = {}
    for key, text in options.items():
        name = spelled.get(key.lower())
        if name is None:
            raise _unknown(key, what, names)
        found[name] = text
    return found


def _unknown(key: str, what: str, names: tuple[str, ...]) -> UsageError:
    if key.lower() == "paths":
        return UsageError(
            "several paths: a DataFrame reads one collection; load each, and join or union them"
        )
    if key.lower() in _OF_TABLES:
        return UsageError(
            "a table of Spark's catalog (CREATE TABLE ... USING tidelake) does not keep its path and "
            "options: write CREATE TEMPORARY VIEW ... USING tidelake OPTIONS (path '<lake>/<collection>'), "
            "or use tidelake.spark.sql"
        )
    others = [kind for kind, known in _KINDS.items() if key.lower() in {name.lower() for name in known}]
    if others:
        return UsageError(f"option {key!r} is one of {' and '.join(others)}, not of {what}: leave it out")
    spelled = {name.lower(): name for name in names}
    near = difflib.get_close_matches(key.lower(), spelled, 1, 0.6)
    hint = f"did you mean {spelled[near[0]]}?" if near else f"there are {', '.join(sorted(set(names)))}"
    return UsageError(f"unknown option {key!r}: {hint}")


def _shape(given: Mapping[str, str]) -> RowShape:
    feed, with_diff = flag(given, "changeFeed") or False, flag(given, "withDiff")
    changes = next((name for name in ("after", "lower") if name in given), None)
    if feed and with_diff:
        raise UsageError(
            "options changeFeed and withDiff are two ways to say what a change is: leave one of them out"
        )
    if changes and with_diff is False and not feed:
        raise UsageError(
            f"option {changes} gives added and removed rows, which only _diff tells apart: leave "
            "withDiff=false out, or give changeFeed=true"
        )
    rows: Rows = "feed" if feed else "updates" if with_diff or changes else "table"
    return RowShape(rows, names_of(given, "columns"), given.get("where"), _times(given, rows))


def _times(given: Mapping[str, str], rows: Rows) -> TimesAs:
    text = given.get("times")
    if text is None:
        return "int64"
    if rows != "updates":
        there = "_commit_timestamp is one already" if rows == "feed" else "withDiff=true shows it"
        raise UsageError(f"option times: these rows have no column _time: leave it out; {there}")
    for known in get_args(TimesAs):
        if text.strip().lower() == known:
            return cast(TimesAs, known)
    raise UsageError(f"option times={text!r} is neither int64 nor timestamp")


def _hold_for_s(given: Mapping[str, str]) -> float | None:
    if given.get("holdFor", "").strip().lower() == "none":
        return None
    found = seconds(given, "holdFor")
    if found == 0:
        raise UsageError("option holdFor=0 would hold nothing for long: write none to hold nothing")
    return HOLD_FOR_S if found is None else found
