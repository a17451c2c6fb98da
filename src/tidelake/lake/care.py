"""What a lake does to keep itself in order: it lets history go, removes what is left over, and checks."""

from collections.abc import Mapping, Sequence

from tidelake.lake.catalog import SHARD_ID
from tidelake.lake.frontiers import FrontierLike
from tidelake.lake.fsck import FsckReport, LakeCheck, Watch
from tidelake.lake.lakehandle import LakeHandle
from tidelake.lake.names import check_list, check_text
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

    def collect(self) -> Removed:
        """Remove what drops and failed creations have left: tombstones, shards and objects without a name.

        And finish what an `advance_since` of several collections has left to do.

        What may still be under way is left until it is older than the setting `upload_age_s`. May be
        repeated, stopped anywhere, and run by several at once. Lists the whole store.
        """
        self._gate.check()
        self._sinces.finish()
        self._catalog.collect()
        named = {shard_id for shard_id in self._catalog.read().shards.values() if shard_id is not None}
        self._groups.collect(frozenset(self._stores.log.keys()) - named - {SHARD_ID})
        return self._leftovers.tombstones().plus(self._leftovers.objects())

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
            repair: mend what can be mended safely: nothing that holds data is removed or made up.
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
