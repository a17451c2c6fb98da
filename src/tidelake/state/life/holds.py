"""Holds: which readers keep history and parts, for how long, and what `since` follows from that.

A leased hold ends when its reader has not renewed it in time, by the wall clock of the next commit. A
critical hold lasts until it is dropped. No command moves `since`: `settle` runs for every commit, and sets it
to the meet of what the owner allows and what all holds keep.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from tidelake.errors import CollectionDropped, HistoryCompacted, LeaseExpired, UsageError
from tidelake.model.frontier import Frontier
from tidelake.model.frozen import with_fields
from tidelake.state.core.commands import Commit, NoOp, Outcome, Refused
from tidelake.state.core.edits import Edits
from tidelake.state.core.fields import Move
from tidelake.state.core.state import CriticalHold, Hold, Retention, ShardState

H = TypeVar("H")

ENDLESS_MS = 100 * 365 * 86_400_000
"""The lease of a hold that lasts until it is closed: a hundred years."""


def settle(state: ShardState, edits: Edits, now_ms: int) -> Edits:
    """The edits of a commit, with all that follows from them and from the clock. Costs O(holds).

    Expired holds end, `retained` follows `upper` as the retention says, and `since` follows both, but never
    past the last closed time, so that there is a time to read.
    """
    if state.dropped or edits.dropped:
        return edits
    leased: Mapping[str, Hold | None] = edits.holds
    if state.holds:
        held = state.holds.items()
        over = [id_ for id_, hold in held if hold.expires_ms <= now_ms and id_ not in edits.holds]
        leased = {**edits.holds, **dict.fromkeys(over)}
    upper = edits.upper.after if edits.upper else state.upper
    retained = edits.retained.after if edits.retained else state.retained
    retention = edits.retention or state.retention
    if retention.window is not None:
        retained = _kept(retained, upper, retention.window)
    target = retained
    for hold in _changed(state.holds, leased):
        target = target.meet(hold.since)
    for critical in _changed(state.critical, edits.critical):
        target = target.meet(critical.since)
    since = state.since.join(target)
    if since.elements != state.since.elements:
        since = _readable(state, since, upper)
    return with_fields(
        edits,
        holds=leased,
        retained=None if retained.elements == state.retained.elements else Move(state.retained, retained),
        since=None if since.elements == state.since.elements else Move(state.since, since),
    )


def readable(since: Frontier, upper: Frontier) -> bool:
    """Whether a closed time is at or after `since`. A closed `since` needs none."""
    return since.closed or any(not upper.less_equal(t) for t in since)


def _readable(state: ShardState, since: Frontier, upper: Frontier) -> Frontier:
    """`since`, or how far it can go now: what is allowed may be past `upper`."""
    if readable(since, upper):
        return since
    if state.domain.total_order:
        return state.since.join(since.meet(upper.just_before()))
    # With tuples there is no last closed time, and several calls together may allow more than is closed.
    return state.since


def _kept(retained: Frontier, upper: Frontier, window: int) -> Frontier:
    """`retained`, or the start of the window of history that the retention keeps, if that is later."""
    times = [t for t in upper if isinstance(t, int)]
    return retained.join(Frontier.of(max(0, times[0] - window))) if times else retained


def _changed(present: Mapping[str, H], edits: Mapping[str, H | None]) -> Iterable[H]:
    """The values of a map after an edit."""
    if not edits:
        return present.values() if present else ()
    return [one for one in {**present, **edits}.values() if one is not None]


def reader_pins(state: ShardState, now_ms: int) -> list[int]:
    """The versions that readers read, while their holds last."""
    return [pin for hold in state.holds.values() if now_ms < hold.expires_ms for pin in hold.pins]


def end_expired_holds(state: ShardState, now_ms: int) -> Outcome[None]:
    """Let `since` follow the clock when there are no other commits."""
    return NoOp(None) if settle(state, Edits(), now_ms) == Edits() else Commit(Edits(), None)


def open_hold(
    state: ShardState,
    now_ms: int,
    hold_id: str,
    purpose: str,
    *,
    lease_ms: int,
    since: Frontier | None = None,
    pins: tuple[int, ...] | None = None,
) -> Outcome[Hold]:
    """Keep `since` and the parts of some states."""
    present = state.holds.get(hold_id)
    if present is not None:
        return NoOp(present)
    wanted = _start(state, since)
    if isinstance(wanted, Refused):
        return wanted
    hold = Hold(purpose, wanted, now_ms, (state.seqno + 1,), lease_ms, now_ms + lease_ms)
    if pins is not None:
        if not _intact(state, pins):
            return Refused(LeaseExpired(hold_id))
        hold = replace(hold, pins=tuple(sorted(set(pins))))
    return Commit(Edits(holds={hold_id: hold}), hold)


def _start(state: ShardState, since: Frontier | None) -> Frontier | Refused:
    """Where a new hold starts: at `since`, or at the shard's; or why it cannot start there."""
    if state.dropped:
        return Refused(CollectionDropped(state.shard_id))
    wanted = state.since if since is None else since
    return wanted if state.since <= wanted else Refused(HistoryCompacted(wanted, state.since))


