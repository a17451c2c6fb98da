"""Times in options: text in, times and frontiers of a collection's unit out.

A collection that counts in `ms` or `us` also takes timestamps. They must have a zone: the planner of a data
source does not know the session's zone, and a wrong guess would silently read another version.
"""

import re

from tidelake.data.literal import moment
from tidelake.errors import UsageError
from tidelake.model.time import Time, TimeDomain

_NUMBER = re.compile(r"[0-9]{1,19}")
_TUPLE = re.compile(r"\(?\s*([0-9]{1,19}(?:\s*,\s*[0-9]{1,19})*)\s*,?\s*\)?")
_LIST = re.compile(r"\[(.*)\]", re.DOTALL)
_TUPLES = re.compile(r"\([^()]*\)")
_NS_PER = {"ms": 1_000_000, "us": 1_000}


def time_of(text: str, domain: TimeDomain, option: str, *, up: bool = False) -> Time:
    """The time that an option names.

    Args:
        text: a whole number, a tuple such as `(3, 4)`, or for clocks a timestamp with its zone.
        domain: the unit of the collection's times.
        option: its name, for the message.
        up: round a finer timestamp up to the unit; False: round it down.

    Raises:
        UsageError: it is not a time; says what to write.
    """
    given = text.strip()
    if domain.unit == "tuple":
        found = _TUPLE.fullmatch(given)
        if found is None:
            raise _no_time(text, domain, option)
        return domain.check(tuple(map(int, found[1].split(","))), option)
    if _NUMBER.fullmatch(given):
        return domain.check(int(given), option)
    at = moment(given) if domain.unit in _NS_PER else None
    if at is None:
        raise _no_time(text, domain, option)
    if not at.zoned:
        whole = given if ":" in given else f"{given} 00:00:00"
        raise UsageError(
            f"option {option}={text!r} does not say its zone: write {whole}Z for UTC, or {whole}+01:00, say"
        )
    per = _NS_PER[domain.unit]
    return domain.check(-(-at.ns // per) if up else at.ns // per, option)


def frontier_of(text: str, domain: TimeDomain, option: str) -> list[Time]:
    """The elements of the frontier that an option names: a time, or a list such as `[(0, 3), (2, 0)]`.

    Raises:
        UsageError: it is not a frontier; says what to write.
    """
    found = _LIST.fullmatch(text.strip())
    if found is None:
        return [time_of(text, domain, option, up=True)]
    inside = found[1].strip()
    if domain.unit != "tuple":
        return [time_of(part, domain, option, up=True) for part in inside.split(",")] if inside else []
    if re.sub(r"[\s,]", "", _TUPLES.sub("", inside)):
        raise _no_time(text, domain, option)
    return [time_of(part, domain, option) for part in _TUPLES.findall(inside)]


def _no_time(text: str, domain: TimeDomain, option: str) -> UsageError:
    if domain.unit == "tuple":
        example = f"{domain.arity} whole numbers, such as ({', '.join(map(str, range(1, domain.arity + 1)))})"
    elif domain.unit == "counter":
        example = "a whole number, such as 17; the collection counts, and knows no clock"
    else:
        example = f"a number of {domain.unit} since 1970 UTC, or a timestamp such as 2024-01-31 12:00:00Z"
    return UsageError(f"option {option}={text!r} is not a time of unit {domain}: give {example}")
