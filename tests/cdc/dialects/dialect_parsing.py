"""Messages of a tool, parsed without Spark."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest

from tests.cdc.dialects.told_history import SCHEMA
from tidelake.cdc.core.lineerrors import place
from tidelake.cdc.core.outcome import Parsed
from tidelake.cdc.dialects.dialect import Dialect, MessageReader
from tidelake.cdc.dialects.messageparser import DialectParser
from tidelake.cdc.parse.parser import ChangeParser
from tidelake.errors import InvalidUpdates


def parse(
    kind: Dialect,
    *messages: Any,
    schema: pa.Schema = SCHEMA,
    key: Sequence[str] = ("id",),
    unit: str = "counter",
    time: str | None = None,
    table: tuple[str, ...] | None = None,
    old_rows: Any = "stored",
    rejects: bool = False,
) -> Parsed:
    """What messages mean: objects, or their bytes."""
    path = time or kind.defaults[unit]
    reader = MessageReader(kind, path, None, unit, schema, table, tuple(key), old_rows == "stored")
    parser = ChangeParser(schema, tuple(key), old_rows=old_rows, rejects=rejects)
    lines = [m if isinstance(m, bytes | None) else json.dumps(m).encode() for m in messages]
    lines_of = pa.array(lines, pa.binary())
    return DialectParser.of(parser, reader).parse(lines_of, lambda line: place("in", line + 1))


def refuses(reason: str, read: Callable[..., Parsed], *given: Any, **settings: Any) -> None:
    """The second message cannot be read."""
    with pytest.raises(InvalidUpdates) as caught:
        read(*given, **settings)
    assert reason in str(caught.value) and "number=2" in str(caught.value)


def updates(parsed: Parsed) -> Counter[Any]:
    """(row, time) -> diff."""
    found: Counter[Any] = Counter()
    for *row, time, diff in zip(*(column.to_pylist() for column in parsed.rows.columns), strict=True):
        found[tuple(map(_hashable, row)), time] += diff
    return Counter({at: diff for at, diff in found.items() if diff})


def _hashable(value: Any) -> Any:
    return str(value) if isinstance(value, list | dict) else value


def events(parsed: Parsed) -> list[tuple[Any, ...]]:
    """With looked-up old rows: line, whether it is removed, the row, and the columns that it leaves out."""
    rows = parsed.rows.to_pylist()
    told = []
    for row in rows:
        own = {n: v for n, v in row.items() if not n.startswith("_")}
        left_out = row["_left_out"]
        told.append((row["_line"], row["_removed"], own, json.loads(left_out) if left_out else []))
    return told
