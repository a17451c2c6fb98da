"""The schema that Kafka Connect's JSON puts beside a payload, taken off many lines at once.

Owns where such a schema ends. It must not know what schemas or payloads mean.
"""

import json
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelake.cdc.core.columns import mask
from tidelake.cdc.core.events import Ints

SCHEMA = b'{"schema":'
# An explicit end of slices: without one, Arrow computes negative lengths.
_END = 2**31 - 1
_PREFIXES_MAX = 1000


def by_schema(lines: pa.Array) -> Iterator[tuple[bytes, Ints, pa.Array]]:
    """Lines by the schema that they begin with, without it: the beginning, their numbers, and the rest."""
    there = mask(pc.starts_with(lines, b"{"))
    begins = mask(pc.starts_with(lines, SCHEMA))
    left, others = np.flatnonzero(begins), np.flatnonzero(there & ~begins)
    if len(others):
        yield b"", others, lines if len(others) == len(lines) else lines.take(pa.array(others))
    for _ in range(_PREFIXES_MAX):
        if not len(left):
            return
        here = lines if len(left) == len(lines) else lines.take(pa.array(left))
        prefix = prefix_of(here[0].as_py())
        if not prefix:
            yield b"", left[:1], here.slice(0, 1)
            left = left[1:]
            continue
        same = mask(pc.starts_with(here, prefix))
        rest = pc.binary_slice(here if same.all() else here.filter(pa.array(same)), len(prefix), _END)
        # Without the schema, which is long.
        short = pc.binary_join_element_wise(pa.scalar(b'{"schema":null'), rest, pa.scalar(b""))
        yield prefix, left[same], short
        left = left[~same]
    if len(left):
        yield b"", left, lines.take(pa.array(left))


def prefix_of(line: bytes) -> bytes:
    """The beginning of a line up to the end of its schema; empty if it is no JSON."""
    try:
        text = line.decode()
        start = len(text) - len(text[len(SCHEMA) :].lstrip(" "))
        return text[: json.JSONDecoder().raw_decode(text, start)[1]].encode()
    except (ValueError, RecursionError):
        return b""
