"""Recomputes the bases of a shard and compares: each from the sound base before it and the updates between.

A base depends on nothing but these, so it can be forgotten without loss, and maintenance makes another.
Reads row groups ahead of a merge, so memory does not grow with the bases. Writes nothing.
"""

from collections.abc import Collection
from dataclasses import replace

from tidelake.errors import BlobNotFound, CorruptionError, InvalidUpdates
from tidelake.model.batch import HollowBatch
from tidelake.model.query import AsOf
from tidelake.shard.care.finding import Finding, Tell
from tidelake.shard.engine.spec import ShardSpec
from tidelake.shard.runs.read import rows, sources
from tidelake.state.core.state import ShardState
from tidelake.state.spine.bases import Base
from tidelake.state.spine.spine import SpineId
from tidelake.store.protocols import BlobStore

# Findings about a part after which its rows cannot be trusted.
_UNSOUND = ("part-", "run-unsorted", "batch-times")


def unsound(state: ShardState, found: Collection[Finding]) -> list[Base]:
    """The bases that have parts which a check complained about."""
    bad = {one.object for one in found if one.kind.startswith(_UNSOUND)}
    return [base for base in state.bases if any(part.name in bad for part in base.parts())]


def object_of(state: ShardState, base: Base) -> str:
    """The name of a base in findings."""
    return f"{state.shard_id} base {base.hi}"


def differing(
    state: ShardState, spec: ShardSpec, blobs: BlobStore, tell: Tell, *, without: Collection[Base]
) -> list[Base]:
    """The bases that do not have the contents just before their boundaries; each is told as `base-differs`.

    Costs, for each base, a read of it, of the sound base before it, and of the updates between.
    """
    found: list[Base] = []
    before: Base | None = None
    for base in state.bases:
        if base in without:
            continue
        try:
            message = _difference(state, spec, blobs, before, base)
        except (BlobNotFound, CorruptionError):
            # Told with the parts, or not needed any more by a newer state.
            continue
        if message:
            found.append(base)
            tell("base-differs", object_of(state, base), message)
        else:
            before = base
    return found


def _difference(state: ShardState, spec: ShardSpec, blobs: BlobStore, before: Base | None, base: Base) -> str:
    """How the contents just before a boundary differ from its base; empty if they do not."""
    made_of = [] if before is None else [before.batch(state.minimum)]
    between = state.spine.range(SpineId(0 if before is None else before.hi, base.hi))
    made_of += [member.batch for member in between]
    query = AsOf(base.time)
    # The rows of the base are taken away from what it should be: nothing is left if they are the same.
    taken: list[HollowBatch] = [base.batch(state.minimum)]
    needed = [
        *sources(made_of, query),
        *(replace(source, less=base.time) for source in sources(taken, query)),
    ]
    differ, example = 0, ""
    try:
        for batch in rows(spec, blobs, needed, query):
            example = example or str(batch.slice(0, 1).to_pylist()[0])
            differ += batch.num_rows
    except InvalidUpdates as error:
        return f"its contents cannot be compared: {error}"
    if not differ:
        return ""
    return (
        f"{differ} rows differ from the contents just before time {base.at}, such as {example} (stored less "
        f"often by _diff): reads as of {base.time} and later are wrong; --repair forgets it, and maintenance "
        "makes another one"
    )
