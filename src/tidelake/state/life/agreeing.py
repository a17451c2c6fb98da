"""The commands that change the settings which all processes of a lake agree on.

The catalog holds the lake's settings. A change is one commit of the catalog; then all other shards adopt it.
Each shard is correct at any moment between, because its readers, uploaders and collectors use its own state.
"""

from collections.abc import Mapping
from dataclasses import replace

from tidelake.state.core.agreed import Agreed
from tidelake.state.core.commands import Commit, NoOp, Outcome
from tidelake.state.core.edits import Edits
from tidelake.state.core.formats import NEWEST
from tidelake.state.core.state import ShardState


def change(state: ShardState, now_ms: int, values: Mapping[str, int]) -> Outcome[Agreed]:
    """Change some settings of the lake, in its catalog. The other shards still have to `adopt` them."""
    agreed = state.agreed
    if all(getattr(agreed, name) == value for name, value in values.items()):
        return NoOp(agreed)
    changed = replace(agreed.changed(now_ms, agreed.revision + 1, values), told=False)
    return Commit(Edits(agreed=changed), changed)


def upgrade(state: ShardState, _now_ms: int) -> Outcome[Agreed]:
    """Raise the format of the lake to the newest one, in its catalog. The result is the settings before.

    The other shards still have to `adopt` it.
    """
    agreed = state.agreed
    if agreed.format >= NEWEST:
        return NoOp(agreed)
    raised = replace(agreed, revision=agreed.revision + 1, format=NEWEST, told=False)
    return Commit(Edits(agreed=raised), agreed)


def adopt(state: ShardState, now_ms: int, agreed: Agreed) -> Outcome[None]:
    """Take over the settings of the catalog, unless the shard has them or later ones.

    An age that becomes shorter stays in force for as long as it was in this shard.
    """
    if state.dropped or state.agreed.revision >= agreed.revision:
        return NoOp(None)
    mine = state.agreed.changed(now_ms, agreed.revision, agreed.values)
    return Commit(Edits(agreed=replace(mine, format=max(mine.format, agreed.format))), None)


def told(state: ShardState, _now_ms: int, revision: int) -> Outcome[None]:
    """Note in the catalog that every shard has adopted a revision."""
    if state.agreed.told or state.agreed.revision != revision:
        return NoOp(None)
    return Commit(Edits(agreed=replace(state.agreed, told=True)), None)
