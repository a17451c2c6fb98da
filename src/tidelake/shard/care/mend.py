"""Repairs a shard whose newest states break rules, whose parts are gone, or whose log has bad entries.

Owns the plan (which state is used, what is set aside) and its order: first copies of everything that is set
aside are stored, under names that are never collected; then the repaired state; last one entry of the log,
from which the log continues. Nothing has changed until that entry is in. `tidelake.state.life.mending` makes
the repaired state.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import blake2b

from tidelake.env import Env
from tidelake.errors import BlobExists, BlobNotFound, CorruptionError, InternalError
from tidelake.model import names
from tidelake.shard.care.replay import Replayed, replay, salvaged
from tidelake.shard.engine.history import History, LoadedVersion
from tidelake.state.core import codec
from tidelake.state.core.edits import Delta, Edits, apply, arriving
from tidelake.state.core.erasures import Erasure
from tidelake.state.core.invariants import check_state, check_step
from tidelake.state.core.state import ShardState
from tidelake.state.life.mending import Mended, SetAside, mended, not_ours
from tidelake.store.protocols import Entry
from tidelake.store.url import Stores

_ERASURE = re.compile(rb'"([0-9a-f]{32})":\{"reason":')


@dataclass(frozen=True)
class Plan:
    """How a shard can be repaired.

    Attributes:
        before: the newest state that could be read, perhaps without some entries.
        after: the repaired state; None if no state that keeps the rules can be made of `before`.
        sound: seqno of the last state that kept the rules; None: there is none.
        own: names of parts of other shards that are copied for this one, with the names of the copies.
    """

    before: ShardState
    after: ShardState | None
    aside: tuple[SetAside, ...] = ()
    left_out: tuple[Entry, ...] = ()
    sound: int | None = None
    own: dict[str, str] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Number of updates that are set aside, as far as the descriptions of parts tell."""
        return sum(one.rows for one in self.aside)


