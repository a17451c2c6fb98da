"""The contents after change files, by a plain replay: what a demo on the user's own files is compared with.

Owns the meaning of an event in a dozen lines; must not know Spark, a lake, nor the parser that fills the
lake. It holds all rows in memory.
"""

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from demo.truth import Comparison

_EXAMPLES = 5


def replay(directory: Path, schema: pa.Schema) -> Counter[str]:
    """The multiplicity after all events, by row; a row is a text in the order of the schema's columns."""
    rows: Counter[str] = Counter()
    for event in _events(directory):
        for side, diff in (("before", -1), ("after", 1)):
            if event.get("op") != "h" and event.get(side) is not None:
                rows[_text(event[side], schema)] += diff
    return Counter({row: count for row, count in rows.items() if count})


def compare(truth: Counter[str], found: pa.Table, schema: pa.Schema) -> Comparison:
    """Compare a snapshot, with its multiplicities in `_diff`, with a replay."""
    actual: Counter[str] = Counter()
    for row in found.to_pylist():
        actual[_text(row, schema)] += row["_diff"]
    differing = {row: actual[row] - truth[row] for row in truth.keys() | actual.keys()}
    differing = {row: delta for row, delta in differing.items() if delta}
    examples = [
        f"{'missing' if delta < 0 else 'surplus'}: {row}"
        for row, delta in sorted(differing.items())[:_EXAMPLES]
    ]
    missing = sum(-delta for delta in differing.values() if delta < 0)
    surplus = sum(delta for delta in differing.values() if delta > 0)
    return Comparison(max(truth.total(), found.num_rows), missing, surplus, tuple(examples))


def _events(directory: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(directory.iterdir()):
        if path.name[:1] in "._" or not path.is_file():
            continue
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as lines:
            for line in lines:
                event = json.loads(line, parse_float=Decimal) if line.strip() else None
                if event is not None and "payload" in event:
                    event = event["payload"]
                if event is not None:
                    yield event


def _text(row: dict[str, Any], schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}={_shaped(row.get(field.name), field.type)!r}" for field in schema)


def _shaped(value: Any, type_: pa.DataType) -> Any:
    """Convert a JSON value to the form in which a column of the type returns it."""
    is_ = pa.types
    if value is None:
        return None
    if is_.is_struct(type_):
        fields = [type_.field(i) for i in range(type_.num_fields)]
        return {field.name: _shaped(value.get(field.name), field.type) for field in fields}
    if is_.is_list(type_):
        return [_shaped(item, type_.value_type) for item in value]
    if is_.is_floating(type_):
        return float(value) + 0.0  # -0.0 is kept as 0.0
    if is_.is_decimal(type_):
        return Decimal(value).quantize(Decimal(1).scaleb(-type_.scale))
    return value
