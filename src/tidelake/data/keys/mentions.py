"""Whether lines that are not read yet, such as events that a stream holds back, may be about some keys.

Owns that question, for JSON of any form: a line names a key if all of the key's values are somewhere in it. A
"no" is certain; of types that are written in many ways there is no "no".
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

_PLAIN = (int, str)


def lines_in(data: bytes) -> Iterator[bytes]:
    """The lines of rows, in Arrow's stream format, with the columns `value` and `key`."""
    table = pa.ipc.open_stream(data).read_all()
    for name in ("value", "key"):
        for line in table.column(name).to_pylist():
            if line is not None:
                yield line if isinstance(line, bytes) else line.encode("utf-8", "surrogatepass")


def may_mention(lines: Iterable[bytes], keys: pa.Table) -> bool:
    """Whether some line may name one of the keys.

    Args:
        lines: JSON texts.
        keys: the key columns of each key.
    """
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
