"""What a lake does with names: it makes, opens, lists, renames, forks and drops collections by them."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence

import pyarrow as pa

from tidelake.data.types import schema_from_arrow
from tidelake.errors import (
    CollectionDropped,
    CollectionInUse,
    CollectionNotFound,
    CorruptionError,
    TidelakeError,
    TidelakeWarning,
    UsageError,
)
from tidelake.lake.collection import Collection
from tidelake.lake.creating import create_collection
from tidelake.lake.forking import fork_collection, fork_version
from tidelake.lake.lakehandle import LakeHandle
from tidelake.lake.leftovers import DAMAGED
from tidelake.lake.names import check_name, check_text
from tidelake.lake.renaming import check_renames, renamed
from tidelake.model.time import Time, TimeDomain
from tidelake.shard.checking.mend import Mending
from tidelake.shard.spec import ShardSpec
from tidelake.shard.upkeep.ending import Ending


class Naming(LakeHandle):
    """A handle that knows collections by their names."""

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
            CollectionDropped: this process slept for too long between two steps: call again, with
                `allow_recreate` if others have seen the name meanwhile.
        """
        self._gate.check()
        check_name(name, "collection name")
        wanted, domain = schema_from_arrow(schema, key, value), TimeDomain.parse(time)
        spec = ShardSpec(self.url, self._env.ids.fresh(), domain, 0, {0: wanted}, self._config)
        made = create_collection(
            name, spec, self._catalog, self._shards, self._leftovers, allow_recreate=allow_recreate
        )
        return Collection(name, made)

    def collection(self, name: str) -> Collection:
        """Open a collection. Costs as many store calls in a lake of many collections as in one of few.

        Raises:
            CollectionNotFound: there is none of that name; names the nearest ones.
            CollectionDropped: it is being dropped.
        """
        return Collection(name, self._shards.named(name))

    def same_collection(self, id_: str, name: str) -> Collection:
        """Open the collection of an id, whatever it is called by now: for a job of several processes.

        Args:
            id_: `Collection.id` of one that was open before.
            name: that it had then; messages call it so.

        Raises:
            CollectionDropped: it was dropped since.
        """
        self._gate.check()
        return Collection(name, self._shards.led_to(name, id_))

    def id_of(self, name: str) -> str:
        """The id of the collection that has a name now, for `same_collection`. Costs less than to open it.

        Raises:
            CollectionNotFound: there is none of that name; names the nearest ones.
        """
        return self._shards.id_of(name)

    def list(self) -> list[str]:
        """The names of all collections, ascending."""
        self._gate.check()
        return sorted(name for name, shard in self._catalog.read().shards.items() if shard is not None)

    def collections(
        self, damaged: Callable[[str, TidelakeError], object] | None = None
    ) -> Iterator[Collection]:
        """All collections, by name; without those that are dropped or renamed before their turn.

        Args:
            damaged: is told of each that cannot be opened, with the reason, and it is left out. Default: a
                `TidelakeWarning` says so.
        """
        for name in self.list():
            try:
                opened = self.collection(name)
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
        """The names of all collections, by their ids."""
        self._gate.check()
        shards = self._catalog.read().shards
        return {shard_id: name for name, shard_id in sorted(shards.items()) if shard_id is not None}

    def rename(self, old: str, new: str, *, allow_recreate: bool = False) -> Collection:
        """Give a collection another name; the collection under its new one. See `rename_all`."""
        self.rename_all({old: new}, allow_recreate=allow_recreate)
        return self.collection(new)

    def swap(self, a: str, b: str) -> None:
        """Let two collections change their names, at once: each name opens the other one from then on.

        Errors as `rename_all`.
        """
        self.rename_all({a: b, b: a})

    def rename_all(self, names: Mapping[str, str], *, allow_recreate: bool = False) -> None:
        """Give several collections other names, all at once or none.

        Nothing else of them changes: handles, readers, writers and jobs that are at work go on with the
        same collections, and call them as they did when they were opened. A name that is given
        up and not taken again is kept like that of a dropped collection, so that a job that still uses it is
        told. A few store calls.

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
                    raise self._shards.not_found(old)
                if self._leftovers.ending(shard_id).is_tombstone():
                    raise CollectionDropped(old)
            changed = renamed(listing.shards, wanted, allow_recreate=allow_recreate)
            if not changed or self._catalog.set_all(listing, changed):
                return

    def fork(
        self,
        source: str,
        name: str,
        as_of: Time | None = None,
        *,
        to_seqno: int | None = None,
        allow_recreate: bool = False,
    ) -> Collection:
        """Make a collection that begins as another one is, or was, and goes its own way; nothing is copied.

        It has the same contents at all times that can be read up to its upper, the same schemas and the
        same retention; of the source's writers and holds it knows nothing. Other processes see it only
        when it is whole. The source keeps the stored parts that both have until merges of the fork have
        replaced them (`merge` replaces all) and a maintenance of the fork finds that. Either may be dropped
        at any time, without harm to the other: what the other needs stays. Costs a few store calls, however
        large.

        Args:
            source: name of the collection to fork.
            name: of the fork.
            as_of: the last closed time of the fork, which then goes on from just after it; default: all that
                is closed.
            to_seqno: in the place of `as_of`: the version of the source, of those that its log still has, as
                `fsck` names them. For a source that is damaged, which is only read: parts are copied, and
                writers and critical holds come along as with a backup.
            allow_recreate: also take a name of which a collection was dropped or renamed.

        Raises:
            CollectionNotFound: there is no such source.
            CollectionExists: the name is taken, or was and not `allow_recreate`. Nothing was made.
            HistoryCompacted: `as_of` lies before `since` of the source: its contents then are not known.
            NotYetClosed: it is still open.
            UsageError: the log leads to no such version, or a part of it was collected since.
            CorruptionError: the version breaks a rule, or a part of it is damaged. Nothing was made.
            ForkExpired: this process slept for too long between two steps. Nothing is left of the fork.
            CollectionDropped: the source was dropped; or this process slept before it could acknowledge the
                fork, and others collected it.
        """
        self._gate.check()
        check_name(name, "collection name")
        if to_seqno is not None:
            if as_of is not None or not isinstance(to_seqno, int):
                raise UsageError(f"to_seqno={to_seqno!r}: give a version, or as_of=..., and not both")
            shard_id = fork_version(
                name,
                shard_id=self._shards.id_of(source),
                title=source,
                seqno=to_seqno,
                stores=self._stores,
                catalog=self._catalog,
                leftovers=self._leftovers,
                env=self._env,
                config=self._config,
                allow_recreate=allow_recreate,
            )
            return Collection(name, self._shards.led_to(name, shard_id))
        origin = self._shards.named(source)
        time = None if as_of is None else origin.spec.domain.check(as_of, "as_of")
        origin.title = source
        shard_id = fork_collection(
            origin, name, self._catalog, self._leftovers, time, allow_recreate=allow_recreate
        )
        return Collection(name, self._shards.led_to(name, shard_id))

    def drop(self, name: str, *, force: bool = False) -> bool:
        """Drop a collection, and delete all that it has stored; False if it was dropped before.

        What was begun and did not come to the end (a crash, a store that failed) is finished by the next
        call, by upkeep or by `collect`. From its first write on nothing of the collection can be read or
        written: such calls, and every reader that is under way, raise `CollectionDropped`. What is
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
        check_text(name)
        listing = self._catalog.look([name])
        if name not in listing.shards:
            raise self._shards.not_found(name)
        shard_id = listing.shards[name]
        if shard_id is None:
            # Whoever dropped it may not have come to the end.
            self._leftovers.tombstones()
            return False
        ending = self._leftovers.ending(shard_id)
        try:
            if not self._ended(ending, force=force):
                self._catalog.unname(shard_id, name)
                return True
        except CollectionInUse as error:
            raise CollectionInUse(name, error.holders) from error
        is_done = self._catalog.unname(shard_id, name)
        ending.remove()
        return is_done

    def _ended(self, ending: Ending, *, force: bool) -> bool:
        """Make a shard a tombstone, also a damaged one; False if nothing at all can be read of it."""
        try:
            ending.drop(force=force)
        except CorruptionError as error:
            if not Mending(ending.shard_id, self._stores, self._env).bring_back():
                message = (
                    f"the name is free, and what was stored stays, since forks may need it: {error}; "
                    "tidelake fsck tells of it"
                )
                warnings.warn(TidelakeWarning(message), stacklevel=3)
                return False
            ending.drop(force=force)
        return True
