"""Copies of a lake, or of some of its collections, in another lake; and how they are kept up to date.

Owns names: which collection of the target is the copy of which one of the source, what happens to those that
were renamed or dropped at the source, and what is refused. A new copy gets its name last, by one change of
the catalog, so readers of the target see all of it or nothing; an earlier copy gets its newer contents by one
commit. So a run may end at any moment, and the next one goes on.

While a first copy is under way, a small object tells the id of its shard, so that the next run finds the
parts that are there; see `tidelake.model.names.marks`.
"""

import hashlib
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from tidelake.config import Config
from tidelake.env import Env
from tidelake.errors import (
    BlobNotFound,
    Closed,
    CollectionDropped,
    CollectionExists,
    CollectionNotFound,
    CorruptionError,
    OutcomeUnknown,
    StoreUnavailable,
    TidelakeError,
    UploadExpired,
)
from tidelake.lake.admin.copyreport import CopiedCollection, CopyReport
from tidelake.lake.catalog.catalog import Catalog, Listing
from tidelake.lake.catalog.publishing import publish_name
from tidelake.lake.catalog.shards import Shards
from tidelake.model import names
from tidelake.shard.care.copy import SHARE, THREADS, BytesInFlight, ShardCopy
from tidelake.shard.care.moment import states_at_one_moment
from tidelake.shard.engine.history import History
from tidelake.shard.engine.lease import Lease
from tidelake.shard.engine.overlap import mapped
from tidelake.shard.engine.shard import Shard
from tidelake.shard.upkeep import publications
from tidelake.shard.upkeep.collector import Collector
from tidelake.shard.upkeep.ending import Ending
from tidelake.state.core.owned import is_part
from tidelake.state.core.state import ShardState
from tidelake.state.life import dropping
from tidelake.state.life.copying import CopyRecord, contents_of
from tidelake.store.url import Stores

Watch = Callable[[str, int, int], None]
"""Called with the name of a collection, the bytes of its parts that are done, and of all parts to copy."""

_TRIES = 16
# How long a copy waits for a moment at which no transaction is half applied.
_MOMENT_S = 30.0


@dataclass(frozen=True)
class Side:
    """What a copy needs of a lake."""

    stores: Stores
    catalog: Catalog
    shards: Shards


class TargetNames(Protocol):
    """What a copy does by name in the lake that it is made in."""

    def rename_all(self, names: Mapping[str, str], *, allow_recreate: bool = False) -> None:
        """Rename collections, all at once."""

    def drop(self, name: str, *, force: bool = False) -> bool:
        """Drop a collection."""


