"""Finds ghosts: entries of logs in an object store that were put again after their removal.

Must not remove them: that is done as for all entries below a floor (`tidelake.store.objects.log`).

A floor is raised only above entries that exist, and an entry that exists is not put again. So what lies below
a floor and is younger than it, or lies under a deleted key, was put after the entry had been removed. Ages
are by the clock of the store.
"""

from collections.abc import Iterator
from itertools import chain, groupby

from tidelake.errors import CorruptionError
from tidelake.model.names import is_object
from tidelake.store.objects.bucket import Bucket, ObjectInfo
from tidelake.store.objects.entrynames import FLOORS, GONE, LOGS, parsed
from tidelake.store.protocols import Ghost


def ghosts_in(bucket: Bucket) -> list[Ghost]:
    """The ghosts of all keys. A request for each 1,000 objects of logs, and for each 1,000 deleted keys."""
    gone = {info.key.removeprefix(GONE) for info in chain.from_iterable(bucket.list(GONE))}
    listed = chain.from_iterable(bucket.list(LOGS))
    found: list[Ghost] = []
    for folder, infos in groupby(listed, key=lambda info: info.key.removeprefix(LOGS).partition("/")[0]):
        key = folder.replace("~", "/")
        if is_object(key):
            found += _of(key, infos, is_gone=folder in gone)
    return found


def _of(key: str, infos: Iterator[ObjectInfo], *, is_gone: bool) -> Iterator[Ghost]:
    """The ghosts of a key whose objects these are: floors come before entries."""
    floors: list[tuple[int, int]] = []
    for info in infos:
        try:
            kind, seqno = parsed(key, info.key)
        except CorruptionError:
            continue  # Every use of the key raises it.
        if kind == FLOORS:
            floors.append((seqno, info.modified_ms))
        elif is_gone or any(seqno < floor and raised_ms < info.modified_ms for floor, raised_ms in floors):
            yield Ghost(key, seqno, is_gone)
