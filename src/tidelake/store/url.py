"""Open the stores of a lake, given its path or URL.

Owns the kinds of URLs, the marker file that makes a directory a lake, and the order of the layers. Must not
know what is kept in the stores.

    <root>/tidelake.json    the marker: see `tidelake.store.marker`
    <root>/blobs/           objects
    <root>/log/             version log, if it is not in a database; advisory locks
    <root>/~tmp/            the marker while it is being written

INVARIANT: the marker is written before anything else, and at most once. Where it is missing, nothing of a
lake was ever written.
"""

import os
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import NoReturn
from urllib.parse import unquote, urlsplit

from tidelake.config import Config
from tidelake.env import Clock, Env, expanded
from tidelake.errors import BlobExists, BlobNotFound, NotALake, UsageError, to_install
from tidelake.store.access import LOG_VARIABLE, StoreAccess, is_provider, known_access, remember_access
from tidelake.store.advisory import AdvisoryLocks, FileAdvisoryLocks, ThreadAdvisoryLocks
from tidelake.store.clock import StoreClock
from tidelake.store.disk import unavailable
from tidelake.store.framed.log import FramedVersionLog
from tidelake.store.layers import BlobLayer, Layer, LogLayer, Operation, around
from tidelake.store.local import LocalBlobStore
from tidelake.store.marker import GRACE_S, MARKER, Marker, decode_marker
from tidelake.store.memory import MemoryBlobStore, MemoryVersionLog
from tidelake.store.metered import metered
from tidelake.store.names import check_name
from tidelake.store.objects.address import SCHEMES, BucketAddress, parse_address
from tidelake.store.protocols import BlobStore, VersionLog
from tidelake.store.readonly import refusing_writes
from tidelake.store.retrying import Retry, draw_from
from tidelake.store.scratch import FOLDER as SCRATCH_FOLDER

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")

_PLACES = "give a directory, file:///…, s3://…, gs://…, az://…, abfss://… or memory://name"
_PROVIDER = "store_options="

_memory_lakes: "dict[str, Stores]" = {}  # shared by the whole process: the same name gives the same lake
_memory_lock = threading.Lock()


@dataclass(frozen=True)
class Stores:
    """The stores of one lake.

    Attributes:
        log: the version log, with a key for each shard.
        locks: advisory locks between the threads of a process, or all processes of a machine.
        clock: the clock that all processes on these stores share; None: that of each machine.
    """

    blobs: BlobStore
    log: VersionLog
    locks: AdvisoryLocks = field(default_factory=ThreadAdvisoryLocks)
    read_only: bool = False
    clock: Clock | None = None

    def env(self, env: Env) -> Env:
        """The environment of work on these stores: its wall clock is the one that is shared."""
        return env if self.clock is None else replace(env, clock=self.clock)

    def layered(self, *layers: Layer) -> "Stores":
        """These stores with layers around their calls, the innermost first."""
        return replace(self, blobs=BlobLayer(self.blobs, *layers), log=LogLayer(self.log, *layers))

    def close(self) -> None:
        """Close both stores; may be repeated."""
        self.blobs.close()
        self.log.close()


def normalize_url(path_or_url: "str | os.PathLike[str]") -> str:
    """The absolute URL of a lake, the same for all processes: `file:///…`, `s3://…`, `memory://name`, ….

    A path is relative to the current directory, and `~` is the home directory; symbolic links are kept. The
    URL of an object store may end in `#store_options=module:function`: this names the function that gives its
    options.
    """
    text = os.fspath(path_or_url)
    found = _SCHEME.match(text)
    if found is None:
        if not text or "\0" in text:
            raise UsageError(f"bad path of a lake {text!r}: {_PLACES}")
        return Path(os.path.abspath(expanded(text))).as_uri()
    scheme = found[1].lower()
    if scheme == "memory":
        return f"memory://{check_name(text[found.end() :])}"
    if scheme in SCHEMES:
        address, provider = _objects(text)
        return with_provider(address.url, provider)
    if scheme != "file":
        raise UsageError(f"{scheme}:// is no place of a lake: {_PLACES}")
    parts = urlsplit(text)
    path = unquote(parts.path)
    if parts.netloc not in ("", "localhost") or parts.query or parts.fragment or not path or "\0" in path:
        raise UsageError(f"bad url of a lake {text!r}: file:// takes an absolute path and nothing else")
    return Path(os.path.abspath(path)).as_uri()


def with_provider(url: str, provider: str | None) -> str:
    """The URL of a lake in an object store, with the function that gives its options in every process."""
    return url if provider is None or "#" in url else f"{url}#{_PROVIDER}{provider}"


def _objects(url: str) -> tuple[BucketAddress, str | None]:
    """Where a lake in an object store is, and the provider of its options that the URL names."""
    place, separator, more = url.partition("#")
    provider = more.removeprefix(_PROVIDER)
    if separator and (provider == more or not is_provider(provider)):
        raise UsageError(
            "bad url of a lake: after # it takes store_options=module:function, and nothing else"
        )
    return parse_address(place), provider or None


