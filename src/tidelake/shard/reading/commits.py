"""The commits of a shard, as its log tells them: when, by which writer, what, and how many updates.

Owns how an entry of the log is told to people. The log goes back to the newest rollup at least, so the
first commits of a shard are gone from it in time.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tidelake.model.frontier import Frontier
from tidelake.model.time import TimeDomain
from tidelake.shard.engine.shard import Shard
from tidelake.state.core import codec
from tidelake.state.core.edits import Edits, Note
from tidelake.state.core.state import Written
from tidelake.state.spine.staged import Staged
from tidelake.tabletext import FieldsAsHtml, as_html, as_text, number

_ENTRIES = 256  # of a scan


@dataclass(frozen=True, repr=False)
class CommitEntry(FieldsAsHtml):
    """One commit of a collection.

    Attributes:
        seqno: of the state that it made. Commits that were written together have the same.
        committed_ms: wall clock of the commit, in milliseconds since 1970; never goes back.
        what: what it did: `create`, `append`, `stage`, `seal` (times were closed), `merge`, `evolve`,
            `retain`, `group`, `hold`, `writer`, `collect`, `rollup`, `settings`, `drop`, `repair` or `other`.
        writers: names of the writers, and of tokens, under which it was done; append without one has none.
        rows: updates that came in; None: the log does not tell any more.
        size_bytes: their stored bytes, likewise.
        upper: times before it were closed by the commit; None: it closed none.
        author: who made it, as the caller said; empty: not said.
        message: what the caller said of it.
    """

    seqno: int
    committed_ms: int
    what: str
    writers: tuple[str, ...] = ()
    rows: int | None = 0
    size_bytes: int | None = 0
    upper: Frontier | None = None
    author: str = ""
    message: str = ""

    @property
    def is_write(self) -> bool:
        """Whether it changed what readers see: rows, times or columns."""
        return self.what in _WRITES


class CommitEntries(list[CommitEntry]):
    """Commits, which are printed, and shown in a notebook, as a table with times as texts."""

    domain: TimeDomain

    def __str__(self) -> str:
        return as_text(*self._cells())

    def _repr_html_(self) -> str:
        return as_html(*self._cells(), note=f"{len(self):,} commits, the newest first")

    def _cells(self) -> tuple[list[str], list[tuple[object, ...]]]:
        head = ["commit", "committed", "what", "updates", "bytes", "upper", "writers", "author", "message"]
        rows: list[tuple[object, ...]] = [
            (
                one.seqno,
                _WALL.text(one.committed_ms),
                one.what,
                "–" if one.rows is None else number(one.rows),
                "–" if one.size_bytes is None else number(one.size_bytes),
                None if one.upper is None else self.domain.text(one.upper),
                ", ".join(one.writers),
                one.author,
                one.message,
            )
            for one in self
        ]
        return head, rows


_WALL = TimeDomain("ms")
_WRITES = frozenset(("create", "append", "stage", "seal", "evolve", "repair", "drop"))


@dataclass(frozen=True)
class _Step:
    """A commit, and the totals after it if it has them."""

    entry: CommitEntry
    written: Written | None


def commits(shard: Shard, limit: int, *, every: bool = False) -> CommitEntries:
    """The newest commits that the log has, newest first.

    Returns:
        Costs a log scan, and one for every 256 entries that are looked at.
    """
    found = CommitEntries()
    found.domain = shard.spec.domain
    # Place in `found` of a write whose rows are known with the totals before it, and the totals after it.
    waiting: tuple[int, Written] | None = None
    for step in _backwards(shard):
        if step.written is not None and waiting is not None:
            place, after = waiting
            found[place] = _counted(found[place], step.written, after)
            waiting = None
        if len(found) >= limit and waiting is None:
            break
        if len(found) < limit and (every or step.entry.is_write):
            if step.written is not None and step.entry.rows is None:
                waiting = len(found), step.written
            upper = None if step.entry.upper is None else step.entry.upper.of_unit(found.domain.unit)
            found.append(replace(step.entry, upper=upper))
    return found


def _counted(entry: CommitEntry, before: Written, after: Written) -> CommitEntry:
    rows, size = after.appended_rows - before.appended_rows, after.appended_bytes - before.appended_bytes
    return replace(entry, rows=rows, size_bytes=size)


def _backwards(shard: Shard) -> Iterator[_Step]:
    """The commits of the log, newest first."""
    log, id_ = shard.stores.log, shard.spec.shard_id
    end = shard.state().seqno + 1
    while end > 0:
        start = max(0, end - _ENTRIES)
        # Where earlier entries were truncated, those that were asked for go on past the end.
        entries = [entry for entry in log.scan(id_, start, end - start) if entry.seqno < end]
        for entry in reversed(entries):
            yield from _told(entry.data, f"{id_}@{entry.seqno}")
        if not entries or entries[0].seqno > start:
            return
        end = start


def _told(data: bytes, name: str) -> Iterator[_Step]:
    if codec.is_state(data):
        state = codec.decode_state(data, name)
        entry = CommitEntry(state.seqno, state.committed_ms, "create", upper=state.upper)
        yield _Step(entry, state.written)
        return
    delta = codec.decode_delta(data, name)
    for edits in reversed(delta.steps):
        what = _what(edits)
        rows = None if edits.written is not None and what in _WRITES else 0
        size = rows
        if what == "stage":
            # Of a transaction too, which the totals count later.
            rows, size = (
                sum(getattr(one.batch, of) for one in _staged(edits)) for of in ("rows", "size_bytes")
            )
        upper = None if edits.upper is None else edits.upper.after
        names = tuple(sorted(edits.writers))
        note = edits.note or Note()
        entry = CommitEntry(
            delta.seqno, delta.committed_ms, what, names, rows, size, upper, note.author, note.message
        )
        yield _Step(entry, edits.written)


def _staged(edits: Edits) -> list[Staged]:
    """The staged batches that come in."""
    return [staged for staged in edits.staged.values() if staged is not None]


def _what(edits: Edits) -> str:
    """The word for the edits of a commit: the first that fits."""
    words = {
        "drop": edits.dropped,
        "repair": edits.mended,
        "evolve": edits.schemas,
        "append": edits.upper and edits.written,
        "seal": edits.upper,
        "stage": _staged(edits) and edits.spine is None,
        "merge": edits.spine or edits.claims or edits.chunks or edits.bases or edits.staged,
        "retain": edits.retained or edits.retention,
        "group": edits.memberships or edits.decisions or edits.group is not None or edits.joined is not None,
        "hold": edits.holds or edits.critical,
        "writer": edits.writers or edits.writers_gone,
        "collect": edits.doomed or edits.buried or edits.sweep or edits.forks or edits.let_go or edits.freed,
        "rollup": edits.rollup,
        "settings": edits.agreed,
    }
    return next((word for word, does in words.items() if does), "other")
