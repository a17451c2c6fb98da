"""States, deltas and descriptions as bytes, and back. docs/formats.md describes every byte.

A record is one header line `tidelake-<kind> <format> <checksum>` and a JSON body. The checksum covers
kind, format and body. Decoding is strict: a newer format is refused before anything is read, damage
is found by the checksum, and a body that does not encode to the very same bytes again is refused, so
that no field is silently ignored. A checksum does not say who wrote a record, so the names of objects and
files in it are checked (`tidelake.state.namechecks`). JSON (by msgspec) keeps exact integers of any size and
can be read by people.
"""

import hashlib
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, TypeVar

import msgspec
from pyrsistent import pmap, pset

from tidelake.errors import CorruptionError, FormatTooNew, InternalError
from tidelake.model.batch import Part
from tidelake.model.frontier import Frontier
from tidelake.model.names import NoOrPlainName, ObjectName, PlainName
from tidelake.model.schema import SchemaVersion
from tidelake.model.time import TimeDomain
from tidelake.state.agreed import AS_MADE, Agreed
from tidelake.state.bases import Base, Bases, Unpaid
from tidelake.state.edits import Delta, Edits
from tidelake.state.erased import Erasure
from tidelake.state.formats import FIRST, NEWEST, as_stored, has_later
from tidelake.state.garbage import Garbage, Sweep
from tidelake.state.grouped import Decision, Membership
from tidelake.state.invariants import check_state
from tidelake.state.namechecks import check_names, name_check
from tidelake.state.spine import FuelingMerge, Member, Spine, SpineBatch
from tidelake.state.staged import Staged, Staging
from tidelake.state.state import FIRST as FIRST_ROLLUP
from tidelake.state.state import (
    UNSWEPT,
    CriticalHold,
    Fork,
    Hold,
    MergeClaim,
    Origin,
    Retention,
    Rollup,
    ShardState,
    WriterRecord,
    Written,
)
from tidelake.state.taken import indexed

T = TypeVar("T")


@dataclass(frozen=True)
class _Image:
    """A whole state, with plain containers in the order of their keys."""

    shard_id: PlainName
    domain: TimeDomain
    seqno: int
    committed_ms: int
    since: Frontier
    upper: Frontier
    retained: Frontier
    next_id: int
    spent: int
    members: tuple[Member, ...]
    batches: tuple[SpineBatch, ...]
    merges: tuple[FuelingMerge, ...]
    schemas: dict[int, SchemaVersion]
    writers: dict[str, WriterRecord] = field(default_factory=dict)
    holds: dict[str, Hold] = field(default_factory=dict)
    critical: dict[str, CriticalHold] = field(default_factory=dict)
    retention: Retention = field(default_factory=Retention)
    dropped: bool = False
    garbage: dict[ObjectName, Garbage] = field(default_factory=dict)
    doomed: dict[ObjectName, Garbage] = field(default_factory=dict)
    collected_to: int = 0
    sweep: Sweep = UNSWEPT
    rollup: Rollup = FIRST_ROLLUP
    claims: dict[str, MergeClaim] = field(default_factory=dict)
    chunks: dict[str, tuple[Part, ...]] = field(default_factory=dict)
    written: Written = field(default_factory=Written)
    staged: dict[ObjectName, Staged] = field(default_factory=dict)
    group: NoOrPlainName = ""
    joined: int = 0
    memberships: dict[PlainName, Membership] = field(default_factory=dict)
    decisions: dict[str, Decision] = field(default_factory=dict)
    expired: int = 0
    forks: dict[PlainName, Fork] = field(default_factory=dict)
    origin: Origin | None = None
    taken: dict[int, tuple[str, ...]] = field(default_factory=dict)
    let_in: dict[ObjectName, int] = field(default_factory=dict)
    latest: dict[PlainName, int] = field(default_factory=dict)
    agreed: Agreed = AS_MADE
    tokens: dict[int, tuple[str, ...]] = field(default_factory=dict)
    sliced: int = 0
    bases: tuple[Base, ...] = ()
    unpaid: Unpaid | None = None
    erasures: dict[str, Erasure] = field(default_factory=dict)
    closed_ms: int = 0