def open_stores(
    url: "str | os.PathLike[str]",
    config: Config,
    env: Env,
    *,
    create: bool,
    read_only: bool = False,
    access: StoreAccess | None = None,
    for_parts: bool = False,
) -> Stores:
    """Open the stores of the lake at `url`, with all layers. With `create`, a missing lake is created.

    With `read_only`, or if this user may not write there, all writes are refused and nothing is written.

    Cost: one or two store calls, and a connection to the database of the log if it has one.

    Args:
        url: path or url of the lake.
        config: settings of this process.
        env: clock, ids and recorder.
        create: make the lake if there is none. A log that `access` gives is where its log will be.
        read_only: refuse all writes.
        access: how this process reaches the stores; default: as it reached them last.
        for_parts: the caller works on objects, and may have no access to a log that is elsewhere: the log is
            not contacted before it is used.

    Raises:
        NotALake: there is no lake, and none was or could be created; or the database that was given does not
            have its log.
        UsageError: the lake needs the address of its log, or has its log elsewhere than in what was given.
        FormatTooNew: a newer Tidelake created the lake.
        CorruptionError: its marker is damaged.
        StoreUnavailable: the directory or the database cannot be read or written.
    """
    url = normalize_url(url)
    retry = Retry(env.clock, config.retry_deadline_s, draw_from(env.ids), env.recorder)
    gives_log = access is not None and access.gives_log
    access = access or known_access(url)
    if url.partition("://")[0] in SCHEMES:
        address, provider = _objects(url)
        if provider is not None and not access.gives_options:
            access = access.with_options(provider)
        stores = _open_objects(
            address, access, retry, env, create=create, read_only=read_only, for_parts=for_parts
        )
        if not for_parts:
            remember_access(url, access)
        return stores
    if access.gives_options:
        raise UsageError(f"lake {url!r} is in no object store: leave out store_options=")
    if url.startswith("memory://"):
        if gives_log:
            raise UsageError(f"lake {url!r} lives in this process, and so does its log: leave out log=")
        local = _open_memory(url, env.clock, create=create and not read_only)
        return all_layers(local, url, env, retry, read_only=read_only)
    root = unquote(urlsplit(url).path)
    blobs, log = os.path.join(root, "blobs"), os.path.join(root, "log")
    marked = BlobLayer(LocalBlobStore(root), metered(env.recorder), retry.layer)
    may_create = create and not read_only
    new = access if gives_log else StoreAccess()
    marker = _marker_of(root, marked, lambda: _new_marker(url, new, env, retry) if may_create else None)
    read_only = read_only or not all(map(_is_writable, (root, blobs, log)))
    objects = LocalBlobStore(blobs, base=root)
    locks = FileAdvisoryLocks(log, base=root)
    if marker.log == "postgres":
        elsewhere, clock = _postgres_log(url, marker, access, retry, env, for_parts=for_parts)
        found = Stores(objects, elsewhere, locks, clock=clock)
        return all_layers(found, url, env, retry, read_only=read_only)
    if gives_log:
        raise UsageError(
            f"lake {url!r} has its log in its directory: leave out log=, which is for lakes made with it"
        )
    framed = FramedVersionLog(
        log, env.ids, base=root, read_only=read_only, wait_s=config.retry_deadline_s, clock=env.clock
    )
    found = Stores(objects, framed, locks)
    return all_layers(found, url, env, retry, read_only=read_only)


def _open_objects(
    address: BucketAddress,
    access: StoreAccess,
    retry: Retry,
    env: Env,
    *,
    create: bool,
    read_only: bool,
    for_parts: bool,
) -> Stores:
    """Open a lake in an object store: one request; some thirty to make one."""
    url = address.url
    # These take a tenth of the time in which a lake on disk is opened and first read.
    from tidelake.store.objects.blobs import ObjectBlobStore
    from tidelake.store.objects.clock import store_ms
    from tidelake.store.objects.cloud import CloudBucket
    from tidelake.store.objects.folder import FolderBucket
    from tidelake.store.objects.lake import find_marker, make_lake
    from tidelake.store.objects.log import ObjectVersionLog

    bucket = CloudBucket(address, access.options)
    try:
        marker = find_marker(bucket, url, retry)
        if marker is None:
            if read_only or not create:
                raise NotALake(f"there is no lake at {url!r}: check the url, or create the lake")
            new = access if access.gives_log else StoreAccess()
            top = CloudBucket(replace(address, prefix=""), access.options)
            try:
                marker = make_lake(
                    bucket, top, address, lambda: _new_marker(url, new, env, retry), ids=env.ids, retry=retry
                )
            finally:
                top.close()
        if marker.log == "objects" and access.gives_log:
            raise UsageError(
                f"lake {url!r} has its log beside its objects: leave out log=, which is for lakes made "
                "with it"
            )
        inside = FolderBucket(bucket, marker.lake)
        log: VersionLog
        clock: Clock | None
        if marker.log == "postgres":
            log, clock = _postgres_log(url, marker, access, retry, env, for_parts=for_parts)
        else:
            log = ObjectVersionLog(inside, env.clock, marker.grace_s)
            clock = None if read_only else StoreClock(lambda: store_ms(inside), env.clock)
        blobs = ObjectBlobStore(FolderBucket(inside, "blobs"), address.below(marker.lake, "blobs").url)
        found = Stores(blobs, log, clock=clock)
        return all_layers(found, url, env, retry, read_only=read_only)
    except BaseException:
        bucket.close()
        raise


