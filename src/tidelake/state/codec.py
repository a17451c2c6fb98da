"""States, deltas and descriptions as bytes, and back. docs/formats.md describes every byte.

A record is one header line `tidelake-<kind> <format> <checksum>` and a JSON body. The checksum covers
kind, format and body. Decoding is strict: a newer format is refused before anything is read, damage
is found by the checksum, and a body that does not encode to the very same bytes again is refused, so
that no field is silently ignored. A checksum does not say who wrote a record, so the names of objects and
files in it are checked (`tidelake.state.namechecks`). JSON (by msgspec) keeps exact integers of any size and
can be read by people.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import TypeVar

import msgspec
from pyrsistent import pmap, pset

from tidelake.errors import CorruptionError, FormatTooNew, InternalError
from tidelake.model.batch import Part
from tidelake.model.frontier import Frontier
from tidelake.model.names import NoOrPlainName, ObjectName, PlainName
from tidelake.model.schema import SchemaVersion
from tidelake.model.time import TimeDomain
from tidelake.state.agreed import AS_MADE, DATES, ERASING, HASHED, LINEAGE, NEWEST, RENAMING, Agreed
from tidelake.state.bases import Base, Bases, Unpaid
from tidelake.state.edits import Delta, Edits
from tidelake.state.erased import Erasure
from tidelake.state.garbage import Garbage, Sweep
from tidelake.state.grouped import Decision, Membership
from tidelake.state.invariants import check_state
from tidelake.state.namechecks import check_names, name_check
from tidelake.state.spine import FuelingMerge, Member, Spine, SpineBatch
from tidelake.state.staged import Staged, Staging
from tidelake.state.state import (
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

_USUAL = [(one.name, getattr(Edits(), one.name)) for one in fields(Edits)]
_NAMES: dict[type, tuple[str, ...]] = {}
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
    writers: dict[str, WriterRecord]
    holds: dict[str, Hold]
    critical: dict[str, CriticalHold]
    retention: Retention
    dropped: bool
    garbage: dict[ObjectName, Garbage]
    doomed: dict[ObjectName, Garbage]
    collected_to: int
    sweep: Sweep
    rollup: Rollup
    claims: dict[str, MergeClaim]
    chunks: dict[str, tuple[Part, ...]]
    written: Written
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
    agreed: Agreed | None = None
    tokens: dict[int, tuple[str, ...]] = field(default_factory=dict)
    sliced: int = 0
    bases: tuple[Base, ...] = ()
    unpaid: Unpaid | None = None
    erasures: dict[str, Erasure] = field(default_factory=dict)
    closed_ms: int = 0


# Fields that came later, with the format that they came with. A record without any of them is written in its
# old format, so that older versions can go on reading it.
_LATER = ("staged", "group", "joined", "memberships", "decisions", "expired", "forks", "origin", "let_go")
SINCE = (
    dict.fromkeys(_LATER, 2)
    | dict.fromkeys(
        (
            "arrangement",
            "taken",
            "mended",
            "writers_gone",
            "let_in",
            "latest",
            "agreed",
            "tokens",
            "token_age_ms",
        ),
        3,
    )
    | dict.fromkeys(("sliced", "bases", "unpaid", "base", "by_time"), 4)
    | {"format": 5, "hashed": HASHED, "renamed": RENAMING, "note": RENAMING, "erasures": ERASING}
    | {"freed": LINEAGE, "erased": LINEAGE, "closed_ms": LINEAGE}
)
# Values in which some of them are, or maps of such values.
_WITH_LATER = frozenset({Agreed, MergeClaim, Fork, Membership, Origin, SchemaVersion, dict})
# A part with a hash of its rows, in the text of any record. Texts of users cannot hold it: their quotes are
# escaped.
_HASHED_PART = re.compile(rb'"checksum":"[0-9a-f]+\+')
# The unit of times in the text of any record, likewise.
_DATED = b'{"unit":"date","arity":1}'
FORMAT = NEWEST
# Fields of tasks that came with format 4, and that the version of that format always wrote. They are left out
# where they are as usual, so that an earlier one can read the task.
_TASKS_LATER = ("slice_rows", "less")
# Later ones, which every version leaves out where they are as usual.
_TASKS_LATEST = ("left_out",)
# Fields whose values are stored as maps of their own, of which later fields may be left out.
_NESTED = ("agreed", "task", "old", "new", "spec", "config", "columns", "origin", "followed")


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
    if int(words[1]) > FORMAT:
        raise FormatTooNew(name, int(words[1]), FORMAT)
    if data != _header(kind, int(words[1]), body) + body:
        raise CorruptionError(name, "checksum mismatch")
    try:
        value = msgspec.json.decode(body, type=type_)
        check_names(value)
    except (msgspec.DecodeError, msgspec.ValidationError, ValueError) as error:
        raise CorruptionError(name, f"not a valid {kind}: {error}") from error
    if not any(_record(value, whole=whole) == (int(words[1]), body) for whole in (False, True)):
        raise CorruptionError(name, f"the {kind} holds fields that this version does not know")
    return value


def _record(value: object, *, whole: bool = False) -> tuple[int, bytes]:
    """The format and the JSON of a value; with `whole` as the version of format 4 wrote tasks."""
    format_, body = _encoded(value, whole=whole)
    if _HASHED_PART.search(body):
        format_ = max(format_, HASHED)
    return (max(format_, DATES) if _DATED in body else format_), body


def _encoded(value: object, *, whole: bool) -> tuple[int, bytes]:
    """As `_record`, by the names of the fields. Of edits only those that change: mostly two of many."""
    match value:
        case Delta():
            body = {name: getattr(value, name) for name in _names(Delta) if name != "more"}
            steps = [_changed(edits) for edits in value.steps]
            body["edits"] = steps[0]
            if value.more:
                body["more"] = steps[1:]
            return _format(name for step in steps for name in _fields(step)), msgspec.json.encode(body)
        case _Image():
            image = {name: _stored(getattr(value, name)) for name in _names(_Image)}
            image = {name: part for name, part in image.items() if part or name not in SINCE}
            return _format(_fields(image)), msgspec.json.encode(image)
        case _:
            record = _sent(value, whole=whole)
            return _format(_fields(record)), msgspec.json.encode(record)


def _format(names: Iterable[str]) -> int:
    return max((SINCE.get(name, 1) for name in names), default=1)


def _changed(edits: Edits) -> dict[str, object]:
    return {
        name: _stored(edit)
        for name, usual in _USUAL
        if (edit := getattr(edits, name)) is not usual and edit != usual
    }


def _fields(record: Mapping[str, object]) -> Iterator[str]:
    """The names of the fields of a record, and of the settings, claims, schemas, forks and others in it."""
    yield from record
    for name in ("claims", "schemas", "forks", "memberships"):
        by_name = record.get(name)
        for one in by_name.values() if isinstance(by_name, dict) else ():
            yield from one if isinstance(one, dict) else ()
    for name in _NESTED:
        nested = record.get(name)
        if isinstance(nested, dict):
            yield from _fields(nested)


def _sent(value: object, *, whole: bool) -> dict[str, object]:
    """The fields of what processes send each other, without later ones that have their default."""
    record: dict[str, object] = {}
    for name in _names(type(value)):
        part = getattr(value, name)
        later = name in SINCE or name in _TASKS_LATEST or (name in _TASKS_LATER and not whole)
        # The class has the defaults.
        if later and part == getattr(type(value), name):
            continue
        if name in _NESTED and is_dataclass(part):
            record[name] = _sent(part, whole=whole)
        elif name == "needed":
            record[name] = [_sent(one, whole=whole) for one in part]
        else:
            record[name] = part
    return record


def _stored(value: object) -> object:
    """A field as it is stored: what came later of values in it is left out by default."""
    if type(value) not in _WITH_LATER:
        return value
    match value:
        case Agreed():
            settings = {name: getattr(value, name) for name in _names(Agreed)}
            return {n: one for n, one in settings.items() if n not in SINCE or one != getattr(AS_MADE, n)}
        case MergeClaim():
            claim = {name: getattr(value, name) for name in _names(MergeClaim)}
            return {n: one for n, one in claim.items() if not (n in SINCE and (one is None or one is False))}
        case Fork() | Membership() | Origin() | SchemaVersion():
            record = {name: getattr(value, name) for name in _names(type(value))}
            return {n: one for n, one in record.items() if one or n not in SINCE}
        case dict():
            return {key: _stored(one) for key, one in value.items()}
        case _:
            return value


def _names(type_: type) -> tuple[str, ...]:
    found = _NAMES.get(type_)
    if found is None:
        found = _NAMES[type_] = tuple(one.name for one in fields(type_))
    return found


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
    return encode_record(
        "state",
        _Image(
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
            None if state.agreed == AS_MADE else state.agreed,
            {day: tuple(sorted(names)) for day, names in sorted(state.tokens.items())},
            state.spine.sliced,
            tuple(state.bases),
            state.unpaid,
            dict(sorted(state.erasures.items())),
            state.closed_ms,
        ),
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
        agreed=image.agreed or AS_MADE,
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