class LakeCopy:
    """One run of a copy.

    Args:
        source: the lake to copy.
        place: the lake of the copy.
        target: the same, by name.
        env: that the target was opened with: ages of what is stored there go by its clock.
        config: of this process.
        quick: compare the sizes of stored parts only.
        watch: called after each part.
    """

    def __init__(
        self,
        source: Side,
        place: Side,
        target: TargetNames,
        *,
        env: Env,
        config: Config,
        quick: bool,
        watch: Watch | None,
    ) -> None:
        self._source, self._place, self._target = source, place, target
        self._env, self._config, self._quick = env, config, quick
        self._room = BytesInFlight(config.merge_memory_bytes)
        self._watch, self._lock = watch, threading.Lock()

    def some(self, given: Mapping[str, str]) -> CopyReport:
        """Copy collections under given names."""
        ids = {name: self._source.shards.id_of(name) for name in given}
        listing = self._place.catalog.look(given.values())
        wanted = {ids[name]: new for name, new in given.items()}
        copied, failed = self._copied(wanted, self._opened(listing), parts=True)
        _check(failed, len(wanted))
        done = {one.name for one in copied}
        for name, new in given.items():
            if new not in done:
                raise CollectionDropped(name)
        return CopyReport(tuple(copied), {}, (), ())

    def whole(self, *, delete: bool) -> CopyReport:
        """Copy all collections; follow renames, and with `delete` drops as well."""
        listing = self._place.catalog.read()
        shards = self._opened(listing)
        there = self._source.catalog.read().shards
        wanted = {id_: name for name, id_ in there.items() if id_ is not None}
        gone, known = self._gone(shards, there, wanted), self._names(shards)
        dropped = tuple(name for name in gone if delete)
        for name in dropped:
            # What holds a copy is a copy of the holds of its source.
            self._target.drop(name, force=True)
        moved = {
            known[id_]: name
            for id_, name in wanted.items()
            if id_ in known and known[id_] != name and known[id_] not in dropped
        }
        # A name that the target uses for something else stays: the copy keeps its old name, and is refused.
        moved = _possible(
            moved, {name for name, one in listing.shards.items() if one is not None} - {*dropped}
        )
        if moved:
            self._target.rename_all(moved, allow_recreate=True)
        if moved or dropped:
            shards = {moved.get(name, name): shard for name, shard in shards.items() if name not in dropped}
        copied, failed = self._copied(wanted, shards, parts=False)
        _check(failed, len(wanted))
        return CopyReport(tuple(copied), moved, dropped, tuple(name for name in gone if not delete))

    def _opened(self, listing: Listing) -> dict[str, Shard | TidelakeError]:
        """The collections of the target by name; an error for one that cannot be opened."""

        def opened(name: str) -> Shard | TidelakeError | None:
            try:
                return self._place.shards.led_to(name, listing.shards[name])
            except CollectionDropped:
                return None  # It is being dropped: the name is free in a moment.
            except (CorruptionError, BlobNotFound) as error:
                return error

        there = sorted(name for name, id_ in listing.shards.items() if id_ is not None)
        found = zip(there, mapped(opened, there, THREADS), strict=True)
        return {name: shard for name, shard in found if shard is not None}

    def _names(self, shards: Mapping[str, Shard | TidelakeError]) -> dict[str, str]:
        """The names of the copies, by the ids of their sources."""
        found: dict[str, str] = {}
        for name, shard in shards.items():
            record = CopyRecord.of(shard.known()) if isinstance(shard, Shard) else None
            if record is not None:
                found.setdefault(record.source, name)
        return found

    def _gone(
        self,
        shards: Mapping[str, Shard | TidelakeError],
        there: Mapping[str, str | None],
        wanted: Mapping[str, str],
    ) -> list[str]:
        """The names of copies whose sources are gone: the source had a collection of that name."""
        found = self._names(shards)
        return sorted(name for id_, name in found.items() if id_ not in wanted and name in there)

    def _copied(
        self, wanted: Mapping[str, str], there: Mapping[str, Shard | TidelakeError], *, parts: bool
    ) -> tuple[list[CopiedCollection], dict[str, TidelakeError]]:
        """Copy shards as of one moment; what was copied, without dropped ones, and errors by name."""
        failed: dict[str, TidelakeError] = {}

        def opened(id_: str) -> Shard | None:
            try:
                return self._source.shards.open(id_)
            except CollectionNotFound:
                return None  # It was dropped since its name was read.
            except (CorruptionError, BlobNotFound) as error:
                failed[wanted[id_]] = error
                return None

        ids = sorted(wanted, key=lambda id_: wanted[id_])
        pairs = zip(ids, mapped(opened, ids, THREADS), strict=True)
        sources = {id_: shard for id_, shard in pairs if shard is not None}
        if not parts:
            # The copy of a view is an ordinary collection, which needs no state.
            sources = {id_: shard for id_, shard in sources.items() if not is_part(shard.known())}
        states = states_at_one_moment(sources, _MOMENT_S)
        contents = {id_: contents_of(state) for id_, state in states.items()}
        copied: list[CopiedCollection] = []
        with ExitStack() as stack:
            for id_, state in states.items():
                if not _has(there.get(wanted[id_]), contents[id_]):
                    lease = Lease(sources[id_], f"copy as {wanted[id_]}")
                    stack.enter_context(lease.during(state))

            def one(id_: str) -> CopiedCollection | TidelakeError | None:
                name, source = wanted[id_], sources[id_]
                try:
                    return self._one(name, source, states[id_], contents[id_], there.get(name))
                except TidelakeError as error:
                    return None if isinstance(error, CollectionDropped) and _is_gone(source) else error

            order = [id_ for id_ in ids if id_ in states]
            for id_, done in zip(order, mapped(one, order, THREADS), strict=True):
                if isinstance(done, TidelakeError):
                    failed[wanted[id_]] = done
                elif done is not None:
                    copied.append(done)
        return copied, failed

    def _one(
        self, name: str, source: Shard, state: ShardState, contents: str, there: Shard | TidelakeError | None
    ) -> CopiedCollection:
        """Make a copy, or bring it up to date. What an error leaves is found by the next run."""
        copy = ShardCopy(
            source,
            state,
            self._place.stores,
            self._env,
            room=self._room,
            quick=self._quick,
            watch=None if self._watch is None else partial(self._tell, name),
        )
        for _ in range(_TRIES):
            if isinstance(there, TidelakeError):
                raise there
            if there is None:
                made = self._made(name, state, contents, copy)
                if made is not None:
                    return CopiedCollection.of(name, "new", made, copy.copied)
                there = self._opened(self._place.catalog.look([name])).get(name)
                continue
            if not _newer(name, there.known(), source, state, contents):
                self._collect(there)
                return CopiedCollection.of(name, "same", there.known(), copy.copied)
            # The run that made the copy may have died right after it gave it its name.
            there.run(dropping.confirm)
            done = copy.succeed(there.known())
            there.alive()
            if done is not None:
                self._collect(there)
                return CopiedCollection.of(name, "newer", done, copy.copied)
        raise StoreUnavailable(f"the copy {name!r} was written to all the time: copy again", True)

    def _made(self, name: str, state: ShardState, contents: str, copy: ShardCopy) -> ShardState | None:
        """Make a new copy and give it its name; None if another process did: look again."""
        stores, catalog = self._place.stores, self._place.catalog
        agreed = catalog.known_agreed()
        folder = names.marks(state.shard_id, hashlib.blake2b(name.encode(), digest_size=16).hexdigest())
        shard_id = self._begun(folder, agreed.upload_age_ms)
        mark = f"{folder}{shard_id}"
        made: ShardState | None
        try:
            made = copy.create(shard_id, agreed)
        except UploadExpired:
            self._end(shard_id)
            copy.discard()
            stores.blobs.delete(mark)
            raise
        except BlobNotFound:
            if catalog.look([name]).shards.get(name) is None:
                raise
            # Another run had begun the same shard, and removed it since a third one has given the name.
            return None

        def discard() -> None:
            if catalog.look([name]).shards.get(name) != shard_id:
                self._end(shard_id)

        try:
            publish_name(
                shard_id,
                name,
                stores,
                catalog,
                env=self._env,
                config=self._config,
                discard=discard,
                allow_recreate=True,
            )
        except CollectionExists:
            made = None
        stores.blobs.delete(mark)
        # An earlier run may have made it, of an earlier version.
        return made if made is not None and _is_copy(made, contents) else None

    def _end(self, shard_id: str) -> None:
        """End a shard that gets no name, if it has a log."""
        ending = Ending(self._place.stores, self._env, self._config, shard_id)
        if self._place.stores.log.head(shard_id) is not None:
            ending.drop(force=True)
            ending.remove()

    def _begun(self, folder: str, upload_age_ms: int) -> str:
        """The id of the shard that an interrupted run has begun, or a fresh one, which is noted.

        Objects of a shard without a log are removed when they are old, and so is a shard without a name. Then
        its id cannot be used any more.
        """
        stores, young_ms = self._place.stores, self._env.clock.now_ms() - upload_age_ms // SHARE
        for mark in list(stores.blobs.list(folder)):
            id_ = mark.name.removeprefix(folder)
            parts = stores.blobs.list(names.parts(id_))
            newest_ms = max([mark.modified_ms, *(info.modified_ms for info in parts)])
            if newest_ms < young_ms:
                continue
            if stores.log.head(id_) is None or History(id_, stores, self._env).is_alive():
                return id_
        id_ = self._env.ids.fresh()
        stores.blobs.put(f"{folder}{id_}", b"a copy is being made\n")
        return id_

    def _collect(self, shard: Shard) -> None:
        """Remove what earlier runs have replaced, once it is old enough, and tables that show erased rows."""
        state, now_ms = shard.known(), self._env.clock.now_ms()
        before_ms = now_ms - state.agreed.garbage_ms(now_ms)
        try:
            publications.withdraw_erased(shard)
            if state.doomed or any(lost.removed_ms <= before_ms for lost in state.garbage.values()):
                Collector(shard).run()
        except (StoreUnavailable, OutcomeUnknown, Closed, CollectionDropped):
            # The copy is as it should be, and the next run tries again.
            self._env.failed("copy.collect.failed")

    def _tell(self, name: str, done: int, total: int) -> None:
        if self._watch is not None:
            with self._lock:
                self._watch(name, done, total)


