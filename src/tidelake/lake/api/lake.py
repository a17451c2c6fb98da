"""A lake: what begins and ends with its handle, and copies between two lakes.

The other methods are in parts, by what a caller wants.
"""

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from types import TracebackType
from typing import TYPE_CHECKING

from tidelake.config import Config
from tidelake.env import Env, Recorder
from tidelake.errors import CollectionNotFound, ReadOnlyLake, TidelakeError, TidelakeWarning, UsageError
from tidelake.handle import door
from tidelake.lake.api.administering import Administering
from tidelake.lake.api.ingesting import Ingesting
from tidelake.lake.api.notebook import Told, bar
from tidelake.lake.api.querying import Querying
from tidelake.lake.api.viewing import Viewing
from tidelake.lake.arguments.names import check_list, copied_names
from tidelake.lake.arguments.spans import duration_s
from tidelake.lake.catalog.catalog import Names
from tidelake.lake.catalog.leftovers import DAMAGED
from tidelake.lake.catalog.settings import for_another_lake
from tidelake.store.access import StoreAccess
from tidelake.store.url import Stores, normalize_url, open_stores, with_provider
from tidelake.tabletext import as_html
from tidelake.timetext import many

if TYPE_CHECKING:
    from tidelake.lake.admin.copying import Side
    from tidelake.lake.admin.copyreport import CopyReport
    from tidelake.lake.api.upkeep import Listed, Upkeep
    from tidelake.shard.upkeep.reports import MaintenanceReport


@door
def open_lake(
    url: str | os.PathLike[str],
    *,
    create: bool = True,
    config: Config | None = None,
    env: Env | None = None,
    read_only: bool = False,
    log: str | None = None,
    store_options: Mapping[str, object] | str | None = None,
    recorder: Recorder | None = None,
) -> "Lake":
    """Open the lake at a directory or URL. If the place is empty, make a lake there.

    On a read-only mount, or without write permission, the lake is opened for reading only.

    Args:
        url: a path, `file:///...`, `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix`,
            `abfss://container@account.dfs.core.windows.net/prefix`, or `memory://name` (lives as long as the
            process).
        create: make the lake if there is none; False: raise `NotALake` instead.
        config: settings of this process.
        env: clock, ids and threads; for tests.
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
        recorder: takes counts and measurements (docs/metrics.md); default: a `tidelake.env.Counters`, which
            keeps them in memory. It is `Lake.recorder`.

    Raises:
        NotALake: the place holds something else, or the database does not have the log of this lake.
        FormatTooNew: a newer Tidelake wrote it.
        UsageError: `url` names no place where a lake can be.
    """
    config, env = Config() if config is None else config, env or Env()
    if recorder is not None:
        env = replace(env, recorder=recorder)
    _check_place(url, config)
    where = normalize_url(os.fspath(url))
    if not isinstance(read_only, bool):
        raise UsageError(f"read_only={read_only!r} must be True or False")
    access = None if log is None and store_options is None else StoreAccess(log, store_options)
    where = with_provider(where, None if access is None else access.provider)
    stores = open_stores(where, config, env, create=create, read_only=read_only, access=access)
    return Lake(where, stores, config, stores.env(env))


_SHOWN = 40  # collections in a notebook
# Upkeep calls `Lake.collect` four times per `upload_age_s`.
_LOOKS = 4


