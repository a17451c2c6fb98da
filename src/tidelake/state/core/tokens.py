"""Records of tokens by the day on which a write under them last began, so that they can be forgotten.

A token is a writer that writes number 0 and nothing else (`tidelake.lake.arguments.tokens`). Such a writer is
never resumed, so its record is needed only while a job may be run again: `token_age_ms` in the lake's
settings. A writer with such a name that has written another number is no token, and is kept like any other
named writer.

A state keeps the names of its tokens by day. Those of a day that is old enough go in portions, so no step
looks at all records.

INVARIANT: a token stands under the day on which a write under it last began, or under a later one.
"""

from collections.abc import Iterable, Mapping

from pyrsistent import pmap, pset

from tidelake.state.core.agreed import Agreed
from tidelake.state.core.state import Tokens, WriterRecord
from tidelake.state.core.writername import WriterName

DAY_MS = 86_400_000


def is_token(name: str) -> bool:
    """Whether a writer of this name may be a token."""
    return WriterName.of(name).is_token


def writes_once(record: WriterRecord | None) -> bool:
    """Whether a writer has written nothing, or only number 0."""
    return record is None or record.sequence in (None, 0)


def days_of(tokens: Tokens, names: Iterable[str]) -> dict[int, list[str]]:
    """The tokens among these names, by day. Costs O(names) for the oldest day; for others O(days) each."""
    left, found = {*names}, dict[int, list[str]]()
    for day in sorted(tokens) if left else ():
        there = [name for name in left if name in tokens[day]]
        if there:
            found[day] = there
            left.difference_update(there)
        if not left:
            break
    return found


def over(day: int, agreed: Agreed, now_ms: int) -> bool:
    """Whether all of a day is so long ago that its tokens may be forgotten."""
    return (day + 1) * DAY_MS + agreed.in_force("token_age_ms", now_ms) <= now_ms


def moved(
    tokens: Tokens, day: int, begun: Iterable[str], written: Mapping[str, WriterRecord], gone: Iterable[str]
) -> Tokens:
    """The tokens by days, after a step. Costs O(change) and O(days)."""
    named = {name for name, record in written.items() if is_token(name) and not writes_once(record)}
    come = {*begun} - {*gone} - named
    for old, names in days_of(tokens, come | {*gone} | named).items():
        left = tokens[old].evolver()
        for name in names:
            left.remove(name)
        tokens = tokens.set(old, left.persistent()) if len(left) else tokens.remove(old)
    return tokens.set(day, tokens.get(day, pset()).update(come)) if come else tokens


def by_last_day(days: Iterable[tuple[int, Iterable[str]]], writers: Mapping[str, WriterRecord]) -> Tokens:
    """The tokens that `writers` has, by their last day."""
    last: dict[str, int] = {}
    for day, there in sorted(days, key=lambda one: one[0]):
        last |= dict.fromkeys(there, day)
    found: dict[int, set[str]] = {}
    for name, day in last.items():
        if name in writers and is_token(name) and writes_once(writers[name]):
            found.setdefault(day, set()).add(name)
    return pmap({day: pset(there) for day, there in found.items()})
