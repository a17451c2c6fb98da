"""A bucket of S3, GCS or Azure.

Owns the requests to the store, their deadlines, how many are under way at once, and what their errors mean.
Must not know what objects mean, nor retry a call; of many reads at once it repeats those that fail.

Every call is a coroutine on the loop of `tidelake.store.objects.driver`, so that it ends at a deadline, and
soon after a Ctrl-C, whatever the network does. It also works in a program that runs a loop of its own, such
as Jupyter.

INVARIANT: a request that writes is sent once. The driver's own retries are off: a put that the driver had
repeated would be refused because of itself.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from tidelake.errors import BlobNotFound, OutcomeUnknown, StoreUnavailable, UsageError
from tidelake.process import PerProcess
from tidelake.store.objects.address import BucketAddress
from tidelake.store.objects.answers import is_of_driver, is_out_of_range, is_without_bucket, meaning, told
from tidelake.store.objects.bucket import MULTIPART_BYTES, ObjectInfo
from tidelake.store.objects.driver import driver, loop
from tidelake.store.objects.options import StoreOptions

T = TypeVar("T")

DEADLINE_S = 10.0
"""How long a request may take, and a second more for each MiB that it moves."""
IN_FLIGHT_MAX = 64
"""Requests of one bucket and process that are under way at once."""
PART_BYTES = 8 << 20
"""Objects of more than `MULTIPART_BYTES` are put in parts of this size."""
PARTS_MAX = 4
"""Parts of one object that are under way at once."""

_BYTES_PER_S_MIN = 1 << 20
_NEAR_BYTES = 1 << 20  # ranges with a smaller gap are one request: these bytes take less than a round trip
_FAR = 1 << 62
_PAGE = 1_000
_AGAIN_S = 2.0
_PAUSES_S = (0.02, 0.1, 0.5)
_MANY_S = 120.0  # for a call of the driver that may make many requests


class CloudBucket:
    """A `Bucket` below an address.

    Nothing is opened before the first call. A fork opens its own.

    Args:
        address: service, bucket and prefix.
        options: gives the options of the store; called once in each process.
        deadline_s: how long a request may take, besides a second for each MiB that it moves.
    """

    def __init__(
        self,
        address: BucketAddress,
        options: Callable[[], Mapping[str, object]],
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self.address = address
        self._deadline_s = deadline_s
        self._client = PerProcess(lambda: _Client(address, StoreOptions(address.service, options())))

    def __repr__(self) -> str:
        return f"CloudBucket({self.address.url!r})"

    def __reduce__(self) -> str:
        raise UsageError("a bucket belongs to its process: open the lake in the other process by its url")

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """Read a range of an object; see `Bucket.get`."""
        client = self._client.get()
        found = self._run(client.get(key, start, length, self._deadline_s))
        if found is None:
            raise BlobNotFound(key)
        return found

    def get_all(self, keys: Sequence[str]) -> list[bytes | None]:
        """Read whole objects; see `Bucket.get_all`. One that fails is asked for again, for a moment."""
        client = self._client.get()
        gets = (partial(client.get, key, 0, None, self._deadline_s) for key in keys)
        return self._run(_all(*(_soon_again(get) if len(keys) > 1 else get() for get in gets)))

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read ranges of an object; see `Bucket.get_ranges`."""
        found = self._run(self._client.get().get_ranges(key, ranges, self._deadline_s))
        if found is None:
            raise BlobNotFound(key)
        return found

    def put_new(self, key: str, data: bytes) -> bool:
        """Store an object if there is none; see `Bucket.put_new`."""
        return self._run(self._client.get().put_new(key, data, self._deadline_s))

    def put(self, key: str, data: bytes) -> None:
        """Store an object; see `Bucket.put`. One of more than `MULTIPART_BYTES` is put in parts."""
        self._run(self._client.get().put(key, data, self._deadline_s))

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; see `Bucket.delete`."""
        client = self._client.get()
        pages = [keys[start : start + _PAGE] for start in range(0, len(keys), _PAGE)]
        self._run(_all(*(client.delete(page, self._deadline_s) for page in pages)))

    def head(self, key: str) -> ObjectInfo | None:
        """Size and time of an object; see `Bucket.head`."""
        return self._run(self._client.get().head(key, self._deadline_s))

    def list(self, prefix: str) -> Iterator[list[ObjectInfo]]:
        """List objects in pages; see `Bucket.list`."""
        client = self._client.get()
        pages = client.pages(prefix)
        last = ""
        while (page := self._run(client.page(pages, prefix, self._deadline_s))) is not None:
            found = [info for info in page if info.key.startswith(prefix)]
            for info in found:
                if info.key <= last:
                    problem = f"{self!r} does not list objects in order of their keys: use another store"
                    raise StoreUnavailable(problem, retryable=False)
                last = info.key
            if found:
                yield found
            if page and page[-1].key > prefix and not page[-1].key.startswith(prefix):
                return

    def folders(self, prefix: str) -> Iterator[str]:
        """The segments after a prefix; see `Bucket.folders`. One request for each 1,000 that it finds."""
        return iter(self._run(self._client.get().folders(prefix)))

    def close(self) -> None:
        """Let go of the connections of this process; see `Bucket.close`."""
        self._client = PerProcess(_closed)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return loop.get().run(work)


def _closed() -> "_Client":
    raise UsageError("the bucket is closed: open the lake again")


async def _all(*work: Coroutine[Any, Any, T]) -> list[T]:
    """Run coroutines at once; if one fails, the others are cancelled."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


