"""The fast JSON parser: many lines of JSON objects become Arrow columns at once.

Owns the calls of Arrow's JSON reader, and the checks that its answer equals that of the exact parser
(`tidelake.data.json.values`). If a check cannot tell, it raises `Unsure`. The caller then uses the exact
parser, which is slower and also finds the bad line and the reason. Must not know events or files.

Arrow's reader has these faults, which are checked for here:

- It reads a missing field as null, and crashes on some texts that are not objects. So msgspec reads the block
  first: each line must be one object with all required fields.
- It does not check that text is UTF-8.
- It changes decimals with very long fractions: see `overlong_decimals`.
- It accepts `NaN` as a number, and rounds whole numbers in columns of floats: see `tidelake.data.json.raw`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

_Read = TypeVar("_Read")
# So few lines are read one by one.
_LINES_MIN = 32
# The reader's sizes are 32-bit numbers.
_BYTES_MAX = 1 << 30
_SPACE = " \t\r\n"
# A number that this does not find has a scale of at most 38.
_OVERLONG = (
    r"(^|[\s:,\[\"])[-+]?[0-9]*\.?[0-9]*[eE]-0*([2-9][0-9]|[0-9]{3,})($|[\s,\]}\"])"
    r"|\.[0-9]{29}|\.[0-9]{19,}[eE]-0*[0-9]{2}"
)


class Unsure(Exception):
    """The fast parser cannot be sure of its answer: use the exact parser."""


def halved(
    at_once: Callable[[slice], _Read], one_by_one: Callable[[slice], _Read], end: int, start: int = 0
) -> list[_Read]:
    """Read lines, in their order: at once; where that is unsure in halves, and few one by one."""
    here = slice(start, end)
    if start == end:
        return []
    try:
        return [at_once(here)]
    except Unsure:
        if end - start <= _LINES_MIN:
            return [one_by_one(here)]
    middle = (start + end) // 2
    return halved(at_once, one_by_one, middle, start) + halved(at_once, one_by_one, end, middle)


@dataclass(frozen=True)
class JsonMember:
    """One field of the objects.

    Attributes:
        shape: what it must be for msgspec: `msgspec.Raw` for anything, `struct_shape` for objects.
        required: whether each object must have it, at least as null.
    """

    kind: pa.DataType
    shape: Any
    required: bool = False


def joined(lines: pa.Array) -> pa.Buffer:
    """One block of lines, each of which looks like an object; neither they nor the block are parsed."""
    if lines.null_count or lines.nbytes > _BYTES_MAX or not len(lines):
        raise Unsure
    # A line that begins with { and ends with } cannot be part of an object that goes on in the next one,
    # since no object has "}{" but in a text, and no text has an end of a line. So there are as many objects
    # as lines only if each line is one.
    if not (pc.all(pc.starts_with(lines, "{")).as_py() and pc.all(pc.ends_with(lines, "}")).as_py()):
        raise Unsure
    every = pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines)
    whole = pc.binary_join(every, b"\n")
    try:
        whole.view(pa.string()).validate(full=True)
    except pa.ArrowInvalid:
        raise Unsure from None
    return whole[0].as_buffer()


def trimmed(lines: pa.Array) -> pa.Array:
    """Lines (binary) without the white space around them that JSON allows."""
    return pc.ascii_trim(lines.view(pa.string()), _SPACE).view(pa.binary())


def read_block(
    block: pa.Buffer, lines: pa.Array, members: Mapping[str, JsonMember], closed: bool = False
) -> tuple[pa.StructArray, list[Any]]:
    """A struct for each text; and what msgspec made of it, as `f0`, `f1`, … in the order of `members`."""
    try:
        found = _decoder(tuple(members.items()), closed).decode_lines(memoryview(block))
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        raise Unsure from None
    if len(found) != len(lines):
        raise Unsure
    schema = pa.schema([(name, member.kind) for name, member in members.items()])
    if any(_has_decimals(kind) for kind in schema.types) and overlong_decimals(lines):
        raise Unsure
    try:
        table = pyarrow.json.read_json(
            pa.BufferReader(block),
            read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=block.size + 1),
            parse_options=pyarrow.json.ParseOptions(
                explicit_schema=schema, unexpected_field_behavior="ignore"
            ),
        )
    except pa.ArrowException:
        raise Unsure from None
    if table.num_rows != len(lines):
        raise Unsure
    return table.combine_chunks().to_struct_array().combine_chunks(), found


def _has_decimals(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return any(_has_decimals(kind.field(i).type) for i in range(kind.num_fields))
    return bool(pa.types.is_decimal(kind))


def overlong_decimals(texts: pa.Array) -> bool:
    """Whether a text may hold a number with so many digits that Arrow makes another one of it, or dies.

    Arrow looks the power of ten up that lies between the scale of a number and that of a decimal type, in a
    table of as many as the type has digits, without a check.
    """
    return bool(pc.any(pc.match_substring_regex(texts, _OVERLONG)).as_py())


@lru_cache(64)
def _decoder(members: tuple[tuple[str, JsonMember], ...], closed: bool) -> Any:
    return msgspec.json.Decoder(_struct(tuple((n, m.shape, m.required) for n, m in members), closed))


def _struct(fields: tuple[tuple[str, Any, bool], ...], closed: bool = False) -> Any:
    names = {f"f{i}": name for i, (name, _, _) in enumerate(fields)}
    kinds = [
        (f"f{i}", shape) if required else (f"f{i}", shape, None)
        for i, (_, shape, required) in enumerate(fields)
    ]
    return msgspec.defstruct(
        "Object", kinds, rename=names, kw_only=True, gc=False, forbid_unknown_fields=closed
    )


def struct_shape(fields: Mapping[str, JsonMember]) -> Any:
    """For `JsonMember.shape`: an object of these fields, or null."""
    return _struct(tuple((n, m.shape, m.required) for n, m in fields.items())) | None


# For `JsonMember.shape`: an object that has this field is refused by msgspec, but for this very text.
NEVER: Any = Literal["\x00"]