def _has(there: Shard | TidelakeError | None, contents: str) -> bool:
    """Whether a collection of the target is a copy with these contents."""
    return isinstance(there, Shard) and _is_copy(there.known(), contents)


def _is_copy(state: ShardState, contents: str) -> bool:
    record = CopyRecord.of(state)
    return record is not None and record.contents == contents


def _is_gone(shard: Shard) -> bool:
    """Whether a shard was dropped."""
    try:
        shard.alive()
    except CollectionNotFound:
        return True
    return False


def _newer(name: str, known: ShardState, source: Shard, state: ShardState, contents: str) -> bool:
    """Whether a state of the source has more than a collection of the target, which must be its copy."""
    record = CopyRecord.of(known)
    if record is None or record.source != state.shard_id:
        what = "no copy of it" if record is None else "a copy of another collection"
        raise CollectionExists(
            f"a collection {name!r} exists there and is {what}: give the new one another name, or rename or "
            "drop that one (delete=True, --delete, drops copies of what was dropped at the source)"
        )
    if record.is_own(known):
        raise CollectionExists(
            f"the copy {name!r} was written to since it was made, and a newer state would undo that: rename "
            "it to keep it, or drop it, and copy again"
        )
    if record.contents == contents:
        return False
    if state.seqno < record.seqno and source.alive().seqno < record.seqno:
        raise CollectionExists(
            f"the copy {name!r} is of version {record.seqno}, and its source is at version {state.seqno}: "
            "the source has lost what was written since; rename the copy to keep it, and copy again"
        )
    # Another run may have copied a later moment meanwhile.
    return record.seqno <= state.seqno and known.upper <= state.upper


def _possible(moved: Mapping[str, str], taken: set[str]) -> dict[str, str]:
    """The renames whose new names are free, or become free by the others."""
    left = dict(moved)
    while True:
        stuck = [old for old, new in left.items() if new in taken and new not in left]
        if not stuck:
            return left
        for old in stuck:
            del left[old]


def _check(failed: Mapping[str, TidelakeError], wanted: int) -> None:
    """Raise the first error, which names the others."""
    if not failed:
        return
    (name, error), *others = sorted(failed.items())
    error.add_note(f"{wanted - len(failed)} of {wanted} collections were copied; {name!r} was not")
    for other, why in others:
        error.add_note(f"{other!r} was not copied: {why}")
    raise error
