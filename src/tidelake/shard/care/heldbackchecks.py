"""Checks the objects in which streams hold rows back: they are there, with the bytes that were stored."""

from collections.abc import Callable, Iterable

from tidelake.errors import BlobNotFound
from tidelake.model import names
from tidelake.shard.care.finding import Tell
from tidelake.state.core.state import ShardState
from tidelake.state.write.heldback import digest_of, held_objects
from tidelake.store.protocols import BlobInfo, BlobStore

_MEANS = (
    "a stream holds events of a transaction back in it, and stops where it needs them: take it from a copy "
    "of the lake, or take the feed into new collections"
)


def check_held(
    state: ShardState,
    listed: Iterable[BlobInfo],
    blobs: BlobStore,
    newest: Callable[[], ShardState],
    tell: Tell,
    *,
    deep: bool,
) -> None:
    """Report objects that are gone or damaged, and that the newest state still needs.

    Args:
        state: of the shard, or of a group, whose members may be others.
        listed: the objects of the shard.
        blobs: the store.
        newest: reads the newest state.
        tell: called for each finding.
        deep: read the bytes too.
    """
    there = {info.name for info in listed}
    found: list[tuple[str, str, str]] = []
    for name in sorted(held_objects(state)):
        if deep:
            try:
                data = blobs.get(name)
            except BlobNotFound:
                found.append(("held-missing", name, f"it is gone; {_MEANS}"))
                continue
            if digest_of(data) != names.held_digest(name):
                found.append(("held-damaged", name, f"it has other bytes than were stored; {_MEANS}"))
        elif name not in there and not any(True for _ in blobs.list(name)):
            found.append(("held-missing", name, f"it is gone; {_MEANS}"))
    needed = held_objects(newest()) if found else frozenset()
    for kind, name, message in found:
        if name in needed:
            tell(kind, name, message)
