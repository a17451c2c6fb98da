"""The options of the format: texts in, frozen values out.

Owns their names and which of them go together; must not know lakes. What a time means depends on the
collection, so times stay texts here (`tidelake.spark.source.times`). What is not known is refused: Spark lets
it pass.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tidelake.errors import UsageError
from tidelake.spark.source.texts import count, flag, names_of, seconds

# What rows look like: those of a table; with time and `_diff`; as those of a change feed.
Rows: TypeAlias = Literal["table", "updates", "feed"]

_PLACE = ("path", "collection")
_SHAPE = ("columns", "where", "withDiff", "changeFeed")
_CHANGES = ("changesAfter", "changesThrough")
_UPDATES = ("updatesFrom", "updatesTo")
READ = (*_PLACE, *_SHAPE, "asOf", *_CHANGES, *_UPDATES, "staged", "holdFor", "parallelism", "timeout")
STREAM_READ = (
    *(*_PLACE, *_SHAPE, "startingAt", "maxRowsPerTrigger", "maxTimesPerTrigger"),
    *("holdFor", "parallelism"),
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
    ),
    # Spark hands these on to the sink of a stream,
    *("checkpointLocation", "queryName"),
    # and one may both read a view and insert into it.
    *("holdFor", "parallelism", "timeout", "withDiff"),
)
_KINDS = {"batch reads": READ, "streaming reads": STREAM_READ, "writes": WRITE}

HOLD_FOR_S = 86_400.0


@dataclass(frozen=True)
class Shape:
    """Which rows and columns, and how they look.

    Attributes:
        rows: what they look like.
        columns: key and value columns, in this order; None: all.
        where: SQL that is true of the rows; None: all.
    """

    rows: Rows
    columns: tuple[str, ...] | None = None
    where: str | None = None


@dataclass(frozen=True)
class ReadOptions:
    """A batch read; times as they were written.

    Attributes:
        shape: of its rows.
        as_of: of a snapshot; None: the last closed time.
        after, through: of netted changes; `after` is None for other reads.
        lower, upper: of updates; `lower` is None for other reads.
        hold_for_s: how long what is read is held; None: not at all.
        parallelism: tasks at most; None: by size.
        timeout_s: how long to wait for a time to be closed; None: the setting of the lake.
        staged: with what is staged for open times; it waits for nothing then.
    """

    shape: Shape
    as_of: str | None
    after: str | None
    through: str | None
    lower: str | None
    upper: str | None
    hold_for_s: float | None
    parallelism: int | None
    timeout_s: float | None
    staged: bool = False


@dataclass(frozen=True)
class StreamReadOptions:
    """A streaming read.

    Attributes:
        shape: of its rows.
        starting_at: `snapshot`, `latest`, or a time as it was written; None: not given.
        rows_max: of a micro-batch, as near as whole times come; None: no limit.
        times_max: of a micro-batch; None: no limit.
        hold_for_s, parallelism: as of a batch read.
    """

    shape: Shape
    starting_at: str | None
    rows_max: int | None
    times_max: int | None
    hold_for_s: float | None
    parallelism: int | None


@dataclass(frozen=True)
class WriteOptions:
    """A write, batch or streaming; what an envelope makes of its own options is the envelope's.

    Attributes:
        envelope: what the rows mean.
        time: the column, or the time, of rows without `_time`.
        delete_column: true of rows that take their key away.
        order_by: the column that orders rows of one key.
        writer: the named writer that remembers what is in.
        take_over: whether the writer may belong to another query.
        token: of a batch write, so that it may be repeated.
        late: what becomes of rows whose time is closed.
        rejects: a folder for rows that cannot be read.
        encodings: of columns in change events.
        checkpoint: of a stream, if it was given as an option and not by a setting of Spark.
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
    checkpoint: str | None


