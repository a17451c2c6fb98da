"""The answers of the page's server, as JSON: what a lake has, and rows of a collection page by page.

Owns arguments of requests and what becomes of errors. Each answer costs a bounded number of store calls,
however large the lake is: names come by the hundred, sizes for names that are asked for, rows by the page.
"""

import json
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from itertools import chain

import anyio
from anyio import to_thread
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from tidelake import errors
from tidelake.exporters import prometheus
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.handle import shard_of, times_of
from tidelake.lake.api.lake import Lake
from tidelake.lake.api.naming import names_of
from tidelake.lake.arguments.keys import parsed_key
from tidelake.lake.arguments.times import whole_of
from tidelake.lake.catalog.catalog import Names
from tidelake.model.instants import TimeLike
from tidelake.model.query import AsOf, Changes, Query
from tidelake.model.selection import ReadOptions, TimesAs
from tidelake.model.time import Time
from tidelake.shard.reading.pages import FIRST, PageStart, page
from tidelake.tabletext import printable
from tidelake.timetext import is_clock
from tidelake.views.definition import Definition
from tidelake.web import describe, download, graph
from tidelake.web.describe import Json

NAMES_MAX = 200
ROWS_MAX = 500
COMMITS_MAX = 500
SUMMARIES_MAX = 50
STREAMS_MAX = 64
_MEASURED_MAX = 1_000
_PAUSE_S, _HEARTBEAT = 1.0, 15

_STATUS: tuple[tuple[type[errors.TidelakeError], int], ...] = (
    (errors.CollectionNotFound, 404),
    (errors.ReadOnlyLake, 403),
    (errors.UsageError, 400),
    (errors.HistoryCompacted, 409),
    (errors.NotYetClosed, 409),
    (errors.StoreUnavailable, 503),
    (errors.OutcomeUnknown, 503),
)

Arguments = Mapping[str, str]


