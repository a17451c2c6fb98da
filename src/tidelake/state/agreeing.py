"""The commands that change the settings which all processes of a lake go by.

The catalog's are the lake's. A change is one commit of the catalog; then every other shard adopts it. Each
shard is right by itself at any moment between: its readers, uploaders and collectors go by its own state.
"""

from collections.abc import Mapping
from dataclasses import replace

from tidelake.state.agreed import Agreed
from tidelake.state.commands import Commit, NoOp, Outcome
from tidelake.state.edits import Edits
from tidelake.state.state import ShardState


def change(state: ShardState, now_ms: int, values: Mapping[str, int]) -> Outcome[Agreed]:
    """Change some settings of the lake, in its catalog. The others are still to be told."""
    agreed = state.agreed
    if all(getattr(agreed, name) == value for name, value in values.items()):
        return NoOp(agreed)
    changed = replace(agreed.changed(now_ms, agreed.revision + 1, values), told=False)
    return Commit(Edits(agreed=changed), changed)


def adopt(state: ShardState, now_ms: int, agreed: Agreed) -> Outcome[None]:
    """Go by the settings of the catalog, unless the shard does so or goes by later ones.

    What stays in force for a while is what this shard went by.
    """
    if state.dropped or state.agreed.revision >= agreed.revision:
        return NoOp(None)
    return Commit(Edits(agreed=state.agreed.changed(now_ms, agreed.revision, agreed.values)), None)


def told(state: ShardState, _now_ms: int, revision: int) -> Outcome[None]:
    """Note in the catalog that every shard has adopted a revision."""
    if state.agreed.told or state.agreed.revision != revision:
        return NoOp(None)
    return Commit(Edits(agreed=replace(state.agreed, told=True)), None)
