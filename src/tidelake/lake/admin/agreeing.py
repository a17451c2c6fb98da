"""How a change of the lake's settings reaches every shard.

One compare-and-set of the catalog makes the change. Then it is written to every shard. A shard can be missed:
it was being created, or the process that wrote the change died. The next process that opens such a shard
writes the settings to it (`Shards.agree`).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from tidelake.errors import (
    CollectionNotFound,
    CorruptionError,
    OutcomeUnknown,
    StoreUnavailable,
    TidelakeError,
)
from tidelake.lake.catalog.catalog import SHARD_ID, Catalog
from tidelake.lake.catalog.settings import LakeSettings, asked
from tidelake.shard.engine.shard import Shard
from tidelake.state.core.formats import NEWEST
from tidelake.tabletext import FieldsAsHtml


@dataclass(frozen=True)
class UpgradeReport(FieldsAsHtml):
    """What an upgrade of a lake did.

    Attributes:
        before: the format that the lake had.
        after: the format that it has; equal to `before` if there was nothing to do.
    """

    before: int
    after: int


class Agreeing:
    """Reads and changes the settings of one lake.

    Args:
        catalog: the catalog of the lake.
        keys: lists the ids of all shards.
        opened: opens a shard by its id, and lets it adopt the settings of the lake.
    """

    def __init__(
        self, catalog: Catalog, keys: Callable[[], Iterable[str]], opened: Callable[[str], Shard]
    ) -> None:
        self._catalog, self._keys, self._opened = catalog, keys, opened

    def settings(self, wanted: Mapping[str, object]) -> LakeSettings:
        """Change the given settings, if any, and return all of them. See `Lake.settings`."""
        values = asked(wanted)
        if not values:
            return LakeSettings.of(self._catalog.agreed())
        agreed = self._catalog.change_agreed(values)
        self._finish("the settings of the lake are changed")
        return LakeSettings.of(agreed)

    def upgrade(self) -> UpgradeReport:
        """Raise the format of the lake to the newest one. See `Lake.upgrade`."""
        before = self._catalog.upgrade()
        self._finish(f"the lake has format {NEWEST}")
        return UpgradeReport(before.format, max(before.format, NEWEST))

    def _finish(self, what: str) -> None:
        untold = self.finish()
        if untold:
            raise OutcomeUnknown(
                f"{what}, but {len(untold)} collections could not be updated: they use the old ones until "
                f"they are opened again, or until the next call: {untold[0]}"
            )

    def finish(self) -> list[TidelakeError]:
        """Write the newest settings to all shards, if that is not done yet.

        Returns:
            One error for each shard that could not be written to.
        """
        agreed = self._catalog.known_agreed()
        if agreed.told:
            return []
        failed: list[TidelakeError] = []
        for shard_id in sorted(self._keys()):
            if shard_id == SHARD_ID:
                continue
            try:
                self._opened(shard_id)
            except CollectionNotFound:
                continue  # It is gone or being dropped: no setting is used for it any more.
            except (StoreUnavailable, OutcomeUnknown, CorruptionError) as error:
                failed.append(error)
        if not failed:
            self._catalog.told(agreed.revision)
        return failed
