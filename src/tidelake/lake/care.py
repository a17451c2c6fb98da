"""What a lake does to keep itself in order: it lets history go, removes what is left over, and checks."""

from collections.abc import Mapping, Sequence
from datetime import timedelta

from tidelake.errors import CorruptionError, ReadOnlyLake
from tidelake.lake.catalog import SHARD_ID
from tidelake.lake.frontiers import FrontierLike
from tidelake.lake.fsck import FsckReport, LakeCheck, Watch
from tidelake.lake.lakehandle import LakeHandle
from tidelake.lake.names import check_list, check_text
from tidelake.lake.settings import LakeSettings
from tidelake.model.frontier import Frontier
from tidelake.shard.upkeep.ending import Removed


class Care(LakeHandle):
    """A handle that looks after its lake."""

    def advance_since(self, frontiers: Mapping[str, FrontierLike]) -> dict[str, Frontier]:
        """Let merges fold the history of several collections, each before its own frontier: all or none.

        One write of the list of collections decides; then each of them is told. Where a crash comes between,
        the next call, upkeep of all collections, `collect` or `tidelake maintain` finishes it. Collections
        that are dropped meanwhile are left out. Several may be at it: what is allowed only moves forward.

        Args:
            frontiers: by name; each as for `Collection.advance_since`, or at the upper or past it: `since`
                then follows the upper, so that the last closed time can be read.

        Returns:
            Where `since` is now, by name; holds may keep it back. A few store calls each.

        Raises:
            CollectionNotFound: there is none of such a name; names the nearest ones.
            CollectionDropped: one is being dropped.
            UsageError: a frontier is none of the collection's times, or goes back. The first one in the
                order given is named, and nothing has changed.
            OutcomeUnknown: it may be decided. Then it will be done; the same call again is harmless.
        """
        self._gate.check()
        return self._sinces.advance(frontiers)

    def settings(self, **changes: float | timedelta) -> LakeSettings:
        """The settings that all processes of the lake go by; with arguments, after changing these.

        `lake.settings(upload_age_s=timedelta(days=30))` lets uploads take a month, whoever maintains. They
        are stored in the lake, and in the state of every collection: a collector goes by those of the very
        state that it changes. An age that becomes longer holds from that commit on. One that becomes
        shorter stays in force for as long as it was, so that nobody who began under it is deceived.

        Args:
            changes: see `LakeSettings`; in seconds, or a timedelta.

        Returns:
            All of them. One log scan; to change, a log write of the catalog and of each collection.

        Raises:
            UsageError: there is no such setting.
            OutcomeUnknown: they are changed, but some collections could not be told. They go by the old ones
                until somebody opens them or calls `collect`, or this again.
        """
        self._gate.check()
        return self._agreeing.settings(changes)

    def collect(self) -> Removed:
        """Remove what drops and failed creations have left: tombstones, shards and objects without a name.

        And finish what an `advance_since` of several collections has left to do.

        What may still be under way is left until it is older than the setting `upload_age_s`. May be
        repeated, stopped anywhere, and run by several at once. Lists the whole store. A collection or group
        that is damaged is left as it is, and named in the answer; only the catalog must be whole.
        """
        self._gate.check()
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
        deep: bool = True,
        watch: Watch | None = None,
    ) -> FsckReport:
        """Check that what is stored is whole; docs/guide.md lists the kinds of findings.

        May run beside everything else. Reads all parts twice, row group by row group; without `deep` only
        the logs, and the names and sizes of objects.

        Args:
            names: of the collections; default: all, and the catalog, and what lies beside them.
            repair: mend what can be mended. A collection that breaks rules, lacks parts, or has log entries
                that cannot be used is brought back with all that can be kept; what cannot is set aside, named
                in the report, and stored where people can look at it. Nothing that holds data is removed.
            deep: read the parts.
            watch: is told of each part that was looked at.

        Raises:
            CollectionNotFound: there is none of such a name.
        """
        self._gate.check()
        if names is not None:
            check_list(names, "names")
            for name in names:
                check_text(name)
        check = LakeCheck(
            self._stores,
            self.url,
            self._catalog,
            self._leftovers,
            env=self._env,
            config=self._config,
            deep=deep,
            repair=repair,
            watch=watch,
        )
        return check.all() if names is None else check.some(names)