class Mending:
    """Plans and carries out the repair of one shard."""

    def __init__(self, shard_id: str, stores: Stores, env: Env) -> None:
        self._id, self._stores, self._env = shard_id, stores, env

    def plan(self, replayed: Replayed, lost: frozenset[str]) -> Plan | None:
        """Plan the repair; None if no state at all can be read. Writes nothing.

        Reads the log once more, and checks each whole state.
        """
        leaving_out = salvaged(self._id, self._stores, keeping_rules=False)
        state = replayed.state or leaving_out.state
        if state is None:
            return None
        left_out = () if replayed.state is not None else leaving_out.left_out
        found = self._planned(state, lost, left_out, leaving_out.sound)
        if found.after is not None:
            return found
        # A finer repair is not possible: take the last sound state, and later entries that keep the rules.
        fallback = salvaged(self._id, self._stores, keeping_rules=True)
        if fallback.state is None or not fallback.keeps_rules:
            return found
        return self._planned(fallback.state, lost, fallback.left_out, leaving_out.sound)

    def _planned(
        self, state: ShardState, lost: frozenset[str], left_out: tuple[Entry, ...], sound: int | None
    ) -> Plan:
        own = {part.name: self._fresh(state) for part in not_ours(state) if part.name not in lost}
        own = {name: copy for name, copy in own.items() if self._is_there(name)}
        again, unknown = _erasures_in(left_out, state)
        try:
            made = mended(replace(state, erasures=state.erasures.update(again)), lost, own)
            check_state(made.state)
        except (InternalError, ValueError) as error:
            return Plan(state, None, (SetAside("rule-broken", str(error)),), left_out, sound)
        aside = (*made.aside, *self._of_entries(left_out, made))
        aside += tuple(unknown)
        return Plan(state, made.state, aside, left_out, sound, own)

    def _fresh(self, state: ShardState) -> str:
        return names.part(self._id, state.seqno, self._env.ids.fresh())

    def _is_there(self, name: str) -> bool:
        return any(info.name == name for info in self._stores.blobs.list(name))

    def _of_entries(self, entries: tuple[Entry, ...], made: Mended) -> Iterator[SetAside]:
        """The things to set aside because entries are left out: the entries, and the parts that they add."""
        named = {part.name for part in made.state.parts()}
        for entry in entries:
            name = f"{self._id}@{entry.seqno}"
            edits = _edits_of(entry, name)
            what = f"entry {name} of {len(entry.data)} bytes"
            if edits is None:
                what += ", which cannot be read: if it noted an erasure, erase these keys again"
            yield SetAside("log-entry", what)
            for part in (part for one in edits or () for part in arriving(one)):
                first, last = part.seen_times
                what = f"part {part.name} of {part.rows} updates at times {first} to {last}, of entry {name}"
                yield SetAside("log-entry", what, part, part.name in named)

    def carry_out(self, plan: Plan) -> bool:
        """Carry out a plan; False if the shard was written to since the plan was made.

        Stores copies of what is set aside, and the repaired state, and then writes one log entry.
        """
        after = plan.after
        if after is None:
            return False
        for name, copy in plan.own.items():
            self._copy(name, copy)
        self._store_aside(plan)
        history = History(self._id, self._stores, self._env)
        rollup = history.write_rollup(after)
        now_ms = max(self._env.clock.now_ms(), after.committed_ms)
        edits = Edits(rollup=rollup, mended=True, dropped=after.dropped)
        delta = Delta(self._id, after.seqno + 1, now_ms, self._env.ids.fresh(), rollup, edits)
        made = apply(after, delta)
        check_step(after, made, edits)
        if history.commit(LoadedVersion(after, 0), delta, made) is None:
            self._stores.blobs.delete(names.rollup(self._id, rollup.seqno, rollup.id))
            return False
        return True

    def bring_back(self) -> bool:
        """Repair a shard so that it opens, whatever that sets aside; False if this is not possible."""
        replayed = replay(self._id, self._stores, lambda *_: None)
        if replayed.state is not None and replayed.keeps_rules and replayed.rollup_ok:
            return True
        plan = self.plan(replayed, frozenset())
        return plan is not None and self.carry_out(plan)

    def _store_aside(self, plan: Plan) -> None:
        """Store copies of what is set aside, and the state before the repair.

        Under names that follow from the plan: a repair that died has stored the same objects.
        """
        told = "".join(f"{one.rule}: {one.what}\n" for one in plan.aside).encode()
        id_ = blake2b(told, digest_size=16).hexdigest()

        def name(what: str) -> str:
            return names.aside(self._id, plan.before.seqno, id_, what)

        self._put(name("what.txt"), told)
        self._put(name("state"), codec.encode_state(plan.before))
        for entry in plan.left_out:
            self._put(name(f"entry-{entry.seqno}"), entry.data)
        for one in plan.aside:
            if one.part is not None and one.part.inline is None and not one.doubled:
                self._copy(one.part.name, name(one.part.name.rpartition("/")[2]))

    def _copy(self, source: str, target: str) -> None:
        # If it is gone, that is why it is set aside.
        with suppress(BlobNotFound):
            self._put(target, self._stores.blobs.get(source))

    def _put(self, name: str, data: bytes) -> None:
        with suppress(BlobExists):
            self._stores.blobs.put(name, data)


def _edits_of(entry: Entry, name: str) -> tuple[Edits, ...] | None:
    """The steps of an entry; None if it cannot be read."""
    try:
        return codec.decode_delta(entry.data, name).steps
    except CorruptionError:
        return None


def _erasures_in(entries: Iterable[Entry], state: ShardState) -> tuple[dict[str, Erasure], list[SetAside]]:
    """The erasures that a state forgets without some entries: those whose keys are known, and the others.

    A state that knows of an erasure has it carried out, or will.
    """
    found: dict[str, Erasure] = {}
    for entry in entries:
        for edits in _edits_of(entry, "") or ():
            for id_, one in edits.erasures.items():
                keys = one.keys or (found[id_].keys if id_ in found else ())
                found[id_] = Erasure(one.reason, one.count, one.asked_ms, keys)
    forgotten = {id_: one for id_, one in found.items() if id_ not in state.erasures}
    lost = {
        id_: f"erasure {id_} ({one.reason}) of {one.count} keys"
        for id_, one in forgotten.items()
        if not one.keys
    }
    for entry in entries:
        # A damaged entry is still a text, mostly.
        at = entry.data.find(b'"erasures":')
        if at >= 0 and _edits_of(entry, "") is None:
            for id_ in [one.decode() for one in _ERASURE.findall(entry.data, at)] or [""]:
                if id_ not in state.erasures and id_ not in forgotten:
                    lost.setdefault(id_, f"erasure {id_} of the damaged entry {entry.seqno}")
    remedy = "its rows may be back, and its keys cannot be read: erase them again"
    return (
        {id_: one for id_, one in forgotten.items() if one.keys},
        [SetAside("erasure-lost", f"{what}: {remedy}") for what in lost.values()],
    )
