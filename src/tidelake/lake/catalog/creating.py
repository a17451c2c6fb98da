"""New collections: the shard is made first, then named. If several processes create one, the first wins."""

from tidelake.errors import CollectionDropped, IncompatibleSchema
from tidelake.lake.catalog.catalog import Catalog
from tidelake.lake.catalog.leftovers import Leftovers
from tidelake.lake.catalog.publishing import confirm
from tidelake.lake.catalog.renaming import refuse_gone
from tidelake.lake.catalog.shards import Shards
from tidelake.model.frontier import Frontier
from tidelake.shard.engine.shard import Shard
from tidelake.shard.engine.spec import ShardSpec
from tidelake.state.core.state import Owned


def create_collection(
    name: str,
    spec: ShardSpec,
    catalog: Catalog,
    shards: Shards,
    leftovers: Leftovers,
    *,
    allow_recreate: bool,
    owned: tuple[Owned, Frontier] | None = None,
) -> Shard:
    """Make a shard and give it a name, or open the one that has the name. See `Lake.create`."""
    made: Shard | None = None
    while True:
        listing = catalog.look([name])
        present = listing.shards.get(name)
        found = None if present is None else _alive(shards, name, present)
        if made is not None and found is not None:
            # Another process got the name first: remove the empty shard made here.
            shards.unmake(spec.shard_id)
        if found is not None:
            _check_same(name, found.version_of(found.known()).spec, spec)
            return found
        if name in listing.shards and not allow_recreate:
            refuse_gone(name)
        # The shard first: a name never leads to nothing.
        made = made or shards.make(spec, owned)
        if not leftovers.ending(spec.shard_id).is_alive():
            # This process slept, and another one collected the shard as the remains of a crash.
            raise CollectionDropped(name)
        if catalog.set(listing, name, spec.shard_id):
            confirm(made.run, spec.shard_id, name, catalog)
            shards.agree(made)
            return made


def _alive(shards: Shards, name: str, shard_id: str) -> Shard | None:
    """The shard that a name led to a moment ago; None if it is being dropped."""
    try:
        return shards.led_to(name, shard_id)
    except CollectionDropped:
        return None


def _check_same(name: str, spec: ShardSpec, wanted: ShardSpec) -> None:
    if spec.domain != wanted.domain:
        raise IncompatibleSchema(
            f"collection {name!r} exists and its time is {spec.domain}, not {wanted.domain}, and the unit of "
            f"time never changes: give time={str(spec.domain)!r}, or make a collection of another name"
        )
    if not spec.schema.same_columns(wanted.schema):
        was = any(schema.same_columns(wanted.schema) for schema in spec.schemas.values())
        raise IncompatibleSchema(
            f"collection {name!r} exists with {spec.schema} time {spec.domain}, "
            f"which does not equal {wanted.schema} time {wanted.domain}"
            + (", a schema that it had: open it with lake.collection(...)" if was else "")
        )
