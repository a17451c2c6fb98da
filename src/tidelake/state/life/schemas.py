"""The registry of schemas: which ones a shard has had, and the commands that add to it.

Schemas are numbered from 0; the greatest number is the newest. Parts carry the number that they were
written under, and none is ever removed.
"""

from collections.abc import Mapping, Sequence

from tidelake.errors import CollectionDropped, IncompatibleSchema, UsageError
from tidelake.model.evolution import evolved, to_rename, with_names
from tidelake.model.schema import Schema, SchemaVersion
from tidelake.state.core.commands import Commit, NoOp, Outcome, Refused
from tidelake.state.core.edits import Edits
from tidelake.state.core.owned import not_for
from tidelake.state.core.state import ShardState


def register_schema(state: ShardState, _now_ms: int, schema: Schema) -> Outcome[int]:
    """The id of the newest schema, if it equals this one; otherwise refused."""
    if state.schema.same_columns(schema):
        return NoOp(state.schema_id)
    return Refused(
        IncompatibleSchema(
            f"the schema {schema} does not equal the registered one {state.schema}: "
            "open the collection without a schema, and change it by evolve"
        )
    )


def evolve(
    state: ShardState,
    _now_ms: int,
    schema: Schema | None,
    drop: Sequence[str],
    rename: Mapping[str, str] | None = None,
) -> Outcome[int]:
    """Make a schema the newest one; returns its id. Nothing is written if the newest one is equal."""
    if state.dropped:
        return Refused(CollectionDropped(state.shard_id))
    versions = {id_: version.schema for id_, version in state.schemas.items()}
    renamed = to_rename(versions, rename or {})
    try:
        wanted = with_names(state.schema, renamed) if schema is None else schema
        next_ = evolved(versions, wanted, drop, renamed)
    except (IncompatibleSchema, UsageError) as error:
        return Refused(error)
    if next_ == state.schema:
        return NoOp(state.schema_id)
    strange = not_for(state, "")
    if strange is not None:
        return Refused(strange)
    id_ = state.schema_id + 1
    return Commit(Edits(schemas={id_: SchemaVersion(next_, state.seqno + 1, renamed)}), id_)


def schema_id_at(state: ShardState, seqno: int) -> int:
    """The id of the schema that was newest in the state of a seqno."""
    if not 0 <= seqno <= state.seqno:
        raise UsageError(f"seqno={seqno} is none of the states 0 to {state.seqno} of this collection")
    return max(id_ for id_, version in state.schemas.items() if version.seqno <= seqno)