class Api:
    """The answers on one lake. Thread-safe.

    Args:
        lake: opened for reading only, unless changes are wanted.
        version: of Tidelake.
    """

    def __init__(self, lake: Lake, version: str) -> None:
        self._lake, self._version = lake, version
        self._collections: dict[str, Collection] = {}
        self._listed: Names | None = None

    def _listing(self) -> Names:
        """All names. They are kept, so that a look costs little however many there are."""
        self._listed = listed = names_of(self._lake, self._listed)
        return listed

    def _names(self) -> tuple[str, ...]:
        return self._listing().names

    def _by_id(self) -> dict[str, str]:
        """The name of each collection, by its id."""
        listed = self._listing()
        return dict(zip(listed.shards, listed.names, strict=True))

    def lake(self, _given: Arguments) -> Json:
        """Where the lake is, and how many collections it has. One log scan."""
        counts = {"collections": len(self._names())}
        return describe.lake(self._lake.url, self._version, counts, read_only=self._lake.read_only)

    def names(self, given: Arguments) -> Json:
        """Names of collections in their order, after one of them, that contain a text. One log scan."""
        find, after = given.get("find", "").casefold(), given.get("after")
        listed = self._names()
        found = [name for name in listed if find in name.casefold()] if find else listed
        left = found if after is None else found[bisect_right(found, after) :]
        known = self._by_id()
        rows = [{"name": name, "shown": describe.shown(name, known)} for name in left[:NAMES_MAX]]
        return {"names": rows, "found": len(found), "more": len(left) > NAMES_MAX}

    def summaries(self, given: Arguments) -> Json:
        """Sizes and frontiers of some collections: a JSON list of names. Two log scans each."""
        try:
            names = json.loads(given.get("names", ""))
        except (ValueError, RecursionError):
            names = None
        if (
            not isinstance(names, list)
            or len(names) > SUMMARIES_MAX
            or not all(isinstance(n, str) for n in names)
        ):
            raise errors.UsageError(f"names must be a JSON list of at most {SUMMARIES_MAX} names")
        found: dict[str, Json] = {}
        for name in names:
            try:
                found[name] = describe.summary(self._opened(name))
            except errors.TidelakeError as error:
                # Damaged or dropped: the others are still shown.
                found[name] = {"error": str(error)}
        return {"summaries": found}

    def collection(self, given: Arguments) -> Json:
        """All on a collection but its rows. A few log scans."""
        of, known = self._of(given), self._by_id()
        found = describe.collection(of, known)
        state = shard_of(of).version().state
        try:
            definition = Definition.of(of.name, state)
        except errors.RebuildNeeded as error:
            return found | {"view": {"error": str(error), "sql": "", "inputs": []}}
        if definition is None:
            return found | {"view": None}
        return found | {"view": graph.made_of(definition, state, of.domain, self._opened, known)}

    def views(self, _given: Arguments) -> Json:
        """The views among the first 1,000 collections, with their inputs and lags. One log scan each."""
        names = self._names()
        found = graph.graph(names[:_MEASURED_MAX], self._opened, self._by_id())
        return found | {"more": len(names) > _MEASURED_MAX}

    def download(self, given: Arguments) -> tuple[str, download.Format, Iterator[bytes]]:
        """A file of all rows as of a time, or of what changed: its name, its format, and its bytes."""
        of, where = self._of(given), given.get("where") or None
        format_ = download.format_of(given.get("format", "csv"))
        times: TimesAs = "timestamp" if is_clock(of.domain.unit) else "int64"
        after, through = _time(given, "after", of), _time(given, "through", of)
        if (after is None) != (through is None):
            raise errors.UsageError("changes need two times: after and through")
        if after is None or through is None:
            rows = of.snapshot(_time(given, "as_of", of), where=where, times=times)
        else:
            rows = of.changes(after, through, where=where, times=times)
        return of.name, format_, download.pieces(rows, format_)

    def rows(self, given: Arguments) -> Json:
        """A page of the contents as of a time."""
        of = self._of(given)
        at = _time(given, "as_of", of)
        return self._page(of, AsOf(of.last_time() if at is None else at), given)

    def changes(self, given: Arguments) -> Json:
        """A page of what changed after a time, through another one."""
        of = self._of(given)
        after, through = _time(given, "after", of), _time(given, "through", of)
        if after is None or through is None:
            raise errors.UsageError("changes need two times: after and through")
        return self._page(of, Changes(after, through), given)

    def history(self, given: Arguments) -> Json:
        """The updates of one key, given as a JSON list of texts, in the order of time. Costs as a look-up."""
        of = self._of(given)
        try:
            words = json.loads(given.get("key", ""))
        except (ValueError, RecursionError):
            words = None
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise errors.UsageError("key must be a JSON list with a text for each key column")
        found = of.history(parsed_key(words, of.key, of.schema, "key"), times="int64")
        shown = describe.table(found.slice(0, ROWS_MAX), of.domain)
        return shown | {"more": found.num_rows > len(shown["rows"])}

    def log(self, given: Arguments) -> Json:
        """The newest commits. A log scan, and one more for every 256 entries that are looked at."""
        of = self._of(given)
        limit = _number(given, "limit", 50, COMMITS_MAX)
        return {"commits": describe.commits(of.commits(limit, every=given.get("every") == "1"), of.domain)}

    def maintain(self, given: Arguments) -> Json:
        """Maintain a collection thoroughly: the one change that the page can ask for."""
        if self._lake.read_only:
            raise errors.ReadOnlyLake(self._lake.url)
        report = self._of(given).maintain()
        return {"merges": report.merges, "rows_read": report.rows_read, "rows_written": report.rows_written}

    def metrics(self) -> bytes:
        """Everything in the recorder, after the first 1,000 collections were measured. One log scan each."""
        self._lake.measure(self._names()[:_MEASURED_MAX])
        return prometheus.text(self._lake.recorder)

    async def events(self, name: str) -> AsyncIterator[str]:
        """What is new, as server-sent events: a collection's seqno, or how many names the lake has."""
        told, silent = None, 0
        while True:
            now = await to_thread.run_sync(self._news, name)
            silent += 1
            if now != told:
                told, silent = now, 0
                yield f"data: {json.dumps(now)}\n\n"
            elif silent >= _HEARTBEAT:
                silent = 0
                yield ": still here\n\n"
            await anyio.sleep(_PAUSE_S)

    def _news(self, name: str) -> Json:
        try:
            if not name:
                return {"collections": len(self._names())}
            of = self._opened(name)
            state = of.state()
            upper = of.upper if state.group else state.upper
            return {"seqno": state.seqno, "upper": describe.frontier(upper, of.domain)}
        except errors.TidelakeError as error:
            return {"error": str(error)}

    def _page(self, of: Collection, asked: Query, given: Arguments) -> Json:
        where = given.get("where") or None
        start = PageStart.parsed(given["from"]) if given.get("from") else FIRST
        limit = _number(given, "limit", 100, ROWS_MAX)
        found = page(shard_of(of), asked, ReadOptions(where=where), start=start, limit=limit)
        shown = describe.table(found.rows, of.domain, of.key if isinstance(asked, Changes) else ())
        count = len(shown["rows"])
        next_, whole = found.next, found.whole
        if count < found.rows.num_rows:
            next_, whole = found.behind(count), True
        at = asked.time if isinstance(asked, AsOf) else None
        return shown | {
            "key": [printable(name) for name in of.key],
            "next": None if next_ is None else str(next_),
            "whole": whole,
            "as_of": None if at is None else describe.time(at, of.domain),
        }

    def _of(self, given: Arguments) -> Collection:
        if "name" not in given:
            raise errors.UsageError("say which collection: name=...")
        return self._opened(given["name"])

    def _opened(self, name: str) -> Collection:
        """The collection of a name; a handle is kept, so that only what is new is read."""
        held = self._collections.get(name)
        if held is not None and not shard_of(held).known().dropped:
            return held
        opened = self._lake.collection(name)
        if len(self._collections) >= _MEASURED_MAX:
            self._collections.clear()
        self._collections[name] = opened
        return opened


