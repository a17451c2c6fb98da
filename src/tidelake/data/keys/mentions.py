"""Whether lines that are not read yet, such as events that a stream holds back, may be about some keys.

Owns that question, for JSON of any form: a line names a key if all of the key's values are somewhere in it. A
"no" is certain; of types that are written in many ways there is no "no".
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from tidelake.errors import CorruptionError

_PLAIN = (int, str)
_RECORD = "the record of the stream's writer"


def held_lines(data: bytes) -> pa.Table:
    """What a stream holds back, in Arrow's stream format: rows, or a survey of them."""
    try:
        return pa.ipc.open_stream(data).read_all()
    except (pa.ArrowException, OSError) as error:
        raise CorruptionError(_RECORD, "the rows that it holds back cannot be read") from error


def lines_in(data: bytes) -> Iterator[bytes]:
    """The lines of it: columns `value` and `key`, which a survey lacks."""
    table = held_lines(data)
    for name in {"value", "key"}.intersection(table.column_names):
        for line in table.column(name).to_pylist():
            if line is not None:
                yield line if isinstance(line, bytes) else str(line).encode("utf-8", "surrogatepass")


def may_mention(lines: Iterable[bytes], keys: pa.Table) -> bool:
    """Whether some line may name one of the keys."""
    wanted: set[frozenset[str]] = set()
    plain = True
    for row in keys.to_pylist():
        plain &= all(isinstance(value, _PLAIN) and not isinstance(value, bool) for value in row.values())
        wanted.add(frozenset(str(value) for value in row.values()))
    single = {next(iter(texts)) for texts in wanted if len(texts) == 1}
    several = [texts for texts in wanted if len(texts) > 1]
    for line in lines:
        if not plain:
            return True
        try:
            told = set(_leaves(json.loads(line)))
        except (ValueError, RecursionError):
            return True
        if not single.isdisjoint(told) or any(texts <= told for texts in several):
            return True
    return False


def _leaves(value: Any) -> Iterator[str]:
    """All values in a JSON value as texts, also in JSON that it has as text; whole numbers as integers."""
    if isinstance(value, dict):
        for inner in value.values():
            yield from _leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner)
    elif isinstance(value, str):
        yield value
        try:
            inner = json.loads(value)
        except ValueError:
            return
        yield from _leaves(inner)
    elif isinstance(value, bool | float) and value == value // 1:
        yield str(int(value))
    else:
        yield str(value)