def intact(state: ShardState, hold_id: str, pins: Iterable[int]) -> tuple[int, ...]:
    """Of some seqnos those that a hold can pin: no part that their states name has been doomed."""
    hold = state.holds.get(hold_id)
    held = () if hold is None else hold.pins
    return tuple(pin for pin in pins if pin in held or _intact(state, (pin,)))


def _intact(state: ShardState, pins: Iterable[int]) -> bool:
    """Whether no part that the states of these seqnos name has been doomed."""
    return all(state.collected_to <= pin <= state.seqno for pin in pins)


def renew_hold(
    state: ShardState,
    now_ms: int,
    hold_id: str,
    *,
    since: Frontier | None = None,
    pins: tuple[int, ...] | None = None,
    lease_ms: int | None = None,
) -> Outcome[Hold]:
    """Renew the lease; also move `since` forward, and change pins and lease, where these are given."""
    hold = state.holds.get(hold_id)
    if hold is None:
        return Refused(CollectionDropped(state.shard_id) if state.dropped else LeaseExpired(hold_id))
    if pins is not None and not _intact(state, set(pins) - set(hold.pins)):
        return Refused(LeaseExpired(hold_id))
    lasts_ms = hold.lease_ms if lease_ms is None else lease_ms
    renewed = replace(
        hold,
        since=hold.since.join(since) if since is not None else hold.since,
        pins=hold.pins if pins is None else tuple(sorted(set(pins))),
        lease_ms=lasts_ms,
        expires_ms=max(hold.expires_ms, now_ms + lasts_ms),
    )
    return NoOp(hold) if renewed == hold else Commit(Edits(holds={hold_id: renewed}), renewed)


def extend_hold(state: ShardState, now_ms: int, hold_id: str, *, slack_ms: int) -> Outcome[Hold]:
    """Renew the lease if that was last done more than `slack_ms` ago; otherwise nothing is written."""
    hold = state.holds.get(hold_id)
    if hold is not None and hold.expires_ms - now_ms >= hold.lease_ms - slack_ms:
        return NoOp(hold)
    return renew_hold(state, now_ms, hold_id)


def close_hold(state: ShardState, _now_ms: int, hold_id: str) -> Outcome[None]:
    """End a hold."""
    return Commit(Edits(holds={hold_id: None}), None) if hold_id in state.holds else NoOp(None)


@dataclass(frozen=True)
class Downgraded:
    """The answer to a request to move a critical hold.

    Attributes:
        done: whether the hold now has the caller's token and the requested `since` or a later one.
    """

    done: bool
    hold: CriticalHold


