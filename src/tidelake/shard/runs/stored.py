"""Finds the parts whose stored rows are rows of a snapshot, so that any Parquet reader may read them.

Owns that decision, from descriptions of parts alone. Invariant: the rows of these parts, at the time asked
for, plus the answer of the remaining runs, are the snapshot: no row is in both, and no two rows are equal.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from tidelake.model.batch import Part, Run
from tidelake.model.query import AsOf, Query
from tidelake.model.time import Time
from tidelake.shard.engine.spec import ShardSpec
from tidelake.shard.runs.scope import Source


@dataclass(frozen=True)
class AsStored:
    """Parts that need no merge.

    Attributes:
        parts: the parts, each row of which is a row of the answer.
        files: URLs of their files, without escapes, in the same order.
        time: the time of the rows in the answer, in place of the stored time.
    """

    parts: tuple[Part, ...]
    files: tuple[str, ...]
    schema: pa.Schema
    time: Time

    @property
    def ones(self) -> bool:
        """Whether every diff is 1."""
        # No diff is 0. If none is negative either, each is at least 1, so a sum of `rows` means all are 1.
        return all(part.negative_rows == 0 and part.diff_sum == part.rows for part in self.parts)


def divided(spec: ShardSpec, needed: list[Source], query: Query) -> tuple[list[Part], list[Source]]:
    """The parts whose rows are the answer for their keys, and the runs without these parts."""
    if not isinstance(query, AsOf) or not spec.newest:
        return [], needed
    parts: list[Part] = []
    for group in _groups(needed):
        if _is_answer(spec, group):
            parts.extend(part for _, part in group)
    if not parts:
        return [], needed
    taken = {part.name for part in parts}
    left = [
        replace(source, run=Run(rest, source.run.truncated))
        for source in needed
        if (rest := tuple(part for part in source.run.parts if part.name not in taken))
    ]
    return parts, left


def _groups(needed: list[Source]) -> Iterator[list[tuple[Source, Part]]]:
    """All parts, ascending by key, in groups such that parts of different groups have no key in common."""
    placed = [(source, part) for source in needed for part in source.run.parts]
    placed.sort(key=lambda item: item[1].key_lower)
    group: list[tuple[Source, Part]] = []
    end: bytes | None = b""
    for source, part in placed:
        if group and end is not None and part.key_lower > end:
            yield group
            group, end = [], b""
        group.append((source, part))
        # A truncated bound is wider than the keys; None: no bound.
        end = None if end is None or part.key_upper is None else max(end, part.key_upper)
    if group:
        yield group


def _is_answer(spec: ShardSpec, group: list[tuple[Source, Part]]) -> bool:
    """Whether the stored rows of a group of parts are the answer for their keys.

    They are if all parts are of one run and one time: then no two rows are equal. With several times two rows
    may differ in their time alone, and would have to be summed.
    """
    source = group[0][0]
    return (
        not source.run.truncated
        and source.less is None
        and all(other is source for other, _ in group)
        and all(
            part.inline is None and part.rewrite is None and part.schema_id == spec.schema_id
            for _, part in group
        )
        and len({time for _, part in group for time in (part.time_lower, part.time_upper)}) == 1
    )
