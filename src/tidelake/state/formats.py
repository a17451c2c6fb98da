"""What may be written into a lake that processes of an earlier version use as well.

A lake has a format (`Agreed.format`), and a record has the least format that knows its fields. No process
writes a record of a later format than the lake's, until `agreeing.upgrade` has raised that. The one exception
is a shard that has slices already: the version which made format 4 wrote them into lakes that tell no format.
"""

from tidelake.errors import InternalError
from tidelake.state.agreed import ERASING, HASHED, LINEAGE, RENAMING, SLICES
from tidelake.state.edits import Edits
from tidelake.state.garbage import arriving
from tidelake.state.state import ShardState


def check_format(before: ShardState, after: ShardState, edits: Edits) -> None:
    """Check that the version before can read a step, unless the lake is upgraded. Costs O(change).

    Only the process that writes a step checks this, and earlier versions did not.

    Raises:
        InternalError: they could not.
    """
    claims = [claim for claim in edits.claims.values() if claim is not None]
    sliced = (
        edits.sliced is not None
        or bool(edits.bases)
        or edits.unpaid is not None
        or any(claim.base is not None or claim.by_time for claim in claims)
    )
    allowed = max(before.format, after.agreed.format)
    if allowed < HASHED and any(part.row_hash is not None for part in arriving(edits)):
        raise InternalError(f"a step of {before.shard_id} has hashes of rows, and the format is {allowed}")
    if allowed < RENAMING and any(version.renamed for version in edits.schemas.values()):
        raise InternalError(f"a step of {before.shard_id} renames a column, and the format is {allowed}")
    if allowed < RENAMING and edits.note is not None:
        raise InternalError(f"a step of {before.shard_id} has a note, and the format is {allowed}")
    if edits.erasures and allowed < ERASING:
        raise InternalError(f"a step of {before.shard_id} has erasures, and the format is {allowed}")
    freed = edits.freed or any(fork is not None and fork.freed for fork in edits.forks.values())
    if freed and allowed < LINEAGE:
        raise InternalError(f"a step of {before.shard_id} frees a fork, and the format is {allowed}")
    told = edits.closed_ms is not None or any(one and one.closed_ms for one in edits.memberships.values())
    if told and allowed < LINEAGE:
        raise InternalError(f"a step of {before.shard_id} tells when times were closed: format is {allowed}")
    if sliced and allowed < SLICES:
        raise InternalError(f"a step of {before.shard_id} has slices or bases, and the format is {allowed}")
