"""Which parts of a snapshot are its answer as they are stored, so that any reader of Parquet may read them.

Owns that decision, from descriptions alone. Invariant: the rows of these parts, at the time asked for, and
the answer of the runs that are left, together are the snapshot: no row is in both, and no two are equal.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from tidelake.model.batch import Part, Run
from tidelake.model.query import AsOf, Query
from tidelake.model.time import Time
from tidelake.shard.runs.scope import Source
from tidelake.shard.spec import ShardSpec


@dataclass(frozen=True)
class AsStored:
    """Parts that nobody has to merge.

    Attributes:
        parts: each row of them is a row of the answer.
        files: their URLs, in the same order.
        schema: of all columns in the files.
        time: that the rows are to be given, instead of the one that is stored.
    """

    parts: tuple[Part, ...]
    files: tuple[str, ...]
    schema: pa.Schema
    time: Time

    @property
    def ones(self) -> bool:
        """Whether every diff is 1."""
        # None is 0, so that without a negative one none is less than 1.
        return all(part.negative_rows == 0 and part.diff_sum == part.rows for part in self.parts)


def divided(spec: ShardSpec, needed: list[Source], query: Query) -> tuple[list[Part], list[Source]]:
    """The parts whose rows are the answer for their keys, and what is left of the runs without them.

    Args:
        spec: to read with.
        needed: runs without the parts whose times the query cannot see, as `sources` finds them.
        query: only a snapshot, under the newest schema, has such parts.
    """
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
    """All parts, ascending, cut where no key of a part before can be one of a part behind."""
    placed = [(source, part) for source in needed for part in source.run.parts]
    placed.sort(key=lambda item: item[1].key_lower)
    group: list[tuple[Source, Part]] = []
    end: bytes | None = b""
    for source, part in placed:
        if group and end is not None and part.key_lower > end:
            yield group
            group, end = [], b""
        group.append((source, part))
        # Bounds may be truncated, and then are wider; None is without bound.
        end = None if end is None or part.key_upper is None else max(end, part.key_upper)
    if group:
        yield group


def _is_answer(spec: ShardSpec, group: list[tuple[Source, Part]]) -> bool:
    """Whether the rows of some parts, and of no others, are the answer for their keys.

    Of one run and one time, no two of them are equal but for the time. Of several times two may be,
    whatever their diffs are.
    """
    source = group[0][0]
    return (
        not source.run.truncated
        and all(other is source for other, _ in group)
        and all(
            part.inline is None and part.rewrite is None and part.schema_id == spec.schema_id
            for _, part in group
        )
        and len({time for _, part in group for time in (part.time_lower, part.time_upper)}) == 1
    )
