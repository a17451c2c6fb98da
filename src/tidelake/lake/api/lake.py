"""A lake: what begins and ends with its handle, and copies between two lakes.

The other methods are in parts, by what a caller wants; ARCHITECTURE.md lists which part has which.
"""

import os
from collections.abc import Mapping, Sequence
from types import TracebackType

from tidelake.config import Config
from tidelake.env import Env
from tidelake.errors import ReadOnlyLake, UsageError
from tidelake.lake.admin.backup import BackupReport, copy_collection
from tidelake.lake.api.administering import Administering
from tidelake.lake.api.naming import Naming
from tidelake.lake.api.transacting import Transacting
from tidelake.lake.api.upkeep import Seen, Tidy, Upkeep
from tidelake.lake.arguments.names import check_list, check_name
from tidelake.lake.arguments.spans import duration_s
from tidelake.lake.catalog.settings import for_another_lake
from tidelake.shard.copying.copy import Watch
from tidelake.store.access import StoreAccess
from tidelake.store.url import Stores, normalize_url, open_stores, with_provider


def open_lake(
    url: str | os.PathLike[str],
    *,
    create: bool = True,
    config: Config | None = None,
    env: Env | None = None,
    read_only: bool = False,
    log: str | None = None,
    store_options: Mapping[str, object] | str | None = None,
) -> "Lake":
    """Open the lake at a directory or URL. If the place is empty, make a lake there.

    On a read-only mount, or without write permission, the lake is opened for reading only.

    Args:
        url: a path, `file:///...`, `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix`,
            `abfss://container@account.dfs.core.windows.net/prefix`, or `memory://name` (lives as long as the
            process).
        create: make the lake if there is none; False: raise `NotALake` instead.
        config: settings of this process.
        env: clock, ids and recorder; for tests.
        read_only: write nothing at all, not even holds of readers: a long read then fails with an error if
            what it reads was collected meanwhile. Every write is refused with `ReadOnlyLake`. Reads see what
            was acknowledged before they began. Reading the state of a collection reads its whole log.
        log: where the log of the lake is, if it is in a PostgreSQL database: `postgresql://user@host/database`,
            or `"module:function"`, a function that returns this in every process. A lake that is made gets
            its log there. Default: the environment variable `TIDELAKE_LOG`, for lakes that need it.
        store_options: how the object store is reached, where its usual environment variables do not say it:
            names and values as obstore takes them (`endpoint`, `region`, `access_key_id`, ...), which stay in
            this process; or `"module:function"`, a function that returns them in every process. Default: the
            environment variable `TIDELAKE_STORE_OPTIONS`, which names such a function.

    Raises:
        NotALake: the place holds something else, or the database does not have the log of this lake.
        FormatTooNew: a newer Tidelake wrote it.
        UsageError: `url` names no place where a lake can be.
    """
    config, env = Config() if config is None else config, env or Env()
    _check_place(url, config)
    where = normalize_url(os.fspath(url))
    if not isinstance(read_only, bool):
        raise UsageError(f"read_only={read_only!r} must be True or False")
    access = None if log is None and store_options is None else StoreAccess(log, store_options)
    where = with_provider(where, None if access is None else access.provider)
    stores = open_stores(where, config, env, create=create, read_only=read_only, access=access)
    return Lake(where, stores, config, stores.env(env))


# Upkeep calls `Lake.collect` four times per `upload_age_s`.
_LOOKS = 4


