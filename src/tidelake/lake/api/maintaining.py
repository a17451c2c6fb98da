"""Maintenance of one collection: its columns, history, holds, merges and garbage.

Owns the arguments; `tidelake.shard.upkeep` does the work.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from tidelake.data.kernel.types import schema_from_arrow
from tidelake.errors import UsageError
from tidelake.lake.admin.sinces import checked_since
from tidelake.lake.api.handle import CollectionHandle
from tidelake.lake.api.notebook import bar
from tidelake.lake.arguments.names import check_list, check_name, check_token
from tidelake.lake.arguments.spans import DurationLike, WindowLike, duration_s
from tidelake.lake.arguments.spans import window as window_of
from tidelake.lake.arguments.times import FrontierLike
from tidelake.model.frontier import Frontier
from tidelake.state.core.state import Retention
from tidelake.state.life import holds
from tidelake.tabletext import number, printable

if TYPE_CHECKING:
    from tidelake.lake.api.readers import CollectionCriticalHold
    from tidelake.shard.upkeep.compactor import Workers
    from tidelake.shard.upkeep.reports import CollectReport, MaintenanceReport, MergeReport
    from tidelake.state.spine.merging import MergeRequest


class Maintaining(CollectionHandle):
    """Methods of a collection that change how rows are kept, and not which rows there are."""

    def evolve(
        self,
        schema: pa.Schema | None = None,
        *,
        key: Sequence[str] | None = None,
        value: Sequence[str] | None = None,
        drop: Sequence[str] = (),
        rename: Mapping[str, str] | None = None,
    ) -> int:
        """Change the columns. Stored rows are not touched; they are read as rows of the newest schema.

        Columns are compared by name with those of the newest schema. Nullable value columns may be added
        anywhere; value columns are dropped if `drop` names them; any column may become nullable; integers,
        floats and decimals (of the same scale) may become wider. A dropped name that is added again is a new
        column: its old values do not return. A column that `rename` names keeps its values, at all times.

        Args:
            schema: the new schema, with all key and value columns, under their new names; default: the
                present one.
            key: the key columns; default: those of the collection. They cannot be added, dropped or
                reordered.
            value: the value columns; default: all others.
            drop: names of the value columns that are dropped. Naming one that was dropped before is no error.
            rename: new names of key or value columns by their present ones, such as `{"zip": "postcode"}`. A
                rename that was done before is no error.

        Returns:
            The id of the schema. One log write; none if nothing changes.

        Raises:
            IncompatibleSchema: the change is not allowed; names the column, the reason, and what to do
                instead. Also if the schema lacks a column that `drop` does not name, perhaps since another
                process has added it meanwhile.
        """
        check_list(drop, "drop")
        names = _new_names(rename)
        if schema is None:
            if rename is None or key is not None or value is not None or drop:
                raise UsageError("evolve needs the new schema, or rename={...} alone")
            return self._shard.evolve(None, (), names)
        if key is None:
            key = [names.get(column.name, column.name) for column in self._shard.alive().schema.key]
        return self._shard.evolve(schema_from_arrow(schema, key, value), tuple(drop), names)

    def critical_hold(
        self, name: str, token: str = "", since: FrontierLike | None = None
    ) -> "CollectionCriticalHold":
        """Open the critical hold of this name; if there is none, make one with the given token.

        A critical hold keeps history until it is dropped, also when its owner sleeps or dies. Its owner moves
        it with `compare_and_downgrade_since`; a new owner takes it over with the same call.

        Args:
            name: name of the hold.
            token: token of its owner; any text of at most 255 bytes.
            since: history from here on is held, if the hold is new; default: the current `since`.
        """
        from tidelake.lake.api.readers import CollectionCriticalHold
        from tidelake.shard.reading.critical import CriticalHold

        check_name(name, "name of a critical hold")
        check_token(token, name)
        start = None if since is None else self._times.since(since, "since")
        return CollectionCriticalHold(CriticalHold(self._shard, name, token, start), self._times)

    def retain(self, window: WindowLike | None) -> None:
        """Let `since` follow `upper` at a distance; None: no longer. Holds still keep it back.

        `since` moves with every commit, and with maintenance if there are no commits. One log write.

        Args:
            window: how much history to keep, in the unit of the times; for clock times also a timedelta, or a
                text such as `"7d"`.

        Raises:
            UsageError: the window is not valid, or times are tuples, which have no length.
        """
        wanted = Retention(window_of(window, self.domain))
        self._shard.run(partial(holds.set_retention, retention=wanted))

    def advance_since(self, since: FrontierLike) -> Frontier:
        """Allow merges to compact history before `since`. One log scan and one log write.

        Readers' holds may keep it back; it follows when they move on or close.

        Returns:
            The current `since`.

        Raises:
            UsageError: no closed time would be left to read; nothing changed.
        """
        return self._shard.advance_since(checked_since(self.name, self._shard, since))

    def merge(self, workers: "Workers | None" = None) -> "MergeReport":
        """Merge what is stored as far as it may be, with times advanced to `since`, in bounded memory.

        What `since` has passed becomes one sorted run, up to the last end of a slice of history; so does each
        later slice, and what is newer than the slices. A collection without slices, because it is small or
        has tuples as times, becomes one run.

        Args:
            workers: carry out the merges; default: this process.
        """
        from tidelake.shard.upkeep.maintain import Maintainer
        from tidelake.shard.upkeep.reports import MergeReport, MergeShape

        before = MergeShape.of([member.batch for member in self.state().spine])
        with self._watched() as shown:
            report = Maintainer(self._shard, workers, shown).merge_all()
        after = MergeShape.of([member.batch for member in self.state().spine])
        return MergeReport(report.merges > 0, before, after)

    def maintain(
        self,
        *,
        thorough: bool = True,
        seconds: DurationLike | None = None,
        workers: "Workers | None" = None,
        progress: "Callable[[MergeRequest], None] | None" = None,
    ) -> "MaintenanceReport":
        """Carry out the merges that the collection needs, so that reads stay cheap and space is bounded.

        Ends with `collect`, and with maintenance of its group if it is in one. Afterwards each slice of
        history is one run; a base stands wherever a snapshot would read twice what it answers; and of what
        `since` has passed there are at most twice as many stored updates as live ones, or one run. See
        docs/correctness.md for the exact promises.

        Args:
            thorough: also merge small runs, and remove every retraction that `since` has passed; False: only
                the merges that pay off while the collection is being written to.
            seconds: begin no merge after so long; default: no limit.
            workers: carry out the merges; default: this process.
            progress: called before each merge. Default: a bar, in a notebook.
        """
        from tidelake.lake.groups.groups import Groups
        from tidelake.shard.upkeep.maintain import Maintainer

        budget_s = None if seconds is None else duration_s(seconds, "seconds")
        with self._watched() as shown:
            report = Maintainer(self._shard, workers, progress or shown).run(
                thorough=thorough, seconds=budget_s
            )
            Groups.beside(self._shard).maintain(self._shard)
        return report

    def collect(self, *, thorough: bool = False) -> "CollectReport":
        """Delete what the collection no longer needs and no hold keeps: objects first, then log entries.

        Objects that merges replaced are deleted `garbage_age_s` later, unless a reader pins them. Objects
        that failed appends and merges left are deleted when they are older than `upload_age_s`. Safe to
        repeat, to stop at any point, and to run in several processes at once. Part of `maintain`.

        Args:
            thorough: list the store now to find the remains of failed writes; False: list it only if that was
                not done for long.

        Raises:
            StoreUnavailable, OutcomeUnknown: something could not be deleted; the next call deletes it.
        """
        from tidelake.shard.upkeep.collector import Collector

        return Collector(self._shard).run(thorough=thorough)

    @contextmanager
    def _watched(self) -> Iterator["Callable[[MergeRequest], None] | None"]:
        """What is called before each merge, to show it in a notebook; None elsewhere."""
        with bar(printable(self.name), self._shard.env.clock) as tell:

            def watch(request: "MergeRequest") -> None:
                if tell is not None:
                    tell(f"merging {number(request.rows)} updates of {request.sources} runs", 0, 0)

            yield None if tell is None else watch


def _new_names(rename: object) -> dict[str, str]:
    """The argument `rename`; None: nothing is renamed.

    Raises:
        UsageError: it is no mapping of names, or gives two columns one name.
    """
    if rename is None:
        return {}
    if not isinstance(rename, Mapping) or not all(
        isinstance(n, str) for pair in rename.items() for n in pair
    ):
        raise UsageError(f'rename={rename!r} must be a mapping of names, such as {{"old": "new"}}')
    if len({*rename.values()}) < len(rename):
        raise UsageError(f"rename={rename!r} gives two columns one name")
    return dict(rename)
