"""Open the stores of a lake, given its path or URL.

Owns the kinds of URLs, the marker file that makes a directory a lake, and the order of the layers. Must not
know what is kept in the stores.

    <root>/tidelake.json    the marker: {"format": 1, "lake": "<id>"}
    <root>/blobs/           objects
    <root>/log/             version log
    <root>/~tmp/            the marker while it is being written

INVARIANT: the marker is written before anything else, and at most once. Where it is missing, nothing of a
lake was ever written.
"""

import json
import os
import re
import threading
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tidelake.config import Config
from tidelake.env import Clock, Env, IdSource
from tidelake.errors import (
    BlobExists,
    BlobNotFound,
    CorruptionError,
    FormatTooNew,
    NotALake,
    UsageError,
)
from tidelake.store.advisory import AdvisoryLocks, FileAdvisoryLocks, NoAdvisoryLocks
from tidelake.store.disk import unavailable
from tidelake.store.layers import BlobLayer, LogLayer
from tidelake.store.local import LocalBlobStore
from tidelake.store.memory import MemoryBlobStore, MemoryVersionLog
from tidelake.store.metered import MeteredBlobStore, MeteredVersionLog
from tidelake.store.names import check_name
from tidelake.store.protocols import BlobStore, VersionLog
from tidelake.store.readonly import CopiedVersionLog, refusing_writes
from tidelake.store.retrying import RetryingBlobStore, RetryingVersionLog, draw_from
from tidelake.store.scratch import FOLDER as SCRATCH_FOLDER
from tidelake.store.sqlite import SqliteVersionLog

FORMAT = 1
MARKER = "tidelake.json"

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")

_memory_lakes: "dict[str, Stores]" = {}  # shared by the whole process: the same name gives the same lake
_memory_lock = threading.Lock()


@dataclass(frozen=True)
class Stores:
    """The stores of one lake.

    Attributes:
        blobs: the objects.
        log: the version log, with a key for each shard.
        turns: advisory locks between the processes of a machine.
        read_only: whether all writes are refused.
    """

    blobs: BlobStore
    log: VersionLog
    locks: AdvisoryLocks = field(default_factory=NoAdvisoryLocks)
    read_only: bool = False

    def close(self) -> None:
        """Close both stores; may be repeated."""
        self.blobs.close()
        self.log.close()


def normalize_url(path_or_url: "str | os.PathLike[str]") -> str:
    """The absolute URL of a lake, the same for all processes: `file:///…` or `memory://name`.

    A path is relative to the current directory; symbolic links are kept.

    Raises:
        UsageError: the path or URL is malformed, or its scheme is not supported.
    """
    text = os.fspath(path_or_url)
    found = _SCHEME.match(text)
    if found is None:
        if not text or "\0" in text:
            raise UsageError(f"bad path of a lake {text!r}: give a directory, file:///… or memory://name")
        return Path(os.path.abspath(text)).as_uri()
    scheme = found[1].lower()
    if scheme == "memory":
        return f"memory://{check_name(text[found.end() :])}"
    if scheme != "file":
        raise UsageError(
            f"{text!r}: {scheme}:// is not supported yet; give a directory, file:///… or memory://name"
        )
    parts = urlsplit(text)
    path = unquote(parts.path)
    if parts.netloc not in ("", "localhost") or parts.query or parts.fragment or not path or "\0" in path:
        raise UsageError(f"bad url of a lake {text!r}: file:// takes an absolute path and nothing else")
    return Path(os.path.abspath(path)).as_uri()


def open_stores(
    url: "str | os.PathLike[str]", config: Config, env: Env, *, create: bool, read_only: bool = False
) -> Stores:
    """Open the stores of the lake at `url`, with all layers. With `create`, a missing lake is created.

    With `read_only`, or if this user may not write there, all writes are refused and nothing is written.

    Cost: one or two store calls.

    Raises:
        NotALake: there is no lake, and none was or could be created.
        FormatTooNew: a newer Tidelake created the lake.
        CorruptionError: its marker is damaged.
        StoreUnavailable: the directory cannot be read or written.
    """
    url = normalize_url(url)
    if url.startswith("memory://"):
        local = _open_memory(url, env.clock, create=create and not read_only)
        return _layered(_read_only(local, url) if read_only else local, config, env)
    root = unquote(urlsplit(url).path)
    blobs, log = os.path.join(root, "blobs"), os.path.join(root, "log")
    marked = _layered_blobs(LocalBlobStore(root), config, env)
    _check_directory(root, marked, env.ids, create=create and not read_only)
    if read_only or not all(map(_is_writable, (root, blobs, log))):
        found = Stores(LocalBlobStore(blobs, base=root), CopiedVersionLog(log, base=root))
        return _layered(_read_only(found, url), config, env)
    local = Stores(
        LocalBlobStore(blobs, base=root),
        SqliteVersionLog(log, env.ids, base=root),
        FileAdvisoryLocks(log, base=root),
    )
    return _layered(local, config, env)


