"""The shards of a lake: found by the names of its collections, opened by their ids.

Owns the errors for names that lead to no shard, or no longer do. Must not know what is done with a shard.
"""

from functools import partial
from weakref import WeakSet, WeakValueDictionary

from tidelake.config import Config
from tidelake.env import Env
from tidelake.errors import CollectionDropped, CollectionNotFound, CorruptionError, TidelakeError
from tidelake.lake.arguments.names import check_text, not_found
from tidelake.lake.catalog.catalog import Catalog
from tidelake.lake.catalog.closeguard import CloseGuard
from tidelake.model.frontier import Frontier
from tidelake.shard.engine.machine import GroupCommit
from tidelake.shard.engine.renewer import LeaseRenewer
from tidelake.shard.engine.shard import Shard
from tidelake.shard.engine.spec import ShardSpec
from tidelake.state.core.state import Owned
from tidelake.state.life import agreeing
from tidelake.state.upkeep import claims
from tidelake.store.url import Stores


class Shards:
    """Opens and makes the shards of one lake. All handles on one shard share its group commit.

    Args:
        stores: stores of the lake.
        env: of this process.
        url: URL of the lake.
        config: settings of this process.
        catalog: catalog of the lake.
        guard: shut when the lake is closed.
        renewer: keeps the parts of long reads.
    """

    def __init__(
        self,
        stores: Stores,
        env: Env,
        url: str,
        config: Config,
        *,
        catalog: Catalog,
        guard: CloseGuard,
        renewer: LeaseRenewer,
    ) -> None:
        self._stores, self._env, self._url, self._config = stores, env, url, config
        self._catalog, self._guard, self._renewer = catalog, guard, renewer
        self._opened = WeakSet[Shard]()
        self._group_commits: WeakValueDictionary[str, GroupCommit] = WeakValueDictionary()

    def id_of(self, name: str) -> str:
        """The id of the shard that a name leads to now; see `Lake.id_of`."""
        self._guard.check()
        check_text(name)
        shard_id = self._catalog.look([name]).shards.get(name)
        if shard_id is None:
            raise self.not_found(name)
        return shard_id

    def named(self, name: str) -> Shard:
        """Open the shard that a name leads to now."""
        return self.led_to(name, self.id_of(name))

    def led_to(self, name: str, shard_id: str | None) -> Shard:
        """Open the shard that a name led to a moment ago."""
        if shard_id is None:
            raise self.not_found(name)
        try:
            return self.open(shard_id)
        except CollectionDropped as error:
            raise CollectionDropped(name) from error
        except CollectionNotFound as error:
            # A drop takes the name away before the log; nothing else deletes a log that has a name.
            if self._catalog.look([name]).shards.get(name) == shard_id:
                raise CorruptionError(shard_id, f"collection {name!r} has lost its log") from error
            raise CollectionDropped(name) from error

    def open(self, shard_id: str) -> Shard:
        """Open a shard by its id."""
        shard = Shard.open(
            self._stores,
            self._env,
            self._url,
            shard_id,
            self._config,
            renewer=self._renewer,
            group_commit=self._group_commit_of(shard_id),
        )
        self.agree(shard)
        self._opened.add(shard)
        return shard

    def agree(self, shard: Shard) -> None:
        """Let a shard adopt the settings of the lake, as far as this process knows them.

        No store call if the shard has them. It lacks them only if a change missed it: it was being created
        then, or the process that wrote the change died. A shard at its first state may have no name yet, and
        is left alone.
        """
        agreed, state = self._catalog.known_agreed(), shard.known()
        if state.seqno and state.agreed.revision < agreed.revision and not self._stores.read_only:
            shard.run(partial(agreeing.adopt, agreed=agreed))

    def make(self, spec: ShardSpec, owned: tuple[Owned, Frontier] | None = None) -> Shard:
        """Make a shard, with an owner if one is given; see `Shard.create`. It has no name yet."""
        group_commit = self._group_commit_of(spec.shard_id)
        shard = Shard.create(
            self._stores,
            self._env,
            spec,
            renewer=self._renewer,
            group_commit=group_commit,
            agreed=self._catalog.known_agreed(),
            owned=owned,
        )
        self._opened.add(shard)
        return shard

    def hand_over(self) -> None:
        """Let others go on with merges that were begun here. If the store fails, the claims expire."""
        for shard in list(self._opened):
            if any(claim.runner == shard.runner for claim in shard.known().claims.values()):
                try:
                    shard.run(partial(claims.hand_over, runner=shard.runner))
                except TidelakeError:
                    # The others would wait for the same store.
                    self._env.failed("close.failed")
                    break

    def unmake(self, shard_id: str) -> None:
        """Delete an empty shard that was made for a name which another shard got first."""
        self._stores.log.delete(shard_id)

    def not_found(self, name: str) -> CollectionNotFound:
        """The error for an unknown name, with the nearest names. Reads all names."""
        return CollectionNotFound(not_found(name, self._catalog.read().shards))

    def _group_commit_of(self, shard_id: str) -> GroupCommit:
        # Two threads at once may get different ones, which only means more log writes.
        return self._group_commits.setdefault(shard_id, GroupCommit(self._env, self._guard.command))
