"""Inline parts: a few rows as bytes that live in the state (placeholder until the encoder lands)."""

import pyarrow as pa

from tidelake.data.types import update_schema
from tidelake.model.batch import Part
from tidelake.model.schema import Schema
from tidelake.model.time import TimeDomain


def decode_inline(part: Part, schema: Schema, domain: TimeDomain) -> pa.RecordBatch:
    """The updates of an inline part."""
    return pa.ipc.read_record_batch(pa.py_buffer(part.inline), update_schema(schema, domain))
