"""States, deltas and descriptions as bytes, and back. docs/formats.md describes every byte.

A record is one header line `tidelake:<kind> <format> <checksum>` and a JSON body. The checksum covers
kind, format and body. Decoding is strict: a newer format is refused before anything is read, damage
is found by the checksum, and a body that does not encode to the very same bytes again is refused, so
that no field is silently ignored. A checksum does not say who wrote a record, so the names of objects and
files in it are checked (`tidelake.state.core.namechecks`). JSON (by msgspec) keeps exact integers of any size
and can be read by people.
"""

import hashlib
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, field, fields, make_dataclass
from types import GenericAlias
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from pyrsistent import PMap, PSet, pmap, pset

from tidelake.errors import CorruptionError, FormatTooNew, FormatTooOld, InternalError
from tidelake.model.frozen import with_fields
from tidelake.model.names import ObjectName
from tidelake.state.core.edits import Delta, Edits
from tidelake.state.core.formats import FIRST, NEWEST, as_stored, has_later, usual_of
from tidelake.state.core.invariants import check_state
from tidelake.state.core.namechecks import check_names, name_check
from tidelake.state.core.partnames import indexed
from tidelake.state.core.state import ShardState
from tidelake.state.spine.bases import Base, Bases
from tidelake.state.spine.spine import FuelingMerge, Member, Spine, SpineBatch
from tidelake.state.spine.staged import Staged, Staging

T = TypeVar("T")

_MARK = "tidelake:"
# How records of unreleased versions begin.
_BEFORE = b"tidelake-"


@dataclass(frozen=True)
class _SpineImage:
    """The spine of a stored state.

    Attributes:
        next_id: the insertion that comes next.
        spent: fuel given in all.
        members: oldest first.
        batches: the spine batches, oldest first: slices up to `sliced`, then levels.
        merges: of the levels, that are under way.
        sliced: where the slices end and the levels begin: an insertion.
    """

    next_id: int = 0
    spent: int = 0
    members: tuple[Member, ...] = ()
    batches: tuple[SpineBatch, ...] = ()
    merges: tuple[FuelingMerge, ...] = ()
    sliced: int = 0


@dataclass(frozen=True)
class _Stored:
    """How values of a type are stored: as a plain one, with containers in the order of their keys."""

    type_: Any
    store: Callable[[Any], Any] = lambda value: value
    load: Callable[[Any], Any] = lambda value: value


def _spine_image(spine: Spine) -> _SpineImage:
    batches = tuple(spine.all_batches())
    return _SpineImage(spine.next_id, spine.spent, tuple(spine.held()), batches, spine.merges, spine.sliced)


def _spine(image: _SpineImage) -> Spine:
    return Spine.of(
        image.next_id, image.spent, image.members, image.batches, image.merges, sliced=image.sliced
    )


_STORED: dict[Any, _Stored] = {
    Spine: _Stored(_SpineImage, _spine_image, _spine),
    Bases: _Stored(tuple[Base, ...], tuple, Bases.of),
    Staging: _Stored(
        dict[ObjectName, Staged], lambda staging: dict(sorted(staging.batches.items())), Staging.of
    ),
}


def _stored(type_: Any) -> _Stored:
    """How a field of a state is stored, by its type."""
    if type_ in _STORED:
        return _STORED[type_]
    origin, args = get_origin(type_), get_args(type_)
    if origin is PSet:
        return _Stored(GenericAlias(tuple, (args[0], ...)), lambda found: tuple(sorted(found)), pset)
    if origin is not PMap:
        return _Stored(type_)
    inner = _stored(args[1])
    alias = GenericAlias(dict, (args[0], inner.type_))
    if inner.type_ is args[1]:
        return _Stored(alias, lambda found: dict(sorted(found.items())), pmap)
    return _Stored(
        alias,
        lambda found: {name: inner.store(one) for name, one in sorted(found.items())},
        lambda image: pmap({name: inner.load(one) for name, one in image.items()}),
    )


