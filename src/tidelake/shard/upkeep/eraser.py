"""Carries out erasures: takes the rows of some keys out of a shard and of its forks, at all times.

Owns the order of the steps. First the forks are asked, and remember the erasure in their own states. Then
each run that may have such rows is read, and the parts with some are written without them. One commit puts
all of them in. It is refused if anything was added or merged meanwhile; then only that is looked at. A
process that dies leaves the erasure in the state, and the next one that maintains the shard begins it again.
The parts that it had written are deleted like other uploads that came to nothing.

A collection in a group leaves it right before that commit, and comes back after it: so the commit sees all
that the group has decided, and what was read before it is not written after it.

After that commit no read that begins sees the rows. The objects that held them are garbage: the collector
deletes them, and the log entries with keys or rows, once they are as old as garbage may be.

INVARIANT: no state has some of the rows of a key in such an erasure, and not the others.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelake.data.kernel.types import update_schema
from tidelake.data.keys.keyset import KeySet, searchable
from tidelake.errors import (
    CollectionDropped,
    CollectionInGroup,
    CollectionNotFound,
    ErasureWaits,
    LeftGroup,
    UpperMismatch,
)
from tidelake.model.batch import Part, Run
from tidelake.model.frontier import Frontier
from tidelake.model.query import Updates
from tidelake.shard.engine.history import History
from tidelake.shard.engine.shard import Shard
from tidelake.shard.engine.spec import ShardSpec
from tidelake.shard.runs.read import Source, rows
from tidelake.shard.runs.scope import Scope
from tidelake.shard.runs.upload import discard, write_rows, write_run
from tidelake.shard.upkeep import publications
from tidelake.shard.upkeep.drainer import Drainer
from tidelake.shard.upkeep.parting import free, join, part
from tidelake.state.core.erasures import Erasure
from tidelake.state.core.state import ShardState
from tidelake.state.group import joining
from tidelake.state.life import erasing
from tidelake.state.life.erasing import ErasedRuns, names_of, pending


def ask(shard: Shard, id_: str, erasure: Erasure, schema_id: int | None = None) -> bool:
    """Note an erasure in a shard, which lasts. Whether it is new. One log write."""
    # Alone: the entry of the log has the keys, and nothing that is needed later.
    return shard.run(partial(erasing.ask, id_=id_, erasure=erasure, schema_id=schema_id), alone=True)


class Eraser:
    """Carries out the erasures of one shard, and of its forks."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard

    def run(self) -> int:
        """Carry out all erasures that were asked for; returns how many there were.

        Costs a read of each run that may have such rows, a write of each part that does, and two log writes
        and a rollup. Nothing if there is none: the state that is known says so.
        """
        done = 0
        while ids := tuple(pending(self._shard.known())):
            done += len(ids) if self._erase(ids) else 0
        if done:
            self._shard.env.recorder.count("erase", done)
            publications.withdraw_erased(self._shard)
            # A rollup without the keys and rows, from which on the log is kept.
            self._shard.write_rollup()
        return done

    def _erase(self, ids: tuple[str, ...]) -> bool:
        """Carry out some erasures; False if another process has done so, or asked for others."""
        made, asked, left = ErasedRuns(ids, {}, {}), set[str](), ""
        while True:
            Drainer(self._shard).run()
            state = self._shard.state()
            erasures = pending(state)
            if state.dropped or tuple(erasures) != ids:
                # Whatever was written here was refused on a newest state, so no state names it.
                if made.fresh:
                    discard(self._shard.stores.blobs, self._shard.env, [Run(tuple(made.fresh))])
                return False
            for id_ in sorted(state.forks.keys() - asked):
                self._ask_fork(id_, erasures)
                asked.add(id_)
            made = self._looked(state, erasures, replace(made, forks=frozenset(asked)))
            if state.group:
                # Last: others may let it join again at any moment.
                left = state.group
                self._leave(left)
            # Alone: no other step's rows are in the entry of the log that has no rows of the keys any more.
            elif self._shard.run(partial(erasing.erase, made=made), alone=True):
                self._come_back(left)
                return True

    def _leave(self, group: str) -> None:
        try:
            part(self._opened(group), self._shard.spec.shard_id, self._shard)
        except CollectionNotFound:
            free(self._shard, group)

    def _come_back(self, group: str) -> None:
        """Join a group again, unless it ended or something has happened to the collection meanwhile."""
        if not group:
            return
        id_ = self._shard.spec.shard_id
        try:
            there = self._opened(group)
            join(there, self._shard, there.run(partial(joining.admit, members=(id_,)))[id_])
        except (CollectionNotFound, CollectionInGroup, LeftGroup, UpperMismatch):
            # The rows are out. The collection is as after `lake.leave`.
            self._shard.env.recorder.count("erase.group.left")

    def _ask_fork(self, id_: str, erasures: dict[str, Erasure]) -> None:
        """Let a fork remember the erasures; if it was dropped, its forks remember them."""
        for fork in self._living(id_):
            state, now_ms = fork.known(), self._shard.env.clock.now_ms()
            if not state.seqno and state.committed_ms + state.agreed.upload_ms(now_ms) > now_ms:
                # It has no name yet: a step of ours would make it look finished.
                raise ErasureWaits(self._shard.title, f"its fork {id_} is being made: wait until it is")
            try:
                for erasure_id, erasure in erasures.items():
                    ask(fork, erasure_id, erasure)
            except CollectionDropped:
                # It was dropped since.
                self._ask_fork(fork.spec.shard_id, erasures)

    def run_with_forks(self) -> tuple[str, ...]:
        """`run`, here and then in the forks, which were asked by it, and in theirs; returns their ids."""
        self.run()
        found: list[str] = []
        for id_ in sorted(self._shard.known().forks):
            for fork in self._living(id_):
                found += [fork.spec.shard_id, *Eraser(fork).run_with_forks()]
        return tuple(found)

    def _living(self, id_: str) -> Iterator[Shard]:
        """A fork; instead of a dropped one its forks, which have its contents; none if it is not there."""
        try:
            fork = self._opened(id_)
        except CollectionDropped:
            known = History(id_, self._shard.stores, self._shard.env).open()
            for below in sorted(known.state.forks) if known is not None else ():
                yield from self._living(below)
        except CollectionNotFound:
            # It was not created, or is gone. A process that creates it looks at this shard afterwards, and
            # then gives it up.
            self._shard.env.recorder.count("erase.fork.gone")
        else:
            yield fork

    def _opened(self, id_: str) -> Shard:
        shard = self._shard
        return Shard.open(
            shard.stores, shard.env, shard.spec.url, id_, shard.spec.config, renewer=shard.renewer
        )

    def _looked(self, state: ShardState, erasures: dict[str, Erasure], made: ErasedRuns) -> ErasedRuns:
        """`made`, with all runs and bases of the state that were not looked at yet."""
        spec = self._shard.version_of(state).spec
        keys = KeySet(
            pc.unique(pa.array(sorted(k for one in erasures.values() for k in one.keys), pa.binary()))
        )
        look = _Look(self._shard, spec, keys)
        runs, bases = dict(made.runs), dict(made.bases)
        made = replace(made, runs=runs, bases=bases)
        for _, run in erasing.runs_of(state):
            if names_of(run) not in runs:
                runs[names_of(run)] = look.without(run, whole=erasing.borrows(state, run))
        for base in state.bases:
            for run in base.runs:
                if names_of(run) not in bases:
                    bases[names_of(run)] = erasing.borrows(state, run) or any(map(look.holds, run.parts))
        return made


