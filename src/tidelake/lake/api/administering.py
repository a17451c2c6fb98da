"""Administration of a lake: advancing since, settings, garbage collection and checks."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tidelake.errors import CorruptionError, ReadOnlyLake
from tidelake.lake.admin.agreeing import UpgradeReport
from tidelake.lake.api.handle import LakeHandle
from tidelake.lake.api.notebook import Told, bar
from tidelake.lake.arguments.names import check_list, check_text
from tidelake.lake.arguments.spans import DurationLike
from tidelake.lake.arguments.times import FrontierLike
from tidelake.lake.catalog.catalog import SHARD_ID
from tidelake.lake.catalog.settings import LakeSettings
from tidelake.model.frontier import Frontier
from tidelake.shard.upkeep.ending import Removed

if TYPE_CHECKING:
    from tidelake.lake.admin.fsck import FsckReport


class Administering(LakeHandle):
    """Methods of a lake that keep it in order: history, settings, garbage, damage."""

    def advance_since(self, frontiers: Mapping[str, FrontierLike]) -> dict[str, Frontier]:
        """Advance `since` of several collections, each to its own frontier: all or none.

        One write of the catalog decides; then each collection is updated. After a crash in between, the next
        call, upkeep of all collections, `collect` or `tidelake maintain` finishes it. Collections that are
        dropped meanwhile are left out. Several processes may call it at once: `since` only moves forward.

        Args:
            frontiers: by name; each as for `Collection.advance_since`.

        Returns:
            The current `since`, by name; holds may keep it back. A few store calls for each collection.

        Raises:
            CollectionNotFound: there is none of such a name; names the nearest ones.
            CollectionDropped: one is being dropped.
            UsageError: a frontier leaves no closed time to read, or does not fit the collection's times. The
                first such collection in the given order is named, and nothing has changed.
            OutcomeUnknown: it may be decided; then it will be finished. Repeating the call is harmless.
        """
        self._guard.check()
        return self._sinces.advance(frontiers)

    def settings(self, **changes: DurationLike) -> LakeSettings:
        """Read the settings that all processes of the lake use; with arguments, change these first.

        `lake.settings(upload_age_s=timedelta(days=30))` lets uploads take a month, for all processes. The
        settings are stored in the lake and in the state of every collection, so that a collector uses the
        settings of the very state that it changes. A longer age takes effect with that commit. A shorter age
        takes effect only after the old age has passed, so that work begun under the old one can finish.

        Args:
            changes: see `LakeSettings`; in seconds, a timedelta, or a text such as `"7d"`.

        Returns:
            All settings. One log scan; a change costs a log write of the catalog and of each collection.

        Raises:
            UsageError: there is no such setting.
            OutcomeUnknown: the settings are changed, but some collections could not be updated. These use the
                old settings until a process opens them or calls `collect`, or this call is repeated.
        """
        self._guard.check()
        return self._agreeing.settings(changes)

    def upgrade(self) -> UpgradeReport:
        """Let this version write all that it can, in every collection; versions before it are locked out.

        A lake that an earlier version made is written so that processes of that version can go on working
        on it. Once all processes that use the lake are of this version, upgrade it. An earlier version then
        gets `FormatTooNew`, and nothing that it has committed is lost. There is no way back.

        Safe beside readers and writers of any version, and harmless to repeat. Costs a log write of the
        catalog and of each collection, and moves no data.

        Raises:
            OutcomeUnknown: the lake is upgraded, but some collections could not be updated. These stay as
                they were until a process opens them or calls `collect`, or this call is repeated.
        """
        self._guard.check()
        return self._agreeing.upgrade()

    def collect(self) -> Removed:
        """Remove what drops and failed creations have left: tombstones, shards and objects without a name.

        Also finishes an interrupted `advance_since`, `settings` or `upgrade`.

        Whatever may still be in progress stays until it is older than the setting `upload_age_s`. Safe to
        repeat, to stop at any point, and to run in several processes at once. Lists the whole store. A
        damaged collection or group stays as it is and is named in the answer; only the catalog must be
        intact.
        """
        self._guard.check()
        if self._stores.read_only:
            raise ReadOnlyLake(self.url)
        damaged = self._sinces.finish()
        untold = self._agreeing.finish()
        damaged += [error for error in untold if isinstance(error, CorruptionError)]
        self._catalog.collect()
        named = {shard_id for shard_id in self._catalog.read().shards.values() if shard_id is not None}
        damaged += self._groups.collect(frozenset(self._stores.log.keys()) - named - {SHARD_ID})
        removed = Removed(damaged=tuple(str(error) for error in damaged))
        return removed.plus(self._leftovers.tombstones()).plus(self._leftovers.objects())

    def fsck(
        self,
        names: Sequence[str] | None = None,
        *,
        repair: bool = False,
        quick: bool = False,
        progress: Told | None = None,
    ) -> "FsckReport":
        """Check the stored data for damage; docs/guide.md lists the kinds of findings.

        May run beside everything else. Reads all parts twice, row group by row group; with `quick` only
        the logs, and the names and sizes of objects.

        Args:
            names: the collections to check; default: all, the catalog, and the other objects in the stores.
                The catalog is checked too if it cannot be read.
            repair: repair what can be repaired. A collection that breaks rules, lacks parts, or has unusable
                log entries is restored with all that can be kept; the rest is set aside: named in the report
                and stored where it can be inspected. Nothing that holds data is removed.
            quick: do not read the contents of the parts.
            progress: called for each part that was checked, with the name of a collection, the bytes done
                and all bytes to check. Default: a bar, in a notebook.

        Raises:
            CollectionNotFound: there is none of such a name.
        """
        self._guard.check()
        if names is not None:
            check_list(names, "names")
            for name in names:
                check_text(name)
        from tidelake.lake.admin.fsck import LakeCheck

        with bar("fsck: bytes", self.env.clock) as shown:
            check = LakeCheck(
                self._stores,
                self.url,
                self._catalog,
                self._leftovers,
                env=self.env,
                config=self._config,
                deep=not quick,
                repair=repair,
                watch=progress or shown,
            )
            return check.all() if names is None else check.some(names)
