"""Advancing `since` of several collections, all or none.

One compare-and-set of the catalog decides: it adds an intent with the shards and their frontiers. Then each
shard is updated, and the intent is removed. If a crash leaves an intent, the next process that finds it does
the same again, which is harmless: `since` only moves forward. Apart from the names that a user gives, this
must not know names.

INVARIANT: an intent stays in the catalog until all its shards are updated.
"""

import json
from collections.abc import Callable, Mapping

from tidelake.env import Env
from tidelake.errors import (
    CollectionNotFound,
    CorruptionError,
    OutcomeUnknown,
    StoreUnavailable,
    TidelakeError,
    UsageError,
)
from tidelake.lake.arguments.times import FrontierLike, times_for
from tidelake.lake.catalog.catalog import Catalog
from tidelake.lake.catalog.leftovers import DAMAGED
from tidelake.model.frontier import Frontier
from tidelake.shard.engine.shard import Shard
from tidelake.state.life.holds import readable


class Sinces:
    """Advances `since` of the collections of one lake.

    Args:
        catalog: catalog of the lake.
        named: opens the shard that a name led to a moment ago; raises if there is none, or it is gone.
        opened: opens a shard by its id.
        env: of this process.
    """

    def __init__(
        self,
        catalog: Catalog,
        named: Callable[[str, str | None], Shard],
        opened: Callable[[str], Shard],
        env: Env,
    ) -> None:
        self._catalog, self._named, self._opened, self._env = catalog, named, opened, env

    def advance(self, frontiers: Mapping[str, FrontierLike]) -> dict[str, Frontier]:
        """Advance `since` of all given collections to their frontiers; see `Lake.advance_since`."""
        given: object = frontiers
        if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
            raise UsageError(f"frontiers={given!r} names no collections: give {{name: time}}")
        while True:
            self.finish()
            listing = self._catalog.look(frontiers)
            shards = {name: self._named(name, listing.shards.get(name)) for name in frontiers}
            wanted = {name: checked_since(name, shard, frontiers[name]) for name, shard in shards.items()}
            what = _encoded({shards[name].spec.shard_id: since for name, since in wanted.items()})
            if not wanted or self._catalog.intend(listing, self._env.ids.fresh(), what):
                break
        try:
            self.finish()
            return {name: shard.state().since for name, shard in shards.items()}
        except StoreUnavailable as error:
            raise OutcomeUnknown(
                f"since of {', '.join(map(repr, wanted))} will advance, but not all of them could be updated "
                f"now: the next call, or maintenance, does it: {error}"
            ) from error

    def finish(self) -> list[TidelakeError]:
        """Carry out all intents in the catalog. Returns the errors of damaged shards, whose intents stay."""
        damaged: list[TidelakeError] = []
        for key, what in self._catalog.look([], intents=True).intents.items():
            left = len(damaged)
            for shard_id, since in _decoded(what).items():
                try:
                    self._opened(shard_id).advance_since(since)
                except CollectionNotFound:
                    # It was dropped meanwhile.
                    continue
                except DAMAGED as error:
                    # The damaged shard is updated after its repair; the others are updated now.
                    damaged.append(error)
            if len(damaged) == left:
                self._catalog.done(key)
        return damaged


def checked_since(name: str, shard: Shard, value: FrontierLike) -> Frontier:
    """The `since` that a user gives for a collection; refused if no closed time would be left to read."""
    state = shard.apply_decided().state
    since, text = times_for(shard).since(value, f"since of {name!r}"), state.domain.text
    if not since <= state.since and (since.closed or not readable(since, state.upper)):
        raise UsageError(
            f"since={text(since)} is past the upper {text(state.upper)} of collection {name!r} or at it: "
            f"nothing could be read; give at most {text(state.upper.just_before())}"
        )
    both = state.retained.join(since)
    if both != state.retained and not readable(both, state.upper):
        raise UsageError(
            f"since={text(since)}, combined with the earlier advance_since of collection {name!r} to "
            f"{text(state.retained)}, is {text(both)}, past the upper {text(state.upper)}: nothing could be "
            "read. Close times at or after that first, or give a closed time that is at or after both"
        )
    return since


def _encoded(sinces: Mapping[str, Frontier]) -> str:
    return json.dumps({shard_id: since.elements for shard_id, since in sinces.items()})


def _decoded(what: str) -> dict[str, Frontier]:
    try:
        return {
            shard_id: Frontier.of_all(tuple(t) if isinstance(t, list) else t for t in times)
            for shard_id, times in json.loads(what).items()
        }
    except (ValueError, TypeError, AttributeError) as error:
        raise CorruptionError("catalog", f"an intent of it cannot be read: {what!r}") from error