async def _soon_again(read: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Read, and read again after errors that may pass soon.

    Of hundreds of requests some fail as soon as a store fails one in a hundred. Then a caller that repeated
    all of them because of these would never come to an end.
    """
    end_s = _now() + _AGAIN_S
    for pause_s in _PAUSES_S:
        try:
            return await read()
        except StoreUnavailable as error:
            if not error.retryable or _now() >= end_s:
                raise
        await asyncio.sleep(pause_s)
    return await read()


class _Client:
    """The store of one process; its coroutines run on the loop of the process."""

    def __init__(self, address: BucketAddress, options: StoreOptions) -> None:
        self._driver = driver.get()
        self._errors = self._driver.api.exceptions
        self._prefix = f"{address.prefix}/" if address.prefix else ""
        self._where = address.url
        self._secrets = options.secrets
        self._in_flight = asyncio.Semaphore(IN_FLIGHT_MAX)
        self._store = self._opened(address, options)

    def _opened(self, address: BucketAddress, options: StoreOptions) -> Any:
        named = {"s3": "S3Store", "gs": "GCSStore", "az": "AzureStore", "abfss": "AzureStore"}
        # SUBTLE: a timeout of ours would end the put of a large object on a slow line; our deadlines end
        # requests. It stands here and not in `client_options`, which replace those of the environment.
        config = {"timeout": "1h", **options.config}
        if address.account is not None:
            config.setdefault("account_name", address.account)
        more = {} if options.provider is None else {"credential_provider": options.provider}
        try:
            return getattr(self._driver.stores, named[address.service])(
                address.bucket,
                config=config,
                retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=1)},
                **more,
            )
        except (self._errors.BaseError, ValueError, TypeError) as error:
            problem = told(error, self._secrets)
        raise UsageError(f"cannot open {self._where}: {problem}; check store_options and the environment")

    async def get(self, key: str, start: int, length: int | None, deadline_s: float) -> bytes | None:
        if length == 0:
            return None if await self.head(key, deadline_s) is None else b""
        api, store, path = self._driver.api, self._store, self._path(key)

        async def some(_limit: asyncio.Timeout) -> bytes:
            return bytes(await api.get_range_async(store, path, start=start, length=length))

        async def rest(limit: asyncio.Timeout) -> bytes:
            answer = await api.get_async(store, path, options={"range": {"offset": start}} if start else None)
            limit.reschedule(_now() + deadline_s + _moving_s(answer.range[1] - answer.range[0]))
            return bytes(await answer.bytes_async())

        try:
            asked_s = deadline_s + _moving_s(length or 0)
            return await self._ask(rest if length is None else some, f"read object {key!r}", asked_s)
        except _Missing:
            return None
        except _OutOfRange:
            return b""

    async def get_ranges(
        self, key: str, ranges: Sequence[tuple[int, int]], deadline_s: float
    ) -> list[bytes] | None:
        if not any(length for _, length in ranges):
            return None if await self.head(key, deadline_s) is None else [b""] * len(ranges)
        # Not by the driver's call for ranges: it panics if one of them begins behind the end of the object.
        spans = _spans(ranges)
        found = await _all(*(self.get(key, start, end - start, deadline_s) for start, end in spans))
        if None in found:
            return None
        pieces = []
        for start, length in ranges:
            at = bisect_right(spans, (start, _FAR)) - 1
            within = start - spans[at][0] if length else 0
            pieces.append((found[at] or b"")[within : within + length])
        return pieces

    async def put_new(self, key: str, data: bytes, deadline_s: float) -> bool:
        api, store, path = self._driver.api, self._store, self._path(key)

        async def create(_limit: asyncio.Timeout) -> None:
            await api.put_async(store, path, data, mode="create", use_multipart=False)

        try:
            asked_s = deadline_s + _moving_s(len(data))
            await self._ask(create, f"write object {key!r}", asked_s, has_effect=True, has_condition=True)
        except _Refused:
            return False
        return True

    async def put(self, key: str, data: bytes, deadline_s: float) -> None:
        api, store, path = self._driver.api, self._store, self._path(key)
        in_parts = len(data) > MULTIPART_BYTES

        async def overwrite(_limit: asyncio.Timeout) -> None:
            await api.put_async(
                store, path, data, use_multipart=in_parts, chunk_size=PART_BYTES, max_concurrency=PARTS_MAX
            )

        asked_s = deadline_s * (3 if in_parts else 1) + _moving_s(len(data))
        await self._ask(overwrite, f"write object {key!r}", asked_s, has_effect=True)

    async def delete(self, keys: Sequence[str], deadline_s: float) -> None:
        api, store, paths = self._driver.api, self._store, [self._path(key) for key in keys]

        async def these(paths: list[str], _limit: asyncio.Timeout) -> None:
            await api.delete_async(store, paths)

        what = f"delete object {keys[0]!r}" + (f" and {len(keys) - 1} others" if len(keys) > 1 else "")
        try:
            await self._ask(partial(these, paths), what, _MANY_S, has_effect=True)
        except _Missing:
            # Some services fail at the first object that does not exist.
            if len(keys) > 1:
                await _all(*(self.delete([key], deadline_s) for key in keys))

    async def head(self, key: str, deadline_s: float) -> ObjectInfo | None:
        api, store, path = self._driver.api, self._store, self._path(key)

        async def meta(_limit: asyncio.Timeout) -> Any:
            return await api.head_async(store, path)

        try:
            return self._info(await self._ask(meta, f"look at object {key!r}", deadline_s))
        except _Missing:
            return None

    def pages(self, prefix: str) -> Any:
        """A listing of at least the objects whose keys start with `prefix`, which is not begun yet."""
        folder, _, start = prefix.rpartition("/")
        # The driver lists whole folders; the offset saves what comes before `start`.
        offset = {"offset": self._path(f"{prefix[:-1]}{chr(ord(start[-1]) - 1)}")} if start else {}
        within = self._prefix + (f"{folder}/" if folder else "")
        return self._driver.api.list(self._store, within.rstrip("/") or None, chunk_size=_PAGE, **offset)

    async def page(self, pages: Any, prefix: str, deadline_s: float) -> list[ObjectInfo] | None:
        """The next page of a listing; None at its end."""

        async def step(_limit: asyncio.Timeout) -> Any:
            return await anext(pages, None)

        try:
            found = await self._ask(step, f"list objects {prefix!r}", deadline_s)
        except _Missing:
            return None
        if found is None:
            return None
        # Some tools mark a folder by an object of its name, which is none of its objects.
        return [self._info(meta) for meta in found if meta["path"].startswith(self._prefix)]

    async def folders(self, prefix: str) -> list[str]:
        api, store, within = self._driver.api, self._store, self._path(prefix).rstrip("/") or None

        async def delimited(_limit: asyncio.Timeout) -> Any:
            return await api.list_with_delimiter_async(store, within)

        try:
            found = await self._ask(delimited, f"list folders {prefix!r}", _MANY_S)
        except _Missing:
            return []
        return sorted(path.rstrip("/").rpartition("/")[2] for path in found["common_prefixes"])

    def _path(self, key: str) -> str:
        return self._prefix + key

    def _info(self, meta: Mapping[str, Any]) -> ObjectInfo:
        modified_ms = round(meta["last_modified"].timestamp() * 1000)
        return ObjectInfo(meta["path"].removeprefix(self._prefix), meta["size"], modified_ms)

    async def _ask(
        self,
        request: Callable[[asyncio.Timeout], Awaitable[T]],
        what: str,
        within_s: float,
        *,
        has_effect: bool = False,
        has_condition: bool = False,
    ) -> T:
        """Make a request, as soon as there is room for it, and translate its error."""
        failed: Exception
        async with self._in_flight:
            try:
                async with asyncio.timeout(within_s) as limit:
                    return await request(limit)
            except TimeoutError:
                message = (
                    f"cannot {what}: no answer within {within_s:.0f} s; check the network, the endpoint, and "
                    "whether there are credentials"
                )
                failed = OutcomeUnknown(message) if has_effect else StoreUnavailable(message)
            except Exception as error:
                if not is_of_driver(error, self._errors.BaseError):
                    raise
                failed = self._failed(error, what, has_effect=has_effect, has_condition=has_condition)
        # Not within `except`: the error of the driver would be the context of ours.
        raise failed

    def _failed(self, error: BaseException, what: str, *, has_effect: bool, has_condition: bool) -> Exception:
        if isinstance(error, FileNotFoundError) and not is_without_bucket(error):
            return _Missing()
        if has_condition and isinstance(
            error, self._errors.AlreadyExistsError | self._errors.PreconditionError
        ):
            return _Refused()
        if is_out_of_range(error):
            return _OutOfRange()
        return meaning(error, what, self._secrets, has_effect=has_effect)


class _Missing(Exception):
    """There is no such object."""


class _Refused(Exception):
    """The condition of a put does not hold, or another put is under way."""


class _OutOfRange(Exception):
    """The range begins at or behind the end of the object."""


def _now() -> float:
    return asyncio.get_running_loop().time()


def _spans(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Intervals of bytes, ascending, that cover ranges `(start, length)`; near ones share an interval."""
    spans: list[tuple[int, int]] = []
    for start, length in sorted(one for one in ranges if one[1]):
        if spans and start <= spans[-1][1] + _NEAR_BYTES:
            spans[-1] = (spans[-1][0], max(spans[-1][1], start + length))
        else:
            spans.append((start, start + length))
    return spans


def _moving_s(size_bytes: int) -> float:
    """How long the bytes of a request may take."""
    return size_bytes / _BYTES_PER_S_MIN