class Lake(Querying, Viewing, Ingesting, Administering):
    """Named collections in one place. Use as a context manager, or call `close`."""

    def __init__(self, url: str, stores: Stores, config: Config, env: Env) -> None:
        super().__init__(url, stores, config, env)
        self._upkeep = list["Upkeep"]()

    @property
    def read_only(self) -> bool:
        """Whether all writes are refused: the caller asked for it, or the place cannot be written to."""
        return self._stores.read_only

    @property
    def recorder(self) -> Recorder:
        """What takes the counts of this handle: docs/metrics.md lists them."""
        return self.env.recorder

    def measure(self, names: Sequence[str] | None = None) -> dict[str, dict[str, float]]:
        """Measure collections, and tell their gauges to the recorder. One log scan each.

        Upkeep does the same for the collections that it looks at.

        Args:
            names: the collections; default: all. One that is damaged is left out, with a `TidelakeWarning`;
                of all, so is one that is dropped meanwhile.

        Returns:
            The gauges of each, by name of the collection and of the gauge.

        Raises:
            CollectionNotFound: a name that was given is of no collection.
        """
        from tidelake.shard.upkeep.measure import tell, tell_caches

        self._guard.check()
        if names is not None:
            check_list(names, "names")
        found = {}
        for name in self.list(parts=True) if names is None else names:
            try:
                one = self.collection(name)
                state = one.state()
            except CollectionNotFound:
                if names is None:
                    continue
                raise
            except DAMAGED as error:
                message = f"collection {name!r} cannot be measured, and is left out: {error}"
                warnings.warn(TidelakeWarning(message), stacklevel=2)
                continue
            if not state.dropped:
                found[name] = tell(one._shard, name, state)
        tell_caches(self.recorder)
        return found

    def __repr__(self) -> str:
        return f"Lake({self.url!r})"

    def _repr_html_(self) -> str:
        """What a notebook shows: the names of the first collections. One log scan."""
        try:
            names = self.list()
        except TidelakeError as error:
            return as_html([], [], repr(self), f"its collections cannot be listed: {error}")
        note = many(len(names), "collection")
        note += f", of which {_SHOWN} are shown" if len(names) > _SHOWN else ""
        return as_html(["collection"], [(name,) for name in names[:_SHOWN]], f"lake {self.url}", note)

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
        for kept in self._kept.values():
            kept.close()
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
        progress: "Callable[[str, MaintenanceReport], None] | None" = None,
    ) -> "Upkeep":
        """Start a thread that maintains collections in the background, until it or the lake is stopped.

        A collection that is being written to gets the merges that pay off. One that has been idle for ten
        times its rewrite time is merged thoroughly: few runs, no retraction that `since` has passed. Objects
        that are no longer needed are deleted when they are old enough. Views are brought up to their inputs.

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
        known: Names | None = None

        def listed() -> "Listed":
            nonlocal known
            if names is not None:
                return [(name, None) for name in names]
            self._guard.check()
            known = self._catalog.names(known)
            return [*zip(known.names, known.shards, strict=True)]

        def tidy() -> None:
            self.collect()
            self._release_gone()

        def tidy_pause_s() -> float:
            return max(pause_s, self._catalog.known_agreed().upload_age_ms / 1000 / _LOOKS)

        from tidelake.lake.api.upkeep import Tidy, Upkeep

        # Upkeep of some collections does not include upkeep of the lake as a whole.
        started = Upkeep(
            self.env,
            self._config,
            listed,
            self.collection,
            pause_s,
            seen=progress,
            tidy=Tidy(tidy, tidy_pause_s) if names is None else None,
            fresh=self._fresh,
        )
        self._upkeep.append(started)
        return started

    def copy(
        self,
        to: "Lake | str | os.PathLike[str]",
        names: Sequence[str] | None = None,
        *,
        as_name: str | None = None,
        delete: bool = False,
        quick: bool = False,
        progress: Told | None = None,
    ) -> "CopyReport":
        """Copy this lake, or some of its collections, into another lake; called again, copy only what is new.

        A copy has the same contents at all times that can be read, also those at open times; the same writers
        with their numbers, tokens, critical holds and retention. All collections are copied as of one moment:
        no transaction is in some of them and not in others. Copies are in no group until they are written
        together. Readers of the other lake see a copy as of its last finished run, and each new one whole or
        not at all. Writers of this lake are not blocked.

        After an error or a crash, repeat the call: it goes on where it was. Several processes may copy at
        once. If some collections cannot be copied, all others are, and then the first error is raised.

        Args:
            to: the other lake, or its place; the lake is made if the place is empty. With `as_name` it may be
                this lake.
            names: the collections; default: all, with the settings of the lake. Then copies whose collections
                were renamed here are renamed there.
            as_name: name of the copy, if `names` has one name.
            delete: drop copies whose collections were dropped here; default: they stay. For all collections.
            quick: compare the sizes of stored parts only; False: read each back, and compare its bytes.
            progress: called after each part with the name of a collection, the bytes done and all bytes to
                copy. Default: a bar, in a notebook.

        Returns:
            What was copied. Without news it costs a few store calls for each collection, and writes nothing.

        Raises:
            CollectionExists: a collection has the name there that is no copy of this one, or a copy that was
                written to since. It is as it was.
            CorruptionError: a part here is damaged; names it. The copy is as it was.
            LeaseExpired, UploadExpired: this process slept for so long that what it needed was collected.
            StoreUnavailable: a store failed, or transactions wrote to the collections all the time.
        """
        self._guard.check()
        given = None if names is None else copied_names(names, as_name)
        if given is None and as_name is not None:
            raise UsageError(f"as_name={as_name!r} is for one collection: give its name in names=[...]")
        if given is not None and delete:
            raise UsageError("delete=True is for copies of all collections: leave names out")
        if not isinstance(to, Lake):
            with open_lake(to, config=for_another_lake(self._config), env=self.env) as opened:
                return self.copy(
                    opened, names, as_name=as_name, delete=delete, quick=quick, progress=progress
                )
        to._guard.check()
        if to.read_only:
            raise ReadOnlyLake(to.url)
        if given is None and to.url == self.url:
            raise UsageError("a lake cannot be copied into itself: give another place, or names and as_name")
        from tidelake.lake.admin.copying import LakeCopy

        with bar("copy: bytes", self.env.clock) as shown:
            watch = progress or shown
            copy = LakeCopy(
                self._side, to._side, to, env=to.env, config=self._config, quick=quick, watch=watch
            )
            if given is not None:
                return copy.some(given)
            wanted = asdict(self.settings())
            if asdict(to.settings()) != wanted:
                to.settings(**wanted)
            return copy.whole(delete=delete)

    @property
    def _side(self) -> "Side":
        from tidelake.lake.admin.copying import Side

        return Side(self._stores, self._catalog, self._shards)


def _check_place(url: object, config: object) -> None:
    if not isinstance(config, Config):
        raise UsageError(f"config={config!r} is not settings: give tidelake.Config(...)")
    if not isinstance(url, str | os.PathLike) or not isinstance(os.fspath(url), str):
        raise UsageError(f"bad path of a lake {url!r}: give a directory, file:///… or memory://name as text")
