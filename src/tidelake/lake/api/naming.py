"""Operations of a lake by name: create, open, list, rename, fork and drop collections."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence

import pyarrow as pa

from tidelake.data.kernel.types import schema_from_arrow
from tidelake.errors import (
    CollectionDropped,
    CollectionExists,
    CollectionInUse,
    CollectionNotFound,
    CorruptionError,
    TidelakeError,
    TidelakeWarning,
    UsageError,
)
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.handle import LakeHandle, times_of
from tidelake.lake.arguments.names import check_name, check_text
from tidelake.lake.arguments.schemas import schema_of
from tidelake.lake.catalog.catalog import Names
from tidelake.lake.catalog.creating import create_collection
from tidelake.lake.catalog.leftovers import DAMAGED
from tidelake.lake.catalog.renaming import check_renames, renamed
from tidelake.model.frontier import Frontier
from tidelake.model.instants import TimeLike
from tidelake.model.time import TimeDomain
from tidelake.shard.engine.spec import ShardSpec
from tidelake.shard.upkeep.ending import Ending
from tidelake.state.core.owned import is_part, owns, without_parts
from tidelake.state.core.state import Owned


class Naming(LakeHandle):
    """Methods of a lake that make, find, name and remove collections."""

    def create(
        self,
        name: str,
        schema: object,
        *,
        key: Sequence[str],
        value: Sequence[str] | None = None,
        time: str = "counter",
        allow_recreate: bool = False,
    ) -> Collection:
        """Make a collection, or open it if it exists with an equal schema and time.

        The number of store calls does not depend on the number of collections.

        Args:
            name: any text up to 255 bytes without control characters.
            schema: the key and value columns; a key column that is not nullable refuses nulls. An Arrow
                schema, or what has one: a table or stream, a frame of pandas or polars, a schema or
                DataFrame of Spark; or a dict such as `{"id": "int64", "price": "decimal(10, 2)"}`. Rows of a
                frame are not written.
            key: the key columns; rows are sorted by them, in this order.
            value: the value columns; default: all others.
            time: `"counter"`, `"ms"`, `"us"`, `"date"` (days; all since 1970 UTC) or `"tuple(n)"`.
            allow_recreate: if a collection of this name was dropped or renamed, make a new, empty one.

        Raises:
            UsageError: a column has no type that a collection can hold.
            IncompatibleSchema: it exists with another schema or time; names both.
            CollectionExists: a collection of this name was dropped or renamed, and `allow_recreate` is False.
            CollectionDropped: this process slept for too long between two steps: call again, with
                `allow_recreate` if others have seen the name meanwhile.
        """
        self._guard.check()
        check_name(name, "collection name")
        wanted, domain = schema_from_arrow(schema_of(schema), key, value), TimeDomain.parse(time)
        spec = ShardSpec(self.url, self.env.ids.fresh(), domain, 0, {0: wanted}, self._config)
        made = create_collection(
            name, spec, self._catalog, self._shards, self._leftovers, allow_recreate=allow_recreate
        )
        return Collection(name, made)

    def _create_owned(
        self,
        name: str,
        schema: pa.Schema,
        *,
        key: Sequence[str],
        time: TimeDomain,
        owned: Callable[[str], Owned],
        since: Frontier,
        allow_recreate: bool,
    ) -> Collection:
        """Make a collection that only its owner writes to, with history from `since` on. See `create`.

        Args:
            name: of the collection.
            schema: its columns.
            key: the key columns.
            time: the unit of its times.
            owned: what its state says of its owner, by its id.
            since: the first time that it will have.
            allow_recreate: as for `create`.

        Raises:
            CollectionExists: the name is taken, or was taken once and `allow_recreate` is False.
        """
        wanted, id_ = schema_from_arrow(schema, key, None), self.env.ids.fresh()
        spec = ShardSpec(self.url, id_, time, 0, {0: wanted}, self._config)
        known = owned(id_)
        made = create_collection(
            name,
            spec,
            self._catalog,
            self._shards,
            self._leftovers,
            allow_recreate=allow_recreate,
            owned=(known, since),
        )
        if made.spec.shard_id != id_:
            raise CollectionExists(f"a collection {name!r} was made meanwhile: give the view another name")
        return Collection(name, made)

    def collection(self, name: str) -> Collection:
        """Open a collection. The number of store calls does not depend on the number of collections.

        Raises:
            CollectionNotFound: there is no such collection; suggests the nearest names.
            CollectionDropped: it is being dropped.
        """
        return Collection(name, self._shards.named(name))

    def __getitem__(self, name: str) -> Collection:
        """`lake[name]` is `lake.collection(name)`: it makes nothing.

        Raises:
            CollectionNotFound: a `KeyError`: there is none of that name; names the nearest ones.
            CollectionDropped: it is being dropped; a `KeyError` too.
        """
        return self.collection(name)

    def __contains__(self, name: object) -> bool:
        """Whether `list` has the name. Needs as many store calls in a lake of many collections as of few."""
        self._guard.check()
        return isinstance(name, str) and self._catalog.look([name]).shards.get(name) is not None

    def __iter__(self) -> Iterator[str]:
        """The names of all collections, ascending, as `list` gives them."""
        return iter(self.list())

    def same_collection(self, id_: str, name: str) -> Collection:
        """Open a collection by its id, also if it was renamed: for jobs of several processes.

        Args:
            id_: the `Collection.id` of the collection, from a handle opened before.
            name: the name that it had then, for messages.

        Raises:
            CollectionDropped: it was dropped since.
        """
        self._guard.check()
        return Collection(name, self._shards.led_to(name, id_))

    def id_of(self, name: str) -> str:
        """The id of the collection that has this name now, for `same_collection`. Cheaper than opening it.

        Raises:
            CollectionNotFound: there is no such collection; suggests the nearest names.
        """
        return self._shards.id_of(name)

    def list(self, *, parts: bool = False) -> list[str]:
        """The names of all collections, ascending.

        Args:
            parts: also those that views keep beside themselves.
        """
        self._guard.check()
        found = self._catalog.names()
        return [*(found.names if parts else without_parts(found.names, {*found.shards}))]

    def collections(
        self, damaged: Callable[[str, TidelakeError], object] | None = None
    ) -> Iterator[Collection]:
        """Open all collections, one after the other, in the order of names.

        Also those that views keep. Leaves out collections that are dropped or renamed before their turn.

        Args:
            damaged: called with the name and the error of each collection that cannot be opened; it is left
                out. Default: issue a `TidelakeWarning`.
        """
        return self._each(lambda _, name: self.collection(name), damaged)

    def _each(
        self,
        open_: Callable[[str, str], Collection],
        damaged: Callable[[str, TidelakeError], object] | None = None,
    ) -> Iterator[Collection]:
        """As `collections`; opens each by its id and name."""
        self._guard.check()
        named = self._catalog.names()
        for id_, name in zip(named.shards, named.names, strict=True):
            try:
                opened = open_(id_, name)
            except CollectionNotFound:
                continue
            except DAMAGED as error:
                if damaged is not None:
                    damaged(name, error)
                else:
                    message = f"collection {name!r} cannot be opened, and is left out: {error}"
                    warnings.warn(TidelakeWarning(message), stacklevel=2)
                continue
            yield opened

    def names(self) -> dict[str, str]:
        """The names of all collections, by id."""
        self._guard.check()
        shards = self._catalog.read().shards
        return {shard_id: name for name, shard_id in sorted(shards.items()) if shard_id is not None}

    def rename(self, old: str, new: str, *, allow_recreate: bool = False) -> Collection:
        """Give a collection another name; returns it opened under the new one. See `rename_all`."""
        self.rename_all({old: new}, allow_recreate=allow_recreate)
        return self.collection(new)

    def swap(self, a: str, b: str) -> None:
        """Exchange the names of two collections at once: each name then opens the other collection.

        Errors as for `rename_all`.
        """
        self.rename_all({a: b, b: a})

    def rename_all(self, names: Mapping[str, str], *, allow_recreate: bool = False) -> None:
        """Give several collections other names, all at once or none.

        Open handles, readers, writers and running jobs continue with the same collections, under the names
        that they were opened with. An old name that no collection takes is kept like the name of a dropped
        collection: a job that still uses it gets an error that says so. A few store calls.

        Args:
            names: new names by old ones; a new name may be an old name of another collection in it.
            allow_recreate: also allow names of collections that were dropped or renamed.

        Raises:
            CollectionNotFound: there is no collection of an old name; suggests the nearest names.
            CollectionDropped: a collection is being dropped.
            CollectionExists: a new name is taken, or was taken once and `allow_recreate` is False.
        """
        self._guard.check()
        wanted = check_renames(names)
        while True:
            listing = self._catalog.look([*wanted, *wanted.values()])
            for old in wanted:
                shard_id = listing.shards.get(old)
                if shard_id is None:
                    raise self._shards.not_found(old)
                if self._leftovers.ending(shard_id).is_tombstone():
                    raise CollectionDropped(old)
            changed = renamed(listing.shards, wanted, allow_recreate=allow_recreate)
            if not changed or self._catalog.set_all(listing, changed):
                return

    def _swapped(self, ids: Mapping[str, str]) -> bool:
        """Exchange the names of two collections; whether each name was of its collection of this id."""
        (a, b), (of_a, of_b) = ids, ids.values()
        while True:
            listing = self._catalog.look([*ids])
            if any(listing.shards.get(name) != id_ for name, id_ in ids.items()):
                return False
            if any(self._leftovers.ending(id_).is_tombstone() for id_ in ids.values()):
                return False
            if self._catalog.set_all(listing, {a: of_b, b: of_a}):
                return True

    def fork(
        self,
        source: str,
        name: str,
        as_of: TimeLike | None = None,
        *,
        to_seqno: int | None = None,
        allow_recreate: bool = False,
    ) -> Collection:
        """Make a collection that starts with the contents of another one, now or earlier; nothing is copied.

        The fork has the same contents at all readable times up to its upper, the same schemas and the same
        retention, but none of the source's writers and holds. Other processes see it only when it is
        complete. The source keeps the shared parts until merges of the fork have replaced them (`merge`
        replaces all) and maintenance of the fork has noticed that. Either one may be dropped at any time:
        parts that the other one needs stay. Costs a few store calls, whatever the size.

        Args:
            source: name of the collection to fork.
            name: name of the fork.
            as_of: the last closed time of the fork, which continues just after it; default: the last closed
                time of the source.
            to_seqno: instead of `as_of`: the seqno of a version that the source's log still has; `fsck` names
                them. For a damaged source, which is only read: its parts are copied, and so are writers and
                critical holds, as by a copy.
            allow_recreate: also allow a name of a collection that was dropped or renamed.

        Raises:
            CollectionNotFound: there is no such source.
            CollectionExists: the name is taken, or was taken once and `allow_recreate` is False. Nothing was
                made.
            HistoryCompacted: `as_of` lies before `since` of the source: its contents then are not known.
            NotYetClosed: `as_of` is still open.
            UsageError: the log has no such version, or a part of it was collected since.
            CorruptionError: the version breaks a rule, or a part of it is damaged. Nothing was made.
            ForkExpired: this process slept for too long between two steps. Nothing is left of the fork.
            CollectionDropped: the source was dropped; or this process slept before it confirmed the fork, and
                another one collected it.
        """
        self._guard.check()
        check_name(name, "collection name")
        if to_seqno is not None:
            if as_of is not None or not isinstance(to_seqno, int):
                raise UsageError(f"to_seqno={to_seqno!r}: give a version, or as_of=..., and not both")
            from tidelake.lake.catalog.forking import fork_version

            shard_id = fork_version(
                name,
                shard_id=self._shards.id_of(source),
                title=source,
                seqno=to_seqno,
                stores=self._stores,
                catalog=self._catalog,
                leftovers=self._leftovers,
                env=self.env,
                config=self._config,
                allow_recreate=allow_recreate,
            )
            return Collection(name, self._shards.led_to(name, shard_id))
        origin = self._shards.named(source)
        origin.title = source
        time = None if as_of is None else times_of(Collection(source, origin)).read(as_of, "as_of")
        from tidelake.lake.catalog.forking import fork_collection

        shard_id = fork_collection(
            origin, name, self._catalog, self._leftovers, time, allow_recreate=allow_recreate
        )
        return Collection(name, self._shards.led_to(name, shard_id))

    def drop(self, name: str, *, force: bool = False) -> bool:
        """Drop a collection, and delete all its objects; False if it was dropped before.

        An interrupted drop (a crash, a store that failed) is finished by the next call, by upkeep or by
        `collect`. From the first write of a drop on, the collection cannot be read or written: such calls,
        and reads in progress, raise `CollectionDropped`. The call drops the collection that has the name when
        it begins, also if that is renamed meanwhile. Parts that forks need stay until the forks no longer
        need them; then `collect` or upkeep deletes them.

        Args:
            name: name of the collection. It is not reused by accident: see `create`.
            force: drop it although others hold it: their holds end.

        Raises:
            CollectionNotFound: there never was such a collection.
            CollectionInUse: others hold it, and `force` is False; names them. Nothing was written.
        """
        self._guard.check()
        check_text(name)
        listing = self._catalog.look([name])
        if name not in listing.shards:
            raise self._shards.not_found(name)
        shard_id = listing.shards[name]
        if shard_id is None:
            # An earlier drop may have been interrupted: finish it.
            self._leftovers.tombstones()
            return False
        return self._dropped(shard_id, name, force=force)

    def _dropped(self, shard_id: str, name: str, *, force: bool, forget: bool = False) -> bool:
        """Drop the collection of an id, and take its name away if it has it. Answer and errors as `drop`.

        With `forget`, the name is as free as if it had never been there.
        """
        ending = self._leftovers.ending(shard_id)
        try:
            if not self._ended(ending, force=force):
                self._catalog.unname(shard_id, name, forget=forget)
                return True
        except CollectionInUse as error:
            raise CollectionInUse(name, self._told(error.holders)) from error
        is_done = self._catalog.unname(shard_id, name, forget=forget)
        ending.remove()
        if owns(ending.owner, shard_id):
            self._release(ending.owner)
        return is_done

    def _told(self, holders: Sequence[str]) -> tuple[str, ...]:
        """The holders of a collection; views that stand on it by their names."""
        states = ((one.name, one.state()) for one in self.collections())
        owners = ((name, by.by) for name, state in states if (by := state.owned) and not is_part(state))
        views = {f"critical hold {by!r}": f"view {name!r}" for name, by in owners}
        return tuple(views.get(holder, holder) for holder in holders)

    def _release(self, owner: str) -> None:
        """Drop what an owner that is gone has left: its state, and its holds on other collections."""
        for one in self.collections():
            state = one.state()
            if state.owned is not None and state.owned.by == owner:
                self._dropped(one.id, one.name, force=True)
            elif owner in state.critical:
                one.critical_hold(owner).drop()

    def _ended(self, ending: Ending, *, force: bool) -> bool:
        """Make a shard a tombstone; repair it first if it is damaged. False if nothing of it can be read."""
        try:
            ending.drop(force=force)
        except CorruptionError as error:
            from tidelake.shard.care.mend import Mending

            if not Mending(ending.shard_id, self._stores, self.env).bring_back():
                message = (
                    f"the name is free, and what was stored stays, since forks may need it: {error}; "
                    "tidelake fsck tells of it"
                )
                warnings.warn(TidelakeWarning(message), stacklevel=3)
                return False
            ending.drop(force=force)
        return True


def names_of(lake: Naming, known: Names | None = None) -> Names:
    """The names of all collections. One log scan; more only if one has come or gone since `known`."""
    lake._guard.check()
    return lake._catalog.names(known)
