"""Erasure: the rows of some keys leave a collection and its forks at all times, and their bytes go too."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from tidelake.data.ingest.keyvalues import key_maker
from tidelake.data.keys.keyset import KeySet
from tidelake.errors import BlobNotFound, CorruptionError, IncompatibleSchema, UsageError
from tidelake.lake.api.handle import CollectionHandle
from tidelake.lake.catalog.catalog import Catalog
from tidelake.shard.engine.shard import Shard
from tidelake.shard.reading.lookup import keys_of
from tidelake.state.core.erasures import Erasure
from tidelake.state.core.owned import is_owner, owner_of
from tidelake.state.core.state import ShardState
from tidelake.state.core.writername import WriterName
from tidelake.tabletext import FieldsAsHtml

_REASON_MAX = 500
_TRIES = 3


@dataclass(frozen=True, repr=False)
class ErasureReport(FieldsAsHtml):
    """What an erasure did, and what it cannot reach.

    Attributes:
        id: of the erasure; the forks have it under the same id. Empty if no key was given.
        keys: how many different keys were given.
        updates: how many updates were taken out of the collection, at all times; 0 also if another erasure
            was carried out by the same commit, which then has the number.
        parts: how many parts were replaced or removed for that.
        forks: ids of the forks in which the same keys were erased.
        seqno: of the first state of the collection without the rows.
        collect_ms: wall clock from which on `collect` and maintenance delete the bytes.
        latest_ms: wall clock by which abandoned uploads from before are old enough to be deleted as well.
        remains: what may still have the rows, for people; the lake cannot reach it.
    """

    id: str
    keys: int
    updates: int = 0
    parts: int = 0
    forks: tuple[str, ...] = ()
    seqno: int = 0
    collect_ms: int = 0
    latest_ms: int = 0
    remains: tuple[str, ...] = ()


class Erasing(CollectionHandle):
    """Methods of a collection that take rows away for good."""

    def erase(self, keys: object, *, reason: str) -> ErasureReport:
        """Erase the rows of some keys, of all times, here and in the forks, as a person may ask for.

        The forks are all that `Lake.fork` made of the collection or of its forks, but for those of an earlier
        version (`to_seqno`).

        One commit takes them out of every time, slice, base and staged batch; answers about other keys stay
        as they are at every time. Reads that begin after it do not see the rows. Reads that have begun end
        as they began, or get `LeaseExpired` once `garbage_age_s` has passed; that is when the objects and log
        entries that held the rows are deleted, by `collect` and by maintenance. Rows with these keys that are
        appended after that commit are new rows, and stay. A collection in a group leaves it and comes back:
        transactions that are under way with it begin again.

        A process that dies leaves the erasure in the collection's state, and maintenance carries it out. The
        keys are in the state until then, and only so long. `reason` and the number of keys stay: name no
        person there.

        Args:
            keys: as for `lookup`, with all key columns.
            reason: why, such as the number of a ticket; at most 500 characters.

        Returns:
            What was done, by when the bytes go, and what the lake cannot reach. Costs a read of each part
            that may have such rows, a write of each part that has some, a rollup, and a few log writes; the
            same for each fork.

        Raises:
            UsageError: the keys take more than 1 MiB encoded (about 100,000 integers); a stream holds events
                back that may be about these keys; or an argument is wrong. Nothing has changed.
            InvalidUpdates: a key is not valid; names the column and the row.
            ErasureWaits: it is noted, and maintenance will carry it out: a fork is being made.
        """
        from tidelake.shard.upkeep.eraser import Eraser, ask

        _check_reason(reason)
        shard, id_ = self._shard, self._shard.env.ids.fresh()
        made = key_maker(keys)
        while True:
            spec = shard.version().spec
            given = keys_of(made(spec.schema), spec)
            if not given.num_rows:
                return ErasureReport("", 0)
            _check_held_back(shard, given)
            encoded = tuple(KeySet.of(given, spec.schema).keys.to_pylist())
            erasure = Erasure(reason, len(encoded), shard.env.clock.now_ms(), encoded)
            try:
                ask(shard, id_, erasure, spec.schema_id)
                break
            except IncompatibleSchema:
                # The columns have changed since: the keys may be others.
                continue
        forks = Eraser(shard).run_with_forks()
        return _report(shard.known(), id_, forks, _views(shard))

    def erasures(self) -> dict[str, Erasure]:
        """The erasures that were asked for, by id: why, when, how many keys, and how far they are.

        `gone_ms` is set once maintenance has found no object and no log entry with the rows. One log scan.
        """
        return dict(self.state().erasures)


def _check_held_back(shard: Shard, keys: pa.Table) -> None:
    """Refuse keys of which a stream may hold events back: they would be rows after the erasure.

    Reads what streams into the collection, or into others of its group, hold back.

    Raises:
        UsageError: there may be such events; names the writer of the stream.
        CorruptionError: what is held back is gone, or cannot be read.
    """
    from tidelake.data.keys.mentions import lines_in, may_mention

    for _ in range(_TRIES):
        try:
            for writer, held in _held_back(shard):
                if may_mention(lines_in(held), keys):
                    raise UsageError(
                        f"the stream of writer {writer!r} holds events back until their transaction ends, "
                        "and some may be about these keys: they would come after the erasure. Delete the "
                        "rows at the source, let the stream go on past that, and erase then"
                    )
            return
        except BlobNotFound as error:
            # The stream has gone on since, unless it is damaged.
            gone = error.name
    raise CorruptionError(gone, "a stream holds events back in it, and it is gone: tidelake fsck tells more")


def _held_back(shard: Shard) -> Iterator[tuple[str, bytes]]:
    """What each writer holds back, in Arrow's stream format; newest state."""
    from tidelake.state.write.heldback import StreamContent, as_stored, objects_of

    group = shard.grouped()
    states = [shard.version().state, *(() if group is None else (group,))]
    for state in states:
        for writer, record in state.writers.items():
            name = WriterName.of(writer).name if group is not None and state is group else writer
            if rows := StreamContent.of(record.content).rows:
                yield name, rows
            for stored in objects_of(state, writer):
                yield name, as_stored(stored, shard.stores.blobs.get(stored))


