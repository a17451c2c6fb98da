"""Times in options: text in, times and frontiers of a collection's unit out.

A collection that counts on a clock also takes timestamps, and words such as `now` and `-1d`. Timestamps must
have a zone: the planner of a data source does not know the session's zone, and a wrong guess would silently
read another version.
"""

import re

from tidelake.errors import UsageError
from tidelake.lake.arguments.times import ReadTimes, Times, whole_of
from tidelake.model.frontier import Frontier
from tidelake.model.instants import PER_UNIT, is_instant
from tidelake.model.time import Time, TimeDomain

_LIST = re.compile(r"\[(.*)\]", re.DOTALL)
_TUPLES = re.compile(r"\([^()]*\)")


def time_of(text: str, times: ReadTimes, option: str, *, staged: bool = False) -> Time:
    """The time that an option of a read names."""
    return times.read(_value(text, times.domain, option), f"option {option}", staged=staged)


def written_at(text: str, times: Times, option: str) -> Time:
    """The time that an option of a write names; as `time_of`."""
    return times.at(_value(text, times.domain, option), f"option {option}")


def frontier_of(text: str, times: ReadTimes, option: str, *, staged: bool = False) -> Frontier:
    """The frontier that an option names: a time, or a list such as `[(0, 3), (2, 0)]`."""
    found = _LIST.fullmatch(text.strip())
    if found is None:
        one = _value(text, times.domain, option)
        return times.read_bound(one, f"option {option}", staged=staged)
    inside = found[1].strip()
    if times.domain.unit != "tuple":
        listed = inside.split(",") if inside else []
    elif re.sub(r"[\s,]", "", _TUPLES.sub("", inside)):
        raise _no_time(text, times.domain, option)
    else:
        listed = _TUPLES.findall(inside)
    return times.bound([_value(part, times.domain, option) for part in listed], f"option {option}")


def _value(text: str, domain: TimeDomain, option: str) -> int | tuple[int, ...] | str:
    """The number or tuple in a text, or the text of an instant."""
    whole = whole_of(text)
    if isinstance(whole, int):
        return (whole,) if domain.unit == "tuple" else whole
    if whole is not None and domain.unit == "tuple":
        return whole
    if whole is None and domain.unit in PER_UNIT and is_instant(text):
        return text.strip()
    raise _no_time(text, domain, option)


def _no_time(text: str, domain: TimeDomain, option: str) -> UsageError:
    if domain.unit == "tuple":
        example = f"{domain.arity} whole numbers, such as ({', '.join(map(str, range(1, domain.arity + 1)))})"
    elif domain.unit == "date":
        example = (
            "a number of days since 1970, a date such as 2024-01-31, now, yesterday, or a time back such as "
            "-7d"
        )
    elif domain.unit in PER_UNIT:
        example = (
            f"a number of {domain.unit} since 1970 UTC, a timestamp such as 2024-01-31 12:00:00Z, now, "
            "today, yesterday, or a time back such as -1d"
        )
    else:
        example = "a whole number, such as 17; the collection counts, and knows no clock"
    return UsageError(f"option {option}={text!r} is not a time of unit {domain}: give {example}")