class Lake(Naming, Transacting, Administering):
    """Named collections in one place. Use as a context manager, or call `close`."""

    def __init__(self, url: str, stores: Stores, config: Config, env: Env) -> None:
        super().__init__(url, stores, config, env)
        self._upkeep: list[Upkeep] = []

    @property
    def read_only(self) -> bool:
        """Whether all writes are refused: the caller asked for it, or the place cannot be written to."""
        return self._stores.read_only

    def __repr__(self) -> str:
        return f"Lake({self.url!r})"

    def __enter__(self) -> "Lake":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Finish work in progress, and release holds and file handles. May be repeated.

        Upkeep ends after its current merge. Commands that other threads have begun either complete or raise
        `Closed`. Every later call raises `Closed`, also on a collection, writer, builder or reader that was
        opened through this lake. Readers release their holds, by a log write each; if the store fails then,
        the holds expire. Arrangements also release their holds; they stop following and keep their contents.
        A stream of rows that was begun may be read to its end, but nothing is held for it any more.
        """
        for upkeep in self._upkeep:
            upkeep.stop()
        self._renewer.end()
        self._guard.shut()
        with self._guard.closing():
            self._renewer.give_up()
            self._shards.hand_over()
        self._stores.close()

    def upkeep(
        self,
        names: Sequence[str] | None = None,
        *,
        interval_s: float = 1.0,
        progress: Seen | None = None,
    ) -> Upkeep:
        """Start a thread that maintains collections in the background, until it or the lake is stopped.

        A collection that is being written to gets the merges that pay off. One that has been idle for ten
        times its rewrite time is merged thoroughly: few runs, no retraction that `since` has passed. Objects
        that are no longer needed are deleted when they are old enough.

        Args:
            names: the collections; default: all, also those that are created later.
            interval_s: pause between two rounds.
            progress: called from the worker's thread with the report of each collection.
        """
        self._guard.check()
        if self.read_only:
            raise ReadOnlyLake(self.url)
        pause_s = duration_s(interval_s, "interval_s")
        if names is not None:
            check_list(names, "names")
        for name in names or ():
            self.collection(name)
        listed = self.list if names is None else lambda: list(names)

        def tidy_pause_s() -> float:
            return max(pause_s, self._catalog.known_agreed().upload_age_ms / 1000 / _LOOKS)

        # Upkeep of some collections does not include upkeep of the lake as a whole.
        started = Upkeep(
            self.env,
            listed,
            self.collection,
            pause_s,
            progress,
            tidy=Tidy(self.collect, tidy_pause_s) if names is None else None,
        )
        self._upkeep.append(started)
        return started

    def backup(
        self,
        name: str,
        to: "Lake | str | os.PathLike[str]",
        *,
        as_name: str | None = None,
        progress: Watch | None = None,
    ) -> BackupReport:
        """Copy a collection, as it is now, into another lake, or into this one under another name.

        The copy has the same contents at all times that can be read, the same writers with their numbers,
        critical holds and retention, and is a collection of its own. Writers of the source are not blocked.
        Reads see all of the copy or nothing. After an error, repeat the call. At most one part is in memory.

        Args:
            name: name of the collection.
            to: the other lake, or its place; the lake is made if the place is empty.
            as_name: name of the copy; default: the same.
            progress: called after each part with the bytes copied so far, and the bytes of all parts.

        Raises:
            CollectionExists: the name is taken there. Nothing was copied.
            CorruptionError: a part of the source is damaged; names it. Nothing is left of the copy.
            LeaseExpired: this process slept for so long that parts of the source were collected. Nothing is
                left of the copy.
        """
        self._guard.check()
        copied_as = name if as_name is None else as_name
        check_name(copied_as, "collection name")
        source = self._shards.named(name)
        if not isinstance(to, Lake):
            with open_lake(to, config=for_another_lake(self._config), env=self.env) as opened:
                return self.backup(name, opened, as_name=as_name, progress=progress)
        to._guard.check()
        return copy_collection(
            source, copied_as, to._stores, to._catalog, env=self.env, config=self._config, watch=progress
        )

    def restore(
        self,
        name: str,
        source: "Lake | str | os.PathLike[str]",
        *,
        as_name: str | None = None,
        progress: Watch | None = None,
    ) -> BackupReport:
        """Copy a collection of another lake into this one; the counterpart of `backup`, with the same errors.

        Args:
            name: name of the collection in the other lake.
            source: the other lake, or its place.
            as_name: name of the copy; default: the same.
            progress: as for `backup`.
        """
        self._guard.check()
        if isinstance(source, Lake):
            return source.backup(name, self, as_name=as_name, progress=progress)
        with open_lake(source, create=False, config=for_another_lake(self._config), env=self.env) as opened:
            return opened.backup(name, self, as_name=as_name, progress=progress)


def _check_place(url: object, config: object) -> None:
    if not isinstance(config, Config):
        raise UsageError(f"config={config!r} is not settings: give tidelake.Config(...)")
    if not isinstance(url, str | os.PathLike) or not isinstance(os.fspath(url), str):
        raise UsageError(f"bad path of a lake {url!r}: give a directory, file:///… or memory://name as text")
