"""Options of reads as Delta Lake calls them, and as they are called here.

| Delta Lake | here |
|---|---|
| `versionAsOf`, `timestampAsOf` | `asOf` |
| `readChangeFeed` | `changeFeed` |
| `startingVersion`, `startingTimestamp` | `lower`; of a stream `startingAt` |
| `endingVersion`, `endingTimestamp` | just past it is `upper` |
"""

from collections.abc import Mapping

from tidelake.errors import UsageError

AS_OF = ("versionAsOf", "timestampAsOf")
FEED = "readChangeFeed"
STARTING = ("startingVersion", "startingTimestamp")
ENDING = ("endingVersion", "endingTimestamp")
BATCH = (*AS_OF, FEED, *STARTING, *ENDING)
STREAM = (FEED, *STARTING)
# Of a translated read: the last time that is read.
LAST = "ending"


def renamed(given: Mapping[str, str], *, is_batch: bool) -> dict[str, str]:
    """Options with the names that they have here, and `LAST`."""
    found = dict(given)
    start = "lower" if is_batch else "startingAt"
    for names, to in ((AS_OF, "asOf"), ((FEED,), "changeFeed"), (STARTING, start), (ENDING, LAST)):
        several = [name for name in (*names, to) if name in found]
        if len(several) > 1:
            raise UsageError(f"options {' and '.join(several)} say the same: give one of them")
        if several:
            found[to] = found.pop(several[0])
    if not is_batch:
        return found
    for name in (*STARTING, *ENDING):
        if name in given and "changeFeed" not in found:
            raise UsageError(f"option {name} is one of a change feed: give {FEED}=true as well")
    return found