def _usual(type_: type[Edits] | type[_Image]) -> list[tuple[str, object]]:
    """The fields of a type and what they say unless they are told."""
    return [
        (one.name, one.default if one.default_factory is MISSING else one.default_factory())
        for one in fields(type_)
    ]


_USUAL_EDITS, _USUAL_IMAGE = _usual(Edits), _usual(_Image)
_NAMES = [one.name for one in fields(Delta) if one.name not in ("edits", "more")]


def learn(type_: type) -> None:
    """Let msgspec prepare the decoder of a type and of all types in it; only one thread at a time may do so.

    msgspec does this when it first decodes a type, and stores the result at the class before it is complete:
    another thread that finds it there crashes with a segmentation fault. Different types share parts, so this
    holds for two different types as well.
    """
    msgspec.json.Decoder(type_)
    name_check(type_)


# No other thread is in this module while it is imported.
for _type in (Delta, _Image):
    learn(_type)


def encode_record(kind: str, value: object) -> bytes:
    """A framed record of `kind`: header line and JSON body."""
    format_, body = _record(value)
    return _header(kind, format_, body) + body


def decode_record(kind: str, data: bytes, type_: type[T], name: str) -> T:
    """The value of a framed record; `type_` was prepared by `learn`.

    Raises:
        FormatTooNew: written by a newer version.
        CorruptionError: not a record of this kind, damaged, with fields that this version ignores, or with
            a name that is none.
    """
    head, newline, body = data.partition(b"\n")
    words = head.split(b" ")
    if not newline or len(words) != 3 or words[0] != b"tidelake-" + kind.encode() or not words[1].isdigit():
        raise CorruptionError(name, f"not a {kind} record")
    if int(words[1]) > NEWEST:
        raise FormatTooNew(name, int(words[1]), NEWEST)
    if data != _header(kind, int(words[1]), body) + body:
        raise CorruptionError(name, "checksum mismatch")
    try:
        value = msgspec.json.decode(body, type=type_)
        check_names(value)
    except (msgspec.DecodeError, msgspec.ValidationError, ValueError) as error:
        raise CorruptionError(name, f"not a valid {kind}: {error}") from error
    if _record(value) != (int(words[1]), body):
        raise CorruptionError(name, f"the {kind} holds fields that this version does not know")
    return value


def _record(value: object) -> tuple[int, bytes]:
    """The format and the JSON of a value."""
    match value:
        case Delta():
            told = [_told(edits, _USUAL_EDITS) for edits in value.steps]
            steps = [step for _, step in told]
            body = {name: getattr(value, name) for name in _NAMES}
            body |= {"edits": steps[0], "more": steps[1:]} if value.more else {"edits": steps[0]}
            return max(format_ for format_, _ in told), msgspec.json.encode(body)
        case _Image():
            format_, image = _told(value, _USUAL_IMAGE)
            return format_, msgspec.json.encode(image)
        case _:
            format_, sent = as_stored(type(value), value)
            return format_, msgspec.json.encode(sent)


def _told(value: Edits | _Image, usual: list[tuple[str, object]]) -> tuple[int, object]:
    """The format and the fields of edits or of a state that are not as usual: mostly a few of many."""
    told = {name: one for name, usual in usual if (one := getattr(value, name)) is not usual and one != usual}
    type_: Any = type(value)
    if not has_later(type_):
        return FIRST, told
    format_, stored = as_stored(type_, value)
    return format_, {name: stored[name] for name in told}


def _header(kind: str, format_: int, body: bytes) -> bytes:
    checksum = hashlib.blake2b(f"{kind} {format_} ".encode() + body, digest_size=16).hexdigest()
    return f"tidelake-{kind} {format_} {checksum}\n".encode()


def encode_delta(delta: Delta) -> bytes:
    """A delta as a log entry."""
    return encode_record("delta", delta)


def decode_delta(data: bytes, name: str) -> Delta:
    """The delta of a log entry; errors as `decode_record`."""
    return decode_record("delta", data, Delta, name)


def encode_state(state: ShardState) -> bytes:
    """A whole state: a rollup, and the first entry of a log. Costs O(state)."""
    return encode_record("state", _image(state))