def _new_marker(url: str, access: StoreAccess, env: Env, retry: Retry) -> Marker:
    """The marker of a lake that is being made. The log in a database is made before it."""
    place = "" if url.startswith("file://") else url
    if not access.gives_log:
        return Marker(env.ids.fresh(), "objects", place, GRACE_S) if place else Marker(env.ids.fresh())
    postgres = _postgres(url)
    address = postgres.Address(access.log_address() or "")
    # May be repeated: the second attempt finds the row of the first one.
    lake: str = retry.write(lambda: postgres.create_log(address, env.ids.fresh(), url, env.clock))
    return Marker(lake, "postgres", place)


def _postgres_log(
    url: str, marker: Marker, access: StoreAccess, retry: Retry, env: Env, *, for_parts: bool
) -> tuple[VersionLog, Clock | None]:
    """The log of a lake in a PostgreSQL database, and the clock of the server."""
    address = access.log_address()
    if address is None:
        missing = UsageError(
            f"the log of lake {url!r} is in a PostgreSQL database: give its address as log='postgresql://…' "
            f"to tidelake.open, or in the environment variable {LOG_VARIABLE}, also to workers of Spark"
        )
        if for_parts:

            def refuse(_operation: Operation, _call: object) -> NoReturn:
                raise missing

            return LogLayer(MemoryVersionLog(), around(refuse)), None
        raise missing
    postgres = _postgres(url)
    log = postgres.PostgresVersionLog(postgres.Address(address), marker.lake, url, env.clock)
    if not for_parts:
        retry.read(log.check)
        remember_access(url, access)
    return log, StoreClock(lambda: retry.read(log.now_ms), env.clock)


def _postgres(url: str) -> ModuleType:
    """The module of the log in PostgreSQL, which loads the driver."""
    try:
        from tidelake.store.postgres import log
    except ImportError as error:
        raise UsageError(
            f"the log of lake {url!r} is in a PostgreSQL database, and psycopg cannot be loaded ({error}): "
            f"{to_install('postgres')}"
        ) from error
    return log


def _is_writable(folder: str) -> bool:
    """Whether this user may write into a folder; True if there is no such folder."""
    return not os.path.isdir(folder) or os.access(folder, os.W_OK | os.X_OK)


def all_layers(stores: Stores, url: str, env: Env, retry: Retry, *, read_only: bool) -> Stores:
    """These stores with the layers of an opened lake.

    Each retry is one more request to the store, so the metered layer is inside: its counters show requests to
    the store, not calls of the caller. There is no cache; it would go outside both.
    """
    layers = (*([refusing_writes(url)] if read_only else []), metered(env.recorder), retry.layer)
    found = stores.layered(*layers)
    return replace(found, locks=ThreadAdvisoryLocks(), read_only=True) if read_only else found


def _open_memory(url: str, clock: Clock, *, create: bool) -> Stores:
    with _memory_lock:
        stores = _memory_lakes.get(url)
        if stores is None:
            if not create:
                raise NotALake(f"there is no lake {url!r} in this process: create it first")
            stores = _memory_lakes[url] = Stores(MemoryBlobStore(clock), MemoryVersionLog())
        return stores


def _marker_of(root: str, store: BlobStore, create: Callable[[], Marker | None]) -> Marker:
    """The marker of the lake in a directory."""
    try:
        names = set(os.listdir(root))
    except FileNotFoundError:
        names = None
    except NotADirectoryError as error:
        raise NotALake(
            f"{root!r} is a file, not a directory: check the path, or choose an empty directory"
        ) from error
    except OSError as error:
        raise unavailable("open lake", root, error) from error
    path = os.path.join(root, MARKER)
    # SUBTLE: the marker is looked for again, since another process may just have created the lake.
    found = _read_marker(path, store) if names else None
    if found is not None:
        return found
    if names and names - {SCRATCH_FOLDER}:
        raise NotALake(
            f"{root!r} holds other files and no lake: check the path, or choose an empty directory"
        )
    try:
        marker = create()
    except NotALake:
        # Another process may have made the lake, and its log, since we looked.
        found = _read_marker(path, store)
        if found is not None:
            return found
        raise
    if marker is None and names is None:
        raise NotALake(f"there is no directory {root!r}: check the path, or create the lake")
    if marker is None:
        raise NotALake(f"{root!r} is empty: create the lake first")
    with suppress(BlobExists):  # another process created the lake first; it is the same lake
        store.put(MARKER, marker.encode())
    return decode_marker(path, store.get(MARKER))


def _read_marker(path: str, store: BlobStore) -> Marker | None:
    try:
        return decode_marker(path, store.get(MARKER))
    except BlobNotFound:
        return None