def open_critical(
    state: ShardState, now_ms: int, name: str, *, token: str = "", since: Frontier | None = None
) -> Outcome[CriticalHold]:
    """Return the critical hold of this name, or open it."""
    present = state.critical.get(name)
    if present is not None:
        return NoOp(present)
    wanted = _start(state, since)
    if isinstance(wanted, Refused):
        return wanted
    hold = CriticalHold(wanted, token, now_ms)
    return Commit(Edits(critical={name: hold}), hold)


def compare_and_downgrade_since(
    state: ShardState, _now_ms: int, name: str, expected_token: str, token: str, since: Frontier
) -> Outcome[Downgraded]:
    """Move a critical hold forward, iff it has the expected token; repeating the call succeeds."""
    hold = state.critical.get(name)
    if hold is None:
        return Refused(CollectionDropped(state.shard_id) if state.dropped else _unknown(state, name))
    if hold.token == token and since <= hold.since:
        return NoOp(Downgraded(True, hold))
    if hold.token != expected_token:
        return NoOp(Downgraded(False, hold))
    moved = replace(hold, since=hold.since.join(since), token=token)
    return Commit(Edits(critical={name: moved}), Downgraded(True, moved))


def drop_critical(state: ShardState, _now_ms: int, name: str) -> Outcome[bool]:
    """Drop a critical hold; whether there was one."""
    return Commit(Edits(critical={name: None}), True) if name in state.critical else NoOp(False)


def _unknown(state: ShardState, name: str) -> UsageError:
    known = ", ".join(map(repr, sorted(state.critical))) or "none"
    return UsageError(f"there is no critical hold {name!r} (there is {known}): open it first")


def advance_since(state: ShardState, now_ms: int, since: Frontier) -> Outcome[Frontier]:
    """Allow history before `since` to be given up. Returns the shard's `since`: holds may keep it back."""
    retained = state.retained.join(since)
    if retained == state.retained:
        return NoOp(state.since)
    edits = settle(state, Edits(retained=Move(state.retained, retained)), now_ms)
    return Commit(edits, edits.since.after if edits.since else state.since)


def set_retention(state: ShardState, _now_ms: int, retention: Retention) -> Outcome[None]:
    """Let `retained` follow `upper` at a distance, or stop that."""
    if state.dropped:
        return Refused(CollectionDropped(state.shard_id))
    if retention == state.retention:
        return NoOp(None)
    return Commit(Edits(retention=retention), None)


def pin_versions(
    state: ShardState, now_ms: int, hold_id: str, purpose: str, *, pins: tuple[int, ...]
) -> Outcome[Hold]:
    """Keep the parts of more states under a hold that no time ends, and no history; open it if needed."""
    if any(pin < state.erased for pin in pins):
        return Refused(LeaseExpired(hold_id))
    hold = state.holds.get(hold_id)
    if hold is None:
        return open_hold(state, now_ms, hold_id, purpose, lease_ms=ENDLESS_MS, since=Frontier(), pins=pins)
    wanted = tuple(sorted({*pins, *hold.pins}))
    return NoOp(hold) if wanted == hold.pins else renew_hold(state, now_ms, hold_id, pins=wanted)


def unpin_versions(state: ShardState, now_ms: int, hold_id: str, *, pins: tuple[int, ...]) -> Outcome[Hold]:
    """Let such a hold keep these states, and those after them, which others have pinned since.

    Refused if it has not kept the last of them all the time, if it lets go others though nothing is pinned
    after it, or if one is older than an erasure.
    """
    hold, last = state.holds.get(hold_id), max(pins)
    if hold is None or last not in hold.pins or any(pin < state.erased for pin in pins):
        return Refused(LeaseExpired(hold_id))
    if not set(pins) <= set(hold.pins) and last == max(hold.pins):
        return Refused(LeaseExpired(hold_id))
    wanted = tuple(pin for pin in hold.pins if pin in pins or pin > last)
    return NoOp(hold) if wanted == hold.pins else renew_hold(state, now_ms, hold_id, pins=wanted)