def _check_reason(reason: object) -> None:
    if not isinstance(reason, str) or not reason.strip() or len(reason) > _REASON_MAX:
        raise UsageError(f"reason={reason!r} must be a text of 1 to {_REASON_MAX} characters")


def _views(shard: Shard) -> list[str]:
    """The names of the views that are made of a collection."""
    holds = shard.known().critical
    if not any(map(is_owner, holds)):
        return []
    names = Catalog(shard.stores, shard.env, shard.spec.url, shard.spec.config).names()
    return [name for name, id_ in zip(names.names, names.shards, strict=True) if owner_of(id_) in holds]


def _report(state: ShardState, id_: str, forks: tuple[str, ...], views: Sequence[str]) -> ErasureReport:
    from tidelake.state.life.copying import CopyRecord

    done = state.erasures[id_]
    remains = [
        *(f"view {name!r}, and what was made of it: lake.rebuild({name!r})" for name in views),
        "copies that Lake.copy made, and their forks: copy again, which replaces the rows, and erase in the "
        "forks",
        "forks that were made of an earlier version (to_seqno): erase there",
        "backups and versions of files or objects that are kept outside of the lake",
        "what repairs have set aside below blobs/<shard>/aside/: remove it by hand",
        "exports and results that were read before",
        "checkpoints of arrangements, until the next restore or save in their directory removes them",
        "memory and temporary files of processes that have the collection open, until they end",
    ]
    if CopyRecord.of(state) is not None:
        remains.insert(
            0, "the collection that this one is a copy of: erase there, or a copy brings rows back"
        )
    if state.origin is not None:
        remains.insert(
            0, f"the collection {state.origin.shard_id} that this one was forked from: erase there"
        )
    return ErasureReport(
        id_,
        done.count,
        done.rows,
        done.parts,
        forks,
        done.seqno,
        done.erased_ms + state.agreed.garbage_ms(done.erased_ms),
        done.erased_ms + state.agreed.upload_ms(done.erased_ms) * 3 // 2,
        tuple(remains),
    )
