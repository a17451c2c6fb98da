"""Finds leftover objects of a shard: objects in the store that its state does not name, and that are too old.

Owns the judgement of a listing; must not delete. The listing is older than the state that it is compared
with, so each object is looked up again before it is reported: a collector may have removed it.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from tidelake.model import names
from tidelake.shard.care.finding import Tell
from tidelake.shard.care.partchecks import named_parts
from tidelake.state.core.forks import fork_pins
from tidelake.state.core.state import FIRST, ShardState
from tidelake.state.life.holds import reader_pins
from tidelake.store.protocols import BlobInfo, BlobStore


@dataclass(frozen=True)
class Leftover:
    """An object that no state names."""

    kind: str
    name: str
    message: str
    removable: bool


def leftovers(state: ShardState, listed: Iterable[BlobInfo], blobs: BlobStore, now_ms: int) -> list[Leftover]:
    """The leftover objects of a shard. A listing of one name for each of them."""
    named = {part.name for part in named_parts(state)}
    named |= {*state.garbage, *state.doomed}
    if state.rollup != FIRST:
        named.add(names.rollup(state.shard_id, state.rollup.seqno, state.rollup.id))
    before_ms = now_ms - state.agreed.upload_ms(now_ms)
    found = (_judged(info, state, before_ms) for info in listed if info.name not in named)
    return [left for left in found if left is not None and any(True for _ in blobs.list(left.name))]


def _judged(info: BlobInfo, state: ShardState, before_ms: int) -> Leftover | None:
    age = f"no state names it; {info.size_bytes} bytes"
    old = info.modified_ms < before_ms
    uploaded = names.uploaded_at(info.name)
    if uploaded is not None:
        if uploaded > state.seqno:
            message = f"its name says state {uploaded}, but the log ends at {state.seqno}: entries were lost"
            return Leftover("log-behind", info.name, message, False)
        if uploaded < state.sweep.floor:
            return Leftover("leaked-part", info.name, f"{age}, of an abandoned upload", True)
        return Leftover("leaked-part", info.name, f"{age}, of an old upload", False) if old else None
    rolled_up = names.rolled_up_at(info.name)
    if rolled_up is not None and rolled_up <= state.rollup.seqno:
        return Leftover("leaked-rollup", info.name, f"{age}, and a newer rollup exists", True)
    if rolled_up is not None:
        return Leftover("leaked-rollup", info.name, age, False) if old else None
    kept = names.is_aside(info.name) or names.is_published(info.name)
    if kept or names.held_digest(info.name) is not None:
        return None
    return Leftover("unknown-object", info.name, "Tidelake gives no object a name like this", False)


def tell_aside(listed: Iterable[BlobInfo], tell: Tell) -> None:
    """Report what repairs have set aside. It stays until the collection is dropped or a user removes it."""
    found: dict[str, int] = {}
    for info in listed:
        if names.is_aside(info.name):
            folder = info.name.rpartition("/")[0]
            found[folder] = found.get(folder, 0) + 1
    for folder, count in sorted(found.items()):
        tell(
            "kept-aside", folder, f"{count} objects that a repair has set aside; what.txt says what they are"
        )


def pinned(state: ShardState, now_ms: int) -> set[str]:
    """The garbage that readers and forks need."""
    pins = [*reader_pins(state, now_ms), *fork_pins(state)]
    return {name for name, lost in state.garbage.items() if any(lost.read_by(pin) for pin in pins)}


def tell_garbage(state: ShardState, listed: Iterable[BlobInfo], now_ms: int, tell: Tell) -> None:
    """Report garbage that is old enough to be deleted and still exists."""
    needed = pinned(state, now_ms)
    before_ms = now_ms - state.agreed.garbage_ms(now_ms)
    aged = {name for name, lost in state.garbage.items() if lost.removed_ms < before_ms}
    if old := (aged - needed) & {info.name for info in listed}:
        message = f"{len(old)} objects that are no longer needed could be removed: tidelake maintain does it"
        tell("old-garbage", state.shard_id, message)


def tell_erasures(state: ShardState, tell: Tell) -> None:
    """Report erasures that are not complete: rows that are still in, and bytes that may still be stored."""
    for id_, one in () if state.dropped else sorted(state.erasures.items()):
        what = f"the rows of {one.count} keys ({one.reason})"
        if one.pending:
            tell("erasure-pending", id_, f"{what} are to be erased, and still there: run tidelake maintain")
        elif not one.gone_ms:
            tell(
                "erased-bytes",
                id_,
                f"{what} are erased; bytes of them go with the garbage: tidelake maintain. Remove what "
                "repairs have set aside by hand",
            )