def shape(options: Mapping[str, str]) -> Shape:
    """What rows look like, of a batch read or stream, or of a view to insert into: Spark does not say.

    Raises:
        UsageError: an option is unknown, has a bad value, or does not fit another one.
    """
    return _shape(_known(options, "anything", tuple({*READ, *STREAM_READ, *WRITE})))


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """The options of a batch read.

    Raises:
        UsageError: one is unknown, has a bad value, or does not fit another one; says what to write.
    """
    given = _known(options, "batch reads", READ)
    kinds = [name for name in ("asOf", *_CHANGES, *_UPDATES) if name in given]
    if not (set(kinds) <= {"asOf"} or set(kinds) <= set(_CHANGES) or set(kinds) <= set(_UPDATES)):
        raise UsageError(
            f"options {' and '.join(kinds)} ask for several reads at once: give asOf for a snapshot, "
            "changesAfter and changesThrough for the netted difference of two, or updatesFrom and updatesTo "
            "for every update"
        )
    for start, end in (_CHANGES, _UPDATES):
        if end in given and start not in given:
            raise UsageError(f"option {end} says where changes end: give {start}, where they begin, as well")
    asked = _shape(given)
    if asked.rows == "feed" and set(kinds) <= {"asOf"}:
        raise UsageError(
            "option changeFeed asks for changes, and this is a snapshot: give updatesFrom (every update) or "
            "changesAfter (netted) as well"
        )
    return ReadOptions(
        asked,
        as_of=given.get("asOf"),
        after=given.get("changesAfter"),
        through=given.get("changesThrough"),
        lower=given.get("updatesFrom"),
        upper=given.get("updatesTo"),
        hold_for_s=_hold_for_s(given),
        parallelism=count(given, "parallelism"),
        timeout_s=seconds(given, "timeout"),
        staged=flag(given, "staged") or False,
    )


def stream_read_options(options: Mapping[str, str]) -> StreamReadOptions:
    """The options of a streaming read. Errors as `read_options`."""
    given = _known(options, "streaming reads", STREAM_READ)
    return StreamReadOptions(
        _shape(given),
        starting_at=given.get("startingAt"),
        rows_max=count(given, "maxRowsPerTrigger"),
        times_max=count(given, "maxTimesPerTrigger"),
        hold_for_s=_hold_for_s(given),
        parallelism=count(given, "parallelism"),
    )


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """The options of a write. Errors as `read_options`."""
    given = _known(options, "writes", WRITE)
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
        checkpoint=given.get("checkpointLocation"),
    )


def _known(options: Mapping[str, str], what: str, names: tuple[str, ...]) -> dict[str, str]:
    """The options by their names as they are documented: Spark does not care about case, and gives none."""
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
    others = [kind for kind, known in _KINDS.items() if key.lower() in {name.lower() for name in known}]
    if others:
        return UsageError(f"option {key!r} is one of {' and '.join(others)}, not of {what}: leave it out")
    spelled = {name.lower(): name for name in names}
    near = difflib.get_close_matches(key.lower(), spelled, 1, 0.6)
    hint = f"did you mean {spelled[near[0]]}?" if near else f"there are {', '.join(sorted(set(names)))}"
    return UsageError(f"unknown option {key!r}: {hint}")


def _shape(given: Mapping[str, str]) -> Shape:
    feed, with_diff = flag(given, "changeFeed") or False, flag(given, "withDiff")
    changes = next((name for name in ("changesAfter", "updatesFrom") if name in given), None)
    if feed and with_diff:
        raise UsageError(
            "options changeFeed and withDiff are two ways to say what a change is: leave one of them out"
        )
    if changes and with_diff is False and not feed:
        raise UsageError(
            f"option {changes} gives rows that come and rows that go, which only _diff tells apart: leave "
            "withDiff=false out, or give changeFeed=true"
        )
    rows: Rows = "feed" if feed else "updates" if with_diff or changes else "table"
    return Shape(rows, names_of(given, "columns"), given.get("where"))


def _hold_for_s(given: Mapping[str, str]) -> float | None:
    if given.get("holdFor", "").strip().lower() == "none":
        return None
    found = seconds(given, "holdFor")
    if found == 0:
        raise UsageError("option holdFor=0 would hold nothing for long: write none to hold nothing")
    return HOLD_FOR_S if found is None else found