# The fields of a state by name, but for the names of parts, which follow from the others.
_HINTS = get_type_hints(ShardState, include_extras=True)
_OF_STATE = {one.name: _stored(_HINTS[one.name]) for one in fields(ShardState) if one.name != "part_names"}


def _of_image(one: Field[Any]) -> tuple[str, Any, Any]:
    """A field of the image of a state, with what a record says that leaves it out."""
    stored = _OF_STATE[one.name]
    usual = usual_of(one)
    if usual is MISSING:
        return one.name, stored.type_, field()
    return one.name, stored.type_, field(default_factory=lambda: stored.store(usual), metadata=one.metadata)


_Image: Any = make_dataclass(
    "_Image", [_of_image(one) for one in fields(ShardState) if one.name in _OF_STATE], frozen=True
)
_USUAL = {of: [(one.name, usual_of(one)) for one in fields(of)] for of in (Edits, _Image)}
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


def is_of(kind: str, data: bytes) -> bool:
    """Whether bytes begin as a record of a kind does."""
    return data.startswith(f"{_MARK}{kind} ".encode())


def encode_record(kind: str, value: object) -> bytes:
    """A framed record of `kind`: header line and JSON body."""
    format_, body = _record(value)
    return _header(kind, format_, body) + body


def decode_record(kind: str, data: bytes, type_: type[T], name: str) -> T:
    """The value of a framed record; `type_` was prepared by `learn`."""
    head, newline, body = data.partition(b"\n")
    words = head.split(b" ")
    if data.startswith(_BEFORE):
        raise FormatTooOld(name)
    if not newline or len(words) != 3 or not is_of(kind, data) or not words[1].isdigit():
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
            steps = value.steps
            formats, told = zip(*map(_told, steps), strict=True)
            body = {name: getattr(value, name) for name in _NAMES}
            body |= {"edits": told[0], "more": told[1:]} if value.more else {"edits": told[0]}
            # A process of an earlier version must not go on in a lake of a later format.
            of_lake = [edits.agreed.format for edits in steps if edits.agreed is not None]
            return max(*formats, *of_lake, FIRST), msgspec.json.encode(body)
        case _Image():
            format_, sent = _told(value)
            format_ = max(format_, value.agreed.format)
        case _:
            format_, sent = as_stored(type(value), value)
    return format_, msgspec.json.encode(sent)


def _told(value: object) -> tuple[int, object]:
    """The format and the fields of edits or of a state that are not as usual: mostly a few of many."""
    type_: Any = type(value)
    told = {
        name: one
        for name, usual in _USUAL[type_]
        if (one := getattr(value, name)) is not usual and (usual is None or one != usual)
    }
    if not has_later(type_):
        return FIRST, told
    format_, stored = as_stored(type_, value)
    return format_, {name: stored[name] for name in told}


def _header(kind: str, format_: int, body: bytes) -> bytes:
    checksum = hashlib.blake2b(f"{kind} {format_} ".encode() + body, digest_size=16).hexdigest()
    return f"{_MARK}{kind} {format_} {checksum}\n".encode()


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


def _image(state: ShardState) -> Any:
    return _Image(**{name: stored.store(getattr(state, name)) for name, stored in _OF_STATE.items()})


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
    state = ShardState(**{name: stored.load(getattr(image, name)) for name, stored in _OF_STATE.items()})
    return with_fields(state, part_names=indexed(state))


def is_state(data: bytes) -> bool:
    """Whether a log entry holds a whole state rather than a delta."""
    return is_of("state", data)


def check_format(before: ShardState, after: ShardState, edits: Edits) -> None:
    """Check that the version before can read a step, unless the lake is upgraded. Costs O(change).

    Only the process that writes a step checks this.
    """
    if has_later(Edits):
        allowed = max(before.agreed.format, after.agreed.format)
        format_, _ = as_stored(Edits, edits)
        if format_ > allowed:
            raise InternalError(f"a step of {before.shard_id} has format {format_}, and the lake {allowed}")