@dataclass(frozen=True)
class _Look:
    """Looks for the rows of some keys in runs of a shard."""

    shard: Shard
    spec: ShardSpec
    keys: KeySet

    def without(self, run: Run, *, whole: bool) -> tuple[Part, ...]:
        """The parts of a run without the rows of the keys; those that have none stay, unless `whole`."""
        found = [self.holds(part) for part in run.parts]
        if not any(found) and not whole:
            return run.parts
        one = all(part.schema_id == self.spec.schema_id and part.rewrite is None for part in run.parts)
        if whole or not one:
            # The parts do not follow one another any more if only some have the newest columns.
            return self._written(run.parts)
        return tuple(
            part
            for old, held in zip(run.parts, found, strict=True)
            for part in (self._written((old,)) if held else (old,))
        )

    def holds(self, part: Part) -> bool:
        """Whether a part has a row with one of the keys."""
        if not Scope(self.spec, among=self.keys).may_hold(part):
            return False
        return any(batch.num_rows for batch in self._read((part,), self.keys))

    def _read(self, parts: tuple[Part, ...], among: KeySet | None = None) -> Iterator[pa.RecordBatch]:
        """All stored rows of some parts of a run, also those that a truncated run hides."""
        everything = Updates(self.shard.known().minimum, Frontier())
        source = Source(Run(parts), self.shard.known().minimum, Frontier())
        return rows(self.spec, self.shard.stores.blobs, [source], everything, among=among)

    def _written(self, parts: tuple[Part, ...]) -> tuple[Part, ...]:
        """New parts with the rows of some neighbouring parts that have none of the keys."""
        spec, blobs, env = self.spec, self.shard.stores.blobs, self.shard.env
        kept = map(self._without, self._read(parts))
        if all(part.inline is not None for part in parts):
            table = pa.Table.from_batches(kept, update_schema(spec.schema, spec.domain))
            room = sum(len(part.inline or b"") for part in parts)
            run = write_rows(spec, blobs, env, table, inline_bytes_max=room)
        else:
            run = write_run(spec, blobs, env, (batch for batch in kept if batch.num_rows))
        return () if run is None else run.parts

    def _without(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not batch.num_rows:
            return batch
        places = self.keys.places(searchable(batch, self.spec.schema))
        if places is None:
            return batch.slice(0, 0)
        stays = np.ones(batch.num_rows, np.bool_)
        stays[places.to_numpy()] = False
        return batch if stays.all() else batch.filter(pa.array(stays))