def _time(given: Arguments, name: str, of: Collection) -> Time | None:
    text = given.get(name, "").strip()
    if not text:
        return None
    whole = whole_of(text)
    value: TimeLike = text if whole is None else whole
    return times_of(of).read(
        (value,) if isinstance(value, int) and of.domain.unit == "tuple" else value, name
    )


def _number(given: Arguments, name: str, default: int, most: int) -> int:
    text = given.get(name, str(default))
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= most:
        raise errors.UsageError(f"{name}={text[:20]!r} must be a whole number from 1 to {most}")
    return int(text)


def downloading(api: Api) -> Callable[[Request], object]:
    """The endpoint of files. An error before the first row is JSON; a later one breaks the connection off."""

    async def get_download(request: Request) -> Response:
        try:
            name, format_, rest = await to_thread.run_sync(api.download, dict(request.query_params))
            first = await to_thread.run_sync(next, rest, b"")
        except errors.TidelakeError as error:
            return _refused(error)
        headers = {"Content-Disposition": download.disposition(name, format_)}
        return StreamingResponse(chain([first], rest), 200, headers, download.MEDIA_TYPES[format_])

    return get_download


def _refused(error: errors.TidelakeError) -> Response:
    status = next((code for kind, code in _STATUS if isinstance(error, kind)), 500)
    return JSONResponse({"error": str(error), "kind": type(error).__name__}, status)


def answering(method: Callable[[Arguments], Json], *, changes: bool = False) -> Callable[[Request], object]:
    """An endpoint that answers with what a method gives; the method runs in a thread of its own."""

    async def endpoint(request: Request) -> Response:
        given = dict(request.query_params)
        try:
            return JSONResponse(await to_thread.run_sync(method, given))
        except errors.TidelakeError as error:
            return _refused(error)

    endpoint.__name__ = f"{'change' if changes else 'get'}_{method.__name__}"
    return endpoint


class _Stream(StreamingResponse):
    """A stream of events, if there are fewer than `STREAMS_MAX` when it begins."""

    def __init__(self, live: set["_Stream"], events: AsyncIterator[str]) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._live = live

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events until the client is gone."""
        # SUBTLE: nothing is awaited between the look and the count: many requests may be here at once.
        if len(self._live) >= STREAMS_MAX:
            error = f"{STREAMS_MAX} pages are live already: reload this one later"
            await JSONResponse({"error": error}, 503)(scope, receive, send)
            return
        self._live.add(self)
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._live.discard(self)


def streaming(api: Api) -> Callable[[Request], object]:
    """The endpoint of server-sent events."""
    live: set[_Stream] = set()

    async def events(request: Request) -> Response:
        return _Stream(live, api.events(request.query_params.get("name", "")))

    return events