def format_of(state: ShardState) -> int:
    """The least format that knows all of a state. Costs O(state) once there are later ones."""
    return as_stored(_Image, _image(state))[0] if has_later(_Image) else FIRST


def _image(state: ShardState) -> _Image:
    return _Image(
        state.shard_id,
        state.domain,
        state.seqno,
        state.committed_ms,
        state.since,
        state.upper,
        state.retained,
        state.spine.next_id,
        state.spine.spent,
        tuple(state.spine.held()),
        tuple(state.spine.all_batches()),
        state.spine.merges,
        dict(sorted(state.schemas.items())),
        dict(sorted(state.writers.items())),
        dict(sorted(state.holds.items())),
        dict(sorted(state.critical.items())),
        state.retention,
        state.dropped,
        dict(sorted(state.garbage.items())),
        dict(sorted(state.doomed.items())),
        state.collected_to,
        state.sweep,
        state.rollup,
        dict(sorted(state.claims.items())),
        dict(sorted(state.chunks.items())),
        state.written,
        dict(sorted(state.staged.batches.items())),
        state.group,
        state.joined,
        dict(sorted(state.memberships.items())),
        dict(sorted(state.decisions.items())),
        state.expired,
        dict(sorted(state.forks.items())),
        state.origin,
        {seqno: tuple(sorted(ids)) for seqno, ids in sorted(state.taken.items())},
        dict(sorted(state.let_in.items())),
        dict(sorted(state.latest.items())),
        state.agreed,
        {day: tuple(sorted(names)) for day, names in sorted(state.tokens.items())},
        state.spine.sliced,
        tuple(state.bases),
        state.unpaid,
        dict(sorted(state.erasures.items())),
        state.closed_ms,
    )


def decode_state(data: bytes, name: str) -> ShardState:
    """A whole state, checked against every rule; errors as `decode_record`."""
    state = decode_unchecked(data, name)
    try:
        check_state(state)
    except InternalError as error:
        raise CorruptionError(name, str(error)) from error
    return state


def decode_unchecked(data: bytes, name: str) -> ShardState:
    """A whole state, even if it breaks rules, for the repair; errors as `decode_record`."""
    image = decode_record("state", data, _Image, name)
    state = ShardState(
        image.shard_id,
        image.domain,
        image.seqno,
        image.committed_ms,
        image.since,
        image.upper,
        image.retained,
        Spine.of(image.next_id, image.spent, image.members, image.batches, image.merges, sliced=image.sliced),
        pmap(image.schemas),
        pmap(image.writers),
        pmap(image.holds),
        pmap(image.critical),
        image.retention,
        image.dropped,
        pmap(image.garbage),
        pmap(image.doomed),
        image.collected_to,
        image.sweep,
        image.rollup,
        pmap(image.claims),
        pmap(image.chunks),
        image.written,
        Staging.of(image.staged),
        image.group,
        image.joined,
        pmap(image.memberships),
        pmap(image.decisions),
        image.expired,
        pmap(image.forks),
        image.origin,
        pmap({seqno: pset(ids) for seqno, ids in image.taken.items()}),
        pmap(image.let_in),
        pmap(image.latest),
        agreed=image.agreed,
        tokens=pmap({day: pset(names) for day, names in image.tokens.items()}),
        bases=Bases.of(image.bases),
        unpaid=image.unpaid,
        erasures=pmap(image.erasures),
        closed_ms=image.closed_ms,
    )
    return replace(state, part_names=indexed(state))


def is_state(data: bytes) -> bool:
    """Whether a log entry holds a whole state rather than a delta."""
    return data.startswith(b"tidelake-state ")


def check_format(before: ShardState, after: ShardState, edits: Edits) -> None:
    """Check that the version before can read a step, unless the lake is upgraded. Costs O(change).

    Only the process that writes a step checks this.

    Raises:
        InternalError: it could not.
    """
    if has_later(Edits):
        allowed = max(before.agreed.format, after.agreed.format)
        format_, _ = as_stored(Edits, edits)
        if format_ > allowed:
            raise InternalError(f"a step of {before.shard_id} has format {format_}, and the lake {allowed}")