def _is_writable(folder: str) -> bool:
    """Whether this user may write into a folder; True if there is no such folder."""
    return not os.path.isdir(folder) or os.access(folder, os.W_OK | os.X_OK)


def _read_only(stores: Stores, url: str) -> Stores:
    around = refusing_writes(url)
    return Stores(BlobLayer(stores.blobs, around), LogLayer(stores.log, around), read_only=True)


def file_url(url: str, name: str) -> str | None:
    """The location of an object, for other programs with access to the directory of the lake.

    Returns:
        `file://` followed by the path, without escapes; None if the lake is not in a directory.
    """
    if not url.startswith("file://"):
        return None
    return "file://" + os.path.join(unquote(urlsplit(url).path), "blobs", check_name(name))


def _layered(stores: Stores, config: Config, env: Env) -> Stores:
    """Wrap stores in the layers: metered inside, retrying outside.

    Each retry is one more request to the store, so the metered layer is inside: its counters show requests to
    the store, not calls of the caller. There is no cache; it would go outside both.
    """
    log = MeteredVersionLog(stores.log, env.recorder)
    return Stores(
        _layered_blobs(stores.blobs, config, env),
        RetryingVersionLog(log, env.clock, config.retry_deadline_s, draw_from(env.ids)),
        stores.locks,
        stores.read_only,
    )


def _layered_blobs(store: BlobStore, config: Config, env: Env) -> BlobStore:
    metered = MeteredBlobStore(store, env.recorder)
    return RetryingBlobStore(metered, env.clock, config.retry_deadline_s, draw_from(env.ids))


def _open_memory(url: str, clock: Clock, *, create: bool) -> Stores:
    with _memory_lock:
        stores = _memory_lakes.get(url)
        if stores is None:
            if not create:
                raise NotALake(f"there is no lake {url!r} in this process: create it first")
            stores = _memory_lakes[url] = Stores(MemoryBlobStore(clock), MemoryVersionLog())
        return stores


def _check_directory(root: str, store: BlobStore, ids: IdSource, *, create: bool) -> None:
    """Check that `root` is a lake; with `create`, make it one."""
    try:
        names = set(os.listdir(root))
    except FileNotFoundError:
        names = set()
        if not create:
            raise NotALake(f"there is no directory {root!r}: check the path, or create the lake") from None
    except NotADirectoryError as error:
        raise NotALake(f"{root!r} is a file, not a directory: choose an empty directory") from error
    except OSError as error:
        raise unavailable("open lake", root, error) from error
    if MARKER not in names and not _has_marker(store):
        # SUBTLE: the marker is looked for again, since another process may just have created the lake.
        if names - {SCRATCH_FOLDER}:
            raise NotALake(f"{root!r} holds other files and no lake: choose an empty directory")
        if not create:
            raise NotALake(f"{root!r} is empty: create the lake first")
        _put_marker(store, ids.fresh())
    check_marker(os.path.join(root, MARKER), store.get(MARKER))


def _has_marker(store: BlobStore) -> bool:
    try:
        store.get(MARKER)
    except BlobNotFound:
        return False
    return True


def _put_marker(store: BlobStore, lake: str) -> None:
    try:
        store.put(MARKER, json.dumps({"format": FORMAT, "lake": lake}).encode())
    except BlobExists:
        return  # another process created the lake first; it is the same lake


def check_marker(path: str, data: bytes) -> str:
    """Check the marker of a lake; return the id of the lake.

    Raises:
        FormatTooNew: a newer Tidelake wrote the marker.
        CorruptionError: the marker is damaged.
    """
    try:
        marker = json.loads(data)
    except ValueError as error:
        raise CorruptionError(path, "it is not JSON") from error
    found = marker.get("format") if isinstance(marker, dict) else None
    if type(found) is not int or found < 1:
        raise CorruptionError(path, "it has no format number")
    if found > FORMAT:
        raise FormatTooNew(path, found, FORMAT)
    lake = marker.get("lake")
    if not isinstance(lake, str) or not lake:
        raise CorruptionError(path, "it names no lake")
    return lake
