"""A process that appends to one key of a log in PostgreSQL, and prints what was acknowledged.

postgres_child.py URL LAKE PLACE TAG COUNT     entries of the key "race": "<seqno> <tag>-<n>" a line
"""

import sys
import time

from tidelake.env import SystemClock
from tidelake.errors import OutcomeUnknown, StoreUnavailable
from tidelake.store.postgres.address import Address
from tidelake.store.postgres.log import PostgresVersionLog
from tidelake.store.protocols import VersionLog

PAUSE_S = 0.02


def append(log: VersionLog, key: str, data: bytes) -> int:
    """Append an entry, whatever the server does meanwhile; return its seqno."""
    while True:
        try:
            head = log.head(key)
            expected = head.seqno if head else None
            if _set(log, key, expected, data):
                return 0 if expected is None else expected + 1
        except StoreUnavailable as error:
            if not error.retryable:
                raise
            time.sleep(PAUSE_S)


def _set(log: VersionLog, key: str, expected: int | None, data: bytes) -> bool:
    try:
        return log.compare_and_set(key, expected, data)
    except OutcomeUnknown:
        pass
    seqno = 0 if expected is None else expected + 1
    while True:
        try:
            newer = log.newer(key, seqno - 1)
            if newer:
                return newer[0].data == data
            # The first attempt may still be on its way: the same bytes again decide.
            if log.compare_and_set(key, expected, data):
                return True
        except (StoreUnavailable, OutcomeUnknown):
            time.sleep(PAUSE_S)


def main(url: str, lake: str, place: str, tag: str, count: str) -> None:
    log = PostgresVersionLog(Address(url), lake, place, SystemClock())
    for number in range(int(count)):
        data = f"{tag}-{number}"
        print(append(log, "race", data.encode()), data, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
