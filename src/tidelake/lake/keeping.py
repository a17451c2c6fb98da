"""What a collection keeps, and for whom: history, holds, merges, and what is deleted."""

from collections.abc import Iterable
from datetime import timedelta
from functools import partial

from tidelake.errors import UsageError
from tidelake.lake.frontiers import FrontierLike
from tidelake.lake.groups import Groups
from tidelake.lake.handle import Handle
from tidelake.lake.names import check_name, check_token
from tidelake.lake.readers import CollectionCriticalHold
from tidelake.lake.spans import duration_s, window
from tidelake.model.frontier import Frontier
from tidelake.shard.lease import hold_states, owned_id, release_owned
from tidelake.shard.reading.critical import CriticalHold
from tidelake.shard.runs.plan import ReadPlan
from tidelake.shard.upkeep.collector import Collector, CollectReport
from tidelake.shard.upkeep.compactor import MergeReport, Shape, Workers
from tidelake.shard.upkeep.maintain import Maintainer, MaintenanceReport, Watch
from tidelake.state import holds
from tidelake.state.state import Retention, ShardState


class Keeping(Handle):
    """A handle that keeps a collection in order."""

    def critical_hold(
        self, name: str, token: str = "", since: FrontierLike | None = None
    ) -> CollectionCriticalHold:
        """The hold on `since` of this name: the one that is there, or a new one, which has the token.

        It lasts until it is dropped, also when its owner sleeps or dies. Its owner moves it with
        `compare_and_downgrade_since`, and so does the next owner to take it over.

        Args:
            name: of the hold.
            token: of its owner; any text of at most 255 bytes.
            since: where a new one starts; default: the current `since`.
        """
        check_name(name, "name of a critical hold")
        check_token(token, name)
        start = None if since is None else self.frontier(since, "since")
        return CollectionCriticalHold(CriticalHold(self._shard, name, token, start), self.domain)

    def retain(self, window_: int | timedelta | None) -> None:
        """Let `since` follow `upper` at a distance, or (None) no longer. Holds keep it back all the same.

        It follows with every commit, and where none comes with maintenance. One log write.

        Args:
            window_: how much history is wanted, in the unit of the times; for clocks also a timedelta.

        Raises:
            UsageError: there is no such window, such as one of tuples.
        """
        wanted = Retention(window(window_, self.domain))
        self._shard.run(partial(holds.set_retention, retention=wanted))

    def advance_since(self, since: FrontierLike) -> Frontier:
        """Let merges fold history before `since`; where it is now. One log scan and one log write.

        Readers' holds may keep it back; it follows when they move on or close.

        Raises:
            UsageError: no closed time would be left to read from; nothing changed.
        """
        wanted, state = self.frontier(since, "since"), self._shard.settle()
        if not wanted <= state.since and (wanted.closed or not holds.readable(wanted, state.upper)):
            raise UsageError(
                f"since={wanted} is past the upper {state.upper} of collection {self.name!r} or at it: "
                f"nothing could be read; give at most {state.upper.just_before()}"
            )
        both = state.retained.join(wanted)
        if both != state.retained and not holds.readable(both, state.upper):
            raise UsageError(
                f"since={wanted} and {state.retained}, before which history of collection {self.name!r} may "
                f"go already, together mean {both}, past the upper {state.upper}: nothing could be read; "
                "close times beyond that first, or give a time that is beyond both and closed"
            )
        return self._shard.advance_since(wanted)

    def merge(self, workers: Workers | None = None) -> MergeReport:
        """Merge all batches into one sorted run, times advanced to `since`, in bounded memory.

        Args:
            workers: who carries it out; default: this process.
        """
        before = self.state()
        report = Maintainer(self._shard, workers).merge_all()
        return MergeReport(report.merges > 0, _shape(before), _shape(self.state()))

    def maintain(
        self,
        *,
        thorough: bool = True,
        seconds: float | None = None,
        workers: Workers | None = None,
        watch: Watch | None = None,
    ) -> MaintenanceReport:
        """Carry out the merges that the collection needs, so that reads stay cheap and space is bounded.

        Ends with `collect`, and with that of its group if it is in one. Afterwards the number of runs is
        logarithmic in the updates, and stored updates are at most twice the live ones, or one run. See
        docs/correctness.md for the exact promises.

        Args:
            thorough: also merge what is small, and let no retraction linger that `since` has passed;
                False: only what is worth its while in a collection that is written to right now.
            seconds: begin no merge after so long; default: until it is done.
            workers: who carries the merges out; default: this process.
            watch: is told of each merge before it begins.
        """
        budget_s = None if seconds is None else duration_s(seconds, "seconds")
        report = Maintainer(self._shard, workers, watch).run(thorough=thorough, seconds=budget_s)
        Groups.beside(self._shard).maintain(self._shard)
        return report

    def collect(self, *, thorough: bool = False) -> CollectReport:
        """Delete what the collection no longer needs and no hold keeps: objects first, then log entries.

        What merges replaced goes when it is older than the setting `garbage_age_s`, except for what a reader
        pins; what failed appends and merges left, when it is older than `upload_age_s`. May be repeated,
        stopped anywhere, and run by several at once. Part of `maintain`.

        Args:
            thorough: look for the latter by a listing now; otherwise only if that was not done for long.

        Raises:
            StoreUnavailable, OutcomeUnknown: something could not be deleted; it is left for the next time.
        """
        return Collector(self._shard).run(thorough=thorough)

    def collection_pause_s(self) -> float:
        """How long there will be nothing more to collect if nothing is written. No store call."""
        return Collector(self._shard).pause_s()

    def hold(
        self,
        plans: Iterable[ReadPlan],
        hold_for: timedelta | float,
        purpose: str,
        *,
        owner: str | None = None,
    ) -> str | None:
        """Keep what plans read for some time (in seconds, if it is no timedelta), or until `release`.

        Args:
            plans: of reads of this collection.
            hold_for: how long.
            purpose: for people.
            owner: who holds it, in a word. What one owner holds for the same time of the same stored parts is
                one hold, whose name begins with the owner; asked for again a minute later, it is extended.

        Returns:
            The name of the hold; None if they read nothing that could go. At most one log write.

        Raises:
            LeaseExpired: a part is given up already: plan again.
        """
        check_name(purpose, "purpose of a hold")
        hold_for_s = duration_s(hold_for, "hold_for")
        given: object = plans
        planned = tuple(given) if isinstance(given, Iterable) else (None,)
        if not all(isinstance(plan, ReadPlan) for plan in planned):
            raise UsageError(
                f"plans is a {type(given).__name__}: give a list of what collection.plan returned"
            )
        seqnos = sorted({plan.seqno for plan in planned if plan.seqno is not None})
        if not seqnos:
            return None
        id_ = None
        if owner is not None:
            versions = sorted({plan.version for plan in planned if plan.version})
            id_ = owned_id(check_name(owner, "owner of a hold"), [*versions, f"{hold_for_s:g}s"])
        return hold_states(self._shard, seqnos, purpose, hold_for_s, id_)

    def release_owned(self, owner: str) -> int:
        """Give up all that this very `owner` holds; how many holds. One log write each."""
        return release_owned(self._shard, owner)

    def release(self, hold: str) -> None:
        """Give up what `hold` keeps. May be repeated; at most one log write."""
        self._shard.run(partial(holds.close_hold, hold_id=hold))


def _shape(state: ShardState) -> Shape:
    return Shape.of([member.batch for member in state.spine])
