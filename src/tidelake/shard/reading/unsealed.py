"""Updates as they are staged, and then the frontiers that seal them.

Owns what is new between two versions: the updates of the newer one less those of the older one, at all times
that were not sealed when the older one was looked at. Runs that both have are left out unread. So it does not
matter which batches were combined, drained or merged meanwhile.

INVARIANT: the updates of all `Records` so far are, in sum, those of the last version that was looked at, from
where the listener began. All of them before a frontier were given once `Sealed` has that frontier.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeAlias

from tidelake.data.answer.rows import Rows
from tidelake.errors import NotYetClosed
from tidelake.model.frontier import Frontier
from tidelake.model.query import Updates
from tidelake.model.selection import ReadOptions
from tidelake.shard.engine.lease import Lease
from tidelake.shard.engine.shard import Shard
from tidelake.shard.reading import query
from tidelake.shard.reading.versionread import VersionRead
from tidelake.shard.runs.read import sources_of
from tidelake.shard.runs.scope import Source
from tidelake.state.core.state import ShardState


@dataclass(frozen=True)
class Records:
    """Updates that are new: they were staged, or appended.

    Attributes:
        lower: none of them has a time before it; the last frontier that was sealed.
        updates: sorted and consolidated; columns as `update_schema`. Read them before the next step.
    """

    lower: Frontier
    updates: Rows


@dataclass(frozen=True)
class Sealed:
    """Times were closed: no update before the frontier comes any more.

    Attributes:
        upper: all updates before it were in earlier `Records`.
    """

    upper: Frontier


StagedStep: TypeAlias = Records | Sealed
_Identity: TypeAlias = tuple[object, ...]


def staged_steps(
    shard: Shard, lease: Lease, asked: Updates, options: ReadOptions, moved: Callable[[Frontier], None]
) -> Iterator[StagedStep]:
    """Every update of an interval, once, as soon as it is staged; then the frontiers that close its time.

    A look costs a log scan. It reads what is new, and what was combined or drained since the last one.
    """
    clock, until = shard.env.clock, asked.upper
    patience_s = shard.spec.config.wait_timeout_s if options.timeout_s is None else options.timeout_s
    given: dict[_Identity, Source] = {}

    def sealed(state: ShardState) -> Frontier:
        # With tuples the shard's upper may be behind it in some component.
        return state.upper.join(asked.lower).meet(until)

    def has_news(state: ShardState) -> bool:
        lease.check(state)
        return sealed(state) != asked.lower or _unsealed(state, asked).keys() != given.keys()

    begun_s = clock.monotonic_s()
    with ExitStack() as older:
        while asked.lower != until:
            try:
                version = query.wait(shard, has_news, asked.lower, begun_s + patience_s - clock.monotonic_s())
            except NotYetClosed:
                return
            query.check_since(asked, version.state)
            with ExitStack() as newer:
                newer.enter_context(lease.during(version.state))
                found = _unsealed(version.state, asked)
                read = VersionRead.of(shard, version.kept_by(lease), asked, options)
                more = [source for id_, source in found.items() if id_ not in given]
                less = [source for id_, source in given.items() if id_ not in found]
                with closing(read.difference(more, less)) as rows:
                    # What was only combined or drained leaves nothing.
                    first = next(rows, None)
                    if first is not None:
                        updates = Rows(read.schema, chain([first], rows), shard.spec.domain)
                        yield Records(asked.lower, updates)
                        begun_s = clock.monotonic_s()
                upper = sealed(version.state)
                if upper != asked.lower:
                    yield Sealed(upper)
                    asked = replace(asked, lower=upper)
                    moved(upper)
                    begun_s = clock.monotonic_s()
                given = _unsealed(version.state, asked)
                # The next look takes away what this version has, so its parts are kept until then.
                older.close()
                older.push(newer.pop_all() if given else ExitStack())


def _unsealed(state: ShardState, asked: Updates) -> dict[_Identity, Source]:
    """The runs of a state that may have updates of an interval, by what tells them from other runs."""
    return {_identity(source): source for source in sources_of(state, asked)[0]}


def _identity(source: Source) -> _Identity:
    """Equal runs have equal rows in any state: parts never change. Bounds matter if they cut rows off."""
    parts = tuple((part.name, part.rewrite) for part in source.run.parts)
    return (parts, source.lower, source.upper) if source.run.truncated else (parts,)
