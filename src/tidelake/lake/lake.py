"""A lake: create, open, list, drop, check and copy collections by name, and look after them."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from weakref import WeakValueDictionary

import pyarrow as pa

from tidelake.config import Config
from tidelake.data.types import schema_from_arrow
from tidelake.env import Env
from tidelake.errors import (
    CollectionDropped,
    CollectionInUse,
    CollectionNotFound,
    CorruptionError,
    IncompatibleSchema,
    UsageError,
)
from tidelake.lake.backup import BackupReport, copy_collection
from tidelake.lake.catalog import SHARD_ID, Catalog
from tidelake.lake.collection import Collection
from tidelake.lake.forking import fork_collection
from tidelake.lake.frontiers import FrontierLike
from tidelake.lake.fsck import FsckReport, LakeCheck
from tidelake.lake.fsck import Watch as FsckWatch
from tidelake.lake.gate import Gate, GatedBlobStore, GatedVersionLog
from tidelake.lake.groups import Groups
from tidelake.lake.leftovers import Leftovers
from tidelake.lake.names import check_columns, check_list, check_name, not_found
from tidelake.lake.renaming import check_renames, refuse_gone, renamed
from tidelake.lake.sinces import Sinces
from tidelake.lake.spans import duration_s
from tidelake.lake.together import WritesTogether
from tidelake.lake.upkeep import Seen, Tidy, Upkeep
from tidelake.model.frontier import Frontier
from tidelake.model.time import Time, TimeDomain
from tidelake.shard.checking.copy import Watch as CopyWatch
from tidelake.shard.machine import Together
from tidelake.shard.shard import Shard, keeper_of
from tidelake.shard.spec import ShardSpec
from tidelake.shard.upkeep.ending import Removed
from tidelake.store.url import Stores, normalize_url, open_stores


def open_lake(
    url: str | os.PathLike[str], *, create: bool = True, config: Config | None = None, env: Env | None = None
) -> "Lake":
    """Open the lake at a directory or URL, and make it if the place is empty.

    Args:
        url: a path, `file:///...`, or `memory://name` (lives as long as the process).
        create: make the lake if there is none; False: raise `NotALake` instead.
        config: settings.
        env: clock, ids and recorder; the tests bring their own.

    Raises:
        NotALake: the place holds something else.
        FormatTooNew: a newer Tidelake wrote it.
        UsageError: `url` names no place where a lake can be.
    """
    config, env = Config() if config is None else config, env or Env()
    _check_place(url, config)
    where = normalize_url(os.fspath(url))
    return Lake(where, open_stores(where, config, env, create=create), config, env)


# Upkeep looks for what is left of drops so many times while it grows old.
_LOOKS = 4


class Lake(WritesTogether):
    """Named collections in one place. Use as a context manager, or call `close`."""

    def __init__(self, url: str, stores: Stores, config: Config, env: Env) -> None:
        self.url = url
        self._gate = gate = Gate(url)
        self._stores = Stores(
            GatedBlobStore(stores.blobs, gate), GatedVersionLog(stores.log, gate), stores.turns
        )
        self._config = config
        self._env = env
        self._catalog = Catalog(self._stores, env, url, config, Together(env.clock, gate.command))
        self._leftovers = Leftovers(self._stores, env, config, self._catalog)
        self._sinces = Sinces(self._catalog, self._led_to, self._open, env)
        super().__init__(self._gate, Groups(self._stores, env, url, config, self._open), self._shard, env)
        self._upkeep: list[Upkeep] = []
        self._keeper = keeper_of(env, config)
        self._together: WeakValueDictionary[str, Together] = WeakValueDictionary()

    def __repr__(self) -> str:
        return f"Lake({self.url!r})"

    def __enter__(self) -> "Lake":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Finish what is under way, and give up holds and file handles. May be repeated.

        Upkeep ends after the merge that it is at. Commands that other threads have begun are carried out and
        answered: each is in, or answers `Closed`. Every other call answers `Closed` from then on, also one on
        a collection, writer, builder or reader that this lake gave out. Readers give up their holds, by a log
        write each; if the store does not do that, they expire. So do arrangements, which follow no more and
        have what they had. A stream of rows that was begun may be read to its end, but nothing is held for it
        any more.
        """
        for upkeep in self._upkeep:
            upkeep.stop()
        self._keeper.end()
        self._gate.shut()
        with self._gate.closing():
            self._keeper.give_up()
        self._stores.close()

    def upkeep(
        self,
        names: Sequence[str] | None = None,
        *,
        interval_s: float = 1.0,
        seen: Seen | None = None,
    ) -> Upkeep:
        """Start a worker that maintains collections in the background, until it or the lake is stopped.

        A collection that is being written to gets the merges that are worth their while; one that is
        idle (for ten times as long as it takes to rewrite it) is brought to rest: few runs, no retraction
        that `since` has passed. What is no longer needed is deleted when it is old enough.

        Args:
            names: of the collections; default: all, also those that come later.
            interval_s: pause between two rounds.
            seen: is told what each look did, from the worker's thread.
        """
        self._gate.check()
        pause_s = duration_s(interval_s, "interval_s")
        if names is not None:
            check_list(names, "names")
        for name in names or ():
            self.collection(name)
        listed = self.list if names is None else lambda: list(names)
        started = Upkeep(
            self._env,
            listed,
            self.collection,
            pause_s,
            seen,
            # Who looks after some collections only does not look after the lake.
            tidy=Tidy(self.collect, max(pause_s, self._config.upload_age_s / _LOOKS))
            if names is None
            else None,
        )
        self._upkeep.append(started)
        return started

    def create(
        self,
        name: str,
        schema: pa.Schema,
        *,
        key: Sequence[str],
        value: Sequence[str] | None = None,
        time: str = "counter",
        allow_recreate: bool = False,
    ) -> Collection:
        """Make a collection, or open it if it exists with an equal schema and time.

        Costs as many store calls in a lake of many collections as in one of few.

        Args:
            name: any text up to 255 bytes without control characters.
            schema: of key and value columns; a key column that is not nullable refuses nulls.
            key: the key columns, in the order that rows are to be sorted by.
            value: the value columns; default: all others.
            time: `"counter"`, `"ms"`, `"us"` (since 1970 UTC) or `"tuple(n)"`.
            allow_recreate: if a collection of this name was dropped or renamed, make a new, empty one.

        Raises:
            IncompatibleSchema: it exists with another schema or time; names both.
            CollectionExists: a collection of this name was dropped or renamed, and not `allow_recreate`.
            CollectionDropped: this process slept for too long between two steps: call again.
        """
        self._gate.check()
        check_name(name, "collection name")
        check_columns(schema, key, value)
        wanted, domain = schema_from_arrow(schema, key, value), TimeDomain.parse(time)
        spec = ShardSpec(self.url, self._env.ids.fresh(), domain, 0, {0: wanted}, self._config)
        made: Shard | None = None
        while True:
            listing = self._catalog.look([name])
            present = listing.shards.get(name)
            found = None if present is None else self._alive(name, present)
            if made is not None and found is not None:
                # Losing the name leaves an empty shard.
                self._stores.log.delete(spec.shard_id)
            if found is not None:
                return self._existing(name, found, spec)
            if name in listing.shards and not allow_recreate:
                refuse_gone(name)
            # The shard first: a name never leads to nothing.
            together = self._together_on(spec.shard_id)
            made = made or Shard.create(self._stores, self._env, spec, keeper=self._keeper, together=together)
            if not self._leftovers.ending(spec.shard_id).is_alive():
                # This process slept, and it was taken for what a crash has left.
                raise CollectionDropped(name)
            if self._catalog.set(listing, name, spec.shard_id):
                return Collection(name, made)

    def _alive(self, name: str, shard_id: str) -> Shard | None:
        """The shard that a name led to a moment ago, or None if it is being dropped."""
        try:
            return self._named(name, shard_id)
        except CollectionDropped:
            return None

    def _existing(self, name: str, shard: Shard, wanted: ShardSpec) -> Collection:
        spec = shard.spec
        if spec.domain != wanted.domain or not spec.schema.same_columns(wanted.schema):
            was = any(schema.same_columns(wanted.schema) for schema in spec.schemas.values())
            raise IncompatibleSchema(
                f"collection {name!r} exists with {spec.schema} time {spec.domain}, "
                f"which does not equal {wanted.schema} time {wanted.domain}"
                + (", a schema that it had: open it with lake.collection(...)" if was else "")
            )
        return Collection(name, shard)

    def collection(self, name: str) -> Collection:
        """Open a collection. Costs as many store calls in a lake of many collections as in one of few.

        Raises:
            CollectionNotFound: there is none of that name; names the nearest ones.
            CollectionDropped: it is being dropped.
        """
        return Collection(name, self._shard(name))

    def same_collection(self, id_: str, name: str) -> Collection:
        """Open the collection of an id, whatever it is called by now: for a job of several processes.

        Args:
            id_: `Collection.id` of one that was open before.
            name: that it had then; messages call it so.

        Raises:
            CollectionDropped: it was dropped since.
        """
        self._gate.check()
        return Collection(name, self._undropped(name, id_))

    def id_of(self, name: str) -> str:
        """The id of the collection that has a name now, for `same_collection`. Costs less than to open it.

        Raises:
            CollectionNotFound: there is none of that name; names the nearest ones.
        """
        self._gate.check()
        _check_text(name)
        shard_id = self._catalog.look([name]).shards.get(name)
        if shard_id is None:
            raise self._not_found(name)
        return shard_id

    def _shard(self, name: str) -> Shard:
        return self._undropped(name, self.id_of(name))

    def _led_to(self, name: str, shard_id: str | None) -> Shard:
        if shard_id is None:
            raise self._not_found(name)
        return self._undropped(name, shard_id)

    def _undropped(self, name: str, shard_id: str) -> Shard:
        try:
            return self._named(name, shard_id)
        except CollectionDropped as error:
            raise CollectionDropped(name) from error

    def _not_found(self, name: str) -> CollectionNotFound:
        """Says which names are near. Reads the whole list of them."""
        return CollectionNotFound(not_found(name, self._catalog.read().shards))

    def _named(self, name: str, shard_id: str) -> Shard:
        """Open the shard that a name led to a moment ago."""
        try:
            return self._open(shard_id)
        except CollectionDropped:
            raise
        except CollectionNotFound as error:
            # A drop takes the name away before the log; nothing else deletes a log that has a name.
            if self._catalog.look([name]).shards.get(name) == shard_id:
                raise CorruptionError(shard_id, f"collection {name!r} has lost its log") from error
            raise CollectionDropped(name) from error

    def _open(self, shard_id: str) -> Shard:
        return Shard.open(
            self._stores,
            self._env,
            self.url,
            shard_id,
            self._config,
            keeper=self._keeper,
            together=self._together_on(shard_id),
        )

    def _together_on(self, shard_id: str) -> Together:
        # Of two threads that come at once one may get its own, which only means more log writes.
        return self._together.setdefault(shard_id, Together(self._env.clock, self._gate.command))

    def list(self) -> list[str]:
        """The names of all collections, ascending."""
        self._gate.check()
        return sorted(name for name, shard in self._catalog.read().shards.items() if shard is not None)

    def collections(self) -> Iterator[Collection]:
        """All collections, by name; without those that are dropped or renamed before their turn."""
        for name in self.list():
            with suppress(CollectionNotFound):
                yield self.collection(name)

    def names(self) -> dict[str, str]:
        """The names of all collections, by their ids."""
        self._gate.check()
        shards = self._catalog.read().shards
        return {shard_id: name for name, shard_id in sorted(shards.items()) if shard_id is not None}

    def rename(self, old: str, new: str, *, allow_recreate: bool = False) -> Collection:
        """Give a collection another name; the collection under its new one. See `rename_all`."""
        self.rename_all({old: new}, allow_recreate=allow_recreate)
        return self.collection(new)

    def swap(self, a: str, b: str) -> None:
        """Let two collections change their names, at once: whoever opens one gets the other from then on.

        Errors as `rename_all`.
        """
        self.rename_all({a: b, b: a})

    def rename_all(self, names: Mapping[str, str], *, allow_recreate: bool = False) -> None:
        """Give several collections other names, all at once or none.

        Nothing else of them changes: handles, readers, writers and jobs that are at work go on with the
        same collections, and call them as they did when they were opened. A name that nobody takes is kept
        like that of a dropped collection, so that whoever still uses it is told. A few store calls.

        Args:
            names: new names by old ones; also names that are given up by others of them.
            allow_recreate: also take names of which a collection was dropped or renamed.

        Raises:
            CollectionNotFound: there is no collection of an old name; names the nearest ones.
            CollectionDropped: one is being dropped.
            CollectionExists: a new name is taken, or was, and not `allow_recreate`.
        """
        self._gate.check()
        wanted = check_renames(names)
        while True:
            listing = self._catalog.look([*wanted, *wanted.values()])
            for old in wanted:
                shard_id = listing.shards.get(old)
                if shard_id is None:
                    raise self._not_found(old)
                if self._leftovers.ending(shard_id).is_tombstone():
                    raise CollectionDropped(old)
            changed = renamed(listing.shards, wanted, allow_recreate=allow_recreate)
            if not changed or self._catalog.set_all(listing, changed):
                return

    def fork(
        self, source: str, name: str, as_of: Time | None = None, *, allow_recreate: bool = False
    ) -> Collection:
        """Make a collection that begins as another one is, or was, and goes its own way; nothing is copied.

        It has the same contents at all times that can be read up to its upper, the same schemas and the
        same retention; of the source's writers and holds it knows nothing. Nobody else sees it before it is
        whole. The source keeps the stored parts that both have until merges of the fork have replaced them
        (`merge` replaces all) and a maintenance of the fork finds that. Either may be dropped at any time,
        without harm to the other: what the other needs stays. Costs a few store calls, however large.

        Args:
            source: name of the collection to fork.
            name: of the fork.
            as_of: the last closed time of the fork, which then goes on from just after it; default: all that
                is closed.
            allow_recreate: also take a name of which a collection was dropped or renamed.

        Raises:
            CollectionNotFound: there is no such source.
            CollectionExists: the name is taken, or was and not `allow_recreate`. Nothing was made.
            HistoryCompacted: `as_of` lies before `since` of the source: its contents then are not known.
            NotYetClosed: it is still open.
            ForkExpired: this process slept for too long between two steps. Nothing is left of the fork.
            CollectionDropped: the source was dropped; or this process slept before it could acknowledge the
                fork, and others collected it.
        """
        self._gate.check()
        check_name(name, "collection name")
        origin = self._shard(source)
        time = None if as_of is None else origin.spec.domain.check(as_of, "as_of")
        origin.title = source
        shard_id = fork_collection(
            origin, name, self._catalog, self._leftovers, time, allow_recreate=allow_recreate
        )
        return Collection(name, self._undropped(name, shard_id))

    def drop(self, name: str, *, force: bool = False) -> bool:
        """Drop a collection, and delete all that it has stored; False if it was dropped before.

        What was begun and did not come to the end (a crash, a store that failed) is finished by the next
        call, by upkeep or by `collect`. From its first write on nothing of the collection can be read or
        written: everybody who tries, and every reader that is under way, gets `CollectionDropped`. What is
        dropped is the collection that has the name when the call begins, also if it is renamed meanwhile.
        Stored parts that forks of it need stay until these need them no more, and `collect` or upkeep comes.

        Args:
            name: of the collection. It is not used again by accident: see `create`.
            force: also if others hold it: their holds end.

        Raises:
            CollectionNotFound: there never was such a collection.
            CollectionInUse: others hold it, and not `force`; names them. Nothing was written.
        """
        self._gate.check()
        _check_text(name)
        listing = self._catalog.look([name])
        if name not in listing.shards:
            raise self._not_found(name)
        shard_id = listing.shards[name]
        if shard_id is None:
            # Whoever dropped it may not have come to the end.
            self._leftovers.tombstones()
            return False
        ending = self._leftovers.ending(shard_id)
        try:
            ending.drop(force=force)
        except CollectionInUse as error:
            raise CollectionInUse(name, error.holders) from error
        is_done = self._catalog.unname(shard_id, name)
        ending.remove()
        return is_done

    def advance_since(self, frontiers: Mapping[str, FrontierLike]) -> dict[str, Frontier]:
        """Let merges fold the history of several collections, each before its own frontier: all or none.

        One write of the list of collections decides; then each of them is told. Where a crash comes between,
        the next call, upkeep of all collections, `collect` or `tidelake maintain` finishes it. Collections
        that are dropped meanwhile are left out. Several may be at it: what is allowed only moves forward.

        Args:
            frontiers: by name; each as for `Collection.advance_since`, or at the upper or past it: `since`
                then follows the upper, so that the last closed time can be read.

        Returns:
            Where `since` is now, by name; holds may keep it back. A few store calls each.

        Raises:
            CollectionNotFound: there is none of such a name; names the nearest ones.
            CollectionDropped: one is being dropped.
            UsageError: a frontier is none of the collection's times, or goes back. The first one in the
                order given is named, and nothing has changed.
            OutcomeUnknown: it may be decided. Then it will be done; the same call again is harmless.
        """
        self._gate.check()
        return self._sinces.advance(frontiers)

    def collect(self) -> Removed:
        """Remove what drops and failed creations have left: tombstones, shards and objects without a name.

        And finish what an `advance_since` of several collections has left to do.

        What may still be under way is left until it is older than the setting `upload_age_s`. May be
        repeated, stopped anywhere, and run by several at once. Lists the whole store.
        """
        self._gate.check()
        self._sinces.finish()
        self._catalog.collect()
        named = {shard_id for shard_id in self._catalog.read().shards.values() if shard_id is not None}
        self._groups.collect(frozenset(self._stores.log.keys()) - named - {SHARD_ID})
        return self._leftovers.tombstones().plus(self._leftovers.objects())

    def fsck(
        self,
        names: Sequence[str] | None = None,
        *,
        repair: bool = False,
        deep: bool = True,
        watch: FsckWatch | None = None,
    ) -> FsckReport:
        """Check that what is stored is whole; docs/guide.md lists the kinds of findings.

        May run beside everything else. Reads all parts twice, row group by row group; without `deep` only
        the logs, and the names and sizes of objects.

        Args:
            names: of the collections; default: all, and the catalog, and what lies beside them.
            repair: mend what can be mended safely: nothing that holds data is removed or made up.
            deep: read the parts.
            watch: is told of each part that was looked at.

        Raises:
            CollectionNotFound: there is none of such a name.
        """
        self._gate.check()
        if names is not None:
            check_list(names, "names")
            for name in names:
                _check_text(name)
        check = LakeCheck(
            self._stores,
            self.url,
            self._catalog,
            self._leftovers,
            env=self._env,
            config=self._config,
            deep=deep,
            repair=repair,
            watch=watch,
        )
        return check.all() if names is None else check.some(names)

    def backup(
        self,
        name: str,
        to: "Lake | str | os.PathLike[str]",
        *,
        as_name: str | None = None,
        watch: CopyWatch | None = None,
    ) -> BackupReport:
        """Copy a collection, as it is now, into another lake, or into this one under another name.

        The copy has the same contents at all times that can be read, the same writers with their numbers,
        critical holds and retention, and is a collection of its own. Writers of the source go on meanwhile.
        Reads see all of it or nothing. After an error repeat the call. Holds a part in memory, not more.

        Args:
            name: of the collection.
            to: the other lake, or its place; it is made if that is empty.
            as_name: of the copy; default: the same.
            watch: is told, after each part, of the bytes copied and of all of them.

        Raises:
            CollectionExists: the name is taken there. Nothing was copied.
            CorruptionError: a part of the source is damaged; names it. Nothing is left of the copy.
            LeaseExpired: this process was asleep for so long that the source moved on. Likewise.
        """
        self._gate.check()
        copied_as = name if as_name is None else as_name
        check_name(copied_as, "collection name")
        source = self._shard(name)
        if not isinstance(to, Lake):
            with open_lake(to, config=self._config, env=self._env) as opened:
                return self.backup(name, opened, as_name=as_name, watch=watch)
        to._gate.check()
        return copy_collection(
            source, copied_as, to._stores, to._catalog, env=self._env, config=self._config, watch=watch
        )

    def restore(
        self,
        name: str,
        source: "Lake | str | os.PathLike[str]",
        *,
        as_name: str | None = None,
        watch: CopyWatch | None = None,
    ) -> BackupReport:
        """Copy a collection of another lake into this one: `backup`, seen from here; errors as there.

        Args:
            name: of the collection in the other lake.
            source: the other lake, or its place.
            as_name: of the copy; default: the same.
            watch: as for `backup`.
        """
        self._gate.check()
        if isinstance(source, Lake):
            return source.backup(name, self, as_name=as_name, watch=watch)
        with open_lake(source, create=False, config=self._config, env=self._env) as opened:
            return opened.backup(name, self, as_name=as_name, watch=watch)


def _check_place(url: object, config: object) -> None:
    if not isinstance(config, Config):
        raise UsageError(f"config={config!r} is not settings: give tidelake.Config(...)")
    if not isinstance(url, str | os.PathLike) or not isinstance(os.fspath(url), str):
        raise UsageError(f"bad path of a lake {url!r}: give a directory, file:///… or memory://name as text")


def _check_text(name: object) -> None:
    if not isinstance(name, str):
        raise UsageError(f"collection name {name!r} must be a text")
