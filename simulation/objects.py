"""An object store at its weakest, and the version log on it.

Owns what a request may do besides its effect: a put that is refused though nothing is there, or though it
made the object itself, or that arrives after it was refused; a listing that shows or leaves out whatever
changed while it ran. `SimulatedProcess` adds lost replies, requests that arrive later, delays and outages.

Must not know what an entry means. It knows which object is an entry: the first one of its seqno. One that is
put again, after its entry was removed, is a ghost, and no effect on the log.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from simulation.witness import Actor, Observer
from tests.doubles.buckets import MemoryBucket
from tidelake.env import Clock
from tidelake.store.objects.bucket import ObjectInfo
from tidelake.store.protocols import Entry

T = TypeVar("T")

_LAST = 10**20 - 1


class TrueBucket(MemoryBucket):
    """The objects as they are.

    Attributes:
        heads: the newest entry of each log that ever was; of a deleted one, a seqno after all others.
        page: the most objects on a page of a listing of a `WeakBucket`.
    """

    def __init__(self, clock: Clock, page: int) -> None:
        super().__init__(clock)
        self.heads: dict[str, int] = {}
        self.page = page

    def infos(self, prefix: str) -> dict[str, ObjectInfo]:
        """All objects whose keys start with a prefix, by key."""
        found = [(key, *there) for key, there in self._objects.items() if key.startswith(prefix)]
        return {key: ObjectInfo(key, len(data), at_ms) for key, data, at_ms in found}


class WitnessedBucket:
    """The true objects, with an observer that is told of each entry, and of each log that ends.

    Attributes:
        ghosts: told of each ghost.
    """

    def __init__(
        self, inner: TrueBucket, observer: Observer, acting: Callable[[], Actor], ghosts: Callable[[], None]
    ) -> None:
        self.inner, self._observer, self._acting, self._ghosts = inner, observer, acting, ghosts
        self.get, self.get_all, self.get_ranges = inner.get, inner.get_all, inner.get_ranges
        self.put, self.delete, self.head = inner.put, inner.delete, inner.head
        self.list, self.folders = inner.list, inner.folders

    def put_new(self, key: str, data: bytes) -> bool:
        """Store an object if there is none, and tell of it; see `Bucket.put_new`."""
        _, log, kind, digits = key.split("/")
        name, seqno = log.replace("~", "/"), _LAST - int(digits)
        if kind == "0-floors" and seqno == _LAST and self.inner.heads.get(name) != _LAST:
            self._observer.ending(name)
            self.inner.heads[name] = _LAST
        is_new = self.inner.put_new(key, data)
        if is_new and kind == "1-entries":
            if seqno != self.inner.heads.get(name, -1) + 1:
                self._ghosts()
            else:
                self.inner.heads[name] = seqno
                self._observer.entered(name, Entry(seqno, data), self._acting())
        return is_new

    def close(self) -> None:
        """Do nothing: other processes use the objects."""


class Requests(Protocol):
    """Carries out each request of a process, or not; see `Faults`."""

    def run(self, operation: str, call: Callable[[], T]) -> T:
        """Carry out `call`, or not, or raise although it was carried out."""


class WeakBucket:
    """A `Bucket` as one process meets it.

    Args:
        inner: the true objects.
        requests: the fate of each request.
        draw: the source of random choices.
        refused: the probability that a put is refused for no visible reason.
        later: carries out a request at some later time.
    """

    def __init__(
        self,
        inner: WitnessedBucket,
        requests: Requests,
        draw: random.Random,
        refused: float,
        later: Callable[[Callable[[], object]], None],
    ) -> None:
        self._inner, self._requests, self._draw = inner, requests, draw
        self._refused, self._later = refused, later

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """Read a range of an object; see `Bucket.get`."""
        return self._requests.run("log.get", lambda: self._inner.get(key, start, length))

    def get_all(self, keys: Sequence[str]) -> list[bytes | None]:
        """Read objects at once, each at a moment of its own; see `Bucket.get_all`."""
        order = self._draw.sample(range(len(keys)), len(keys))
        found: dict[int, bytes | None] = {}
        for n in order:
            found[n] = self._requests.run("log.get", lambda n=n: self._inner.get_all([keys[n]])[0])  # type: ignore[misc]
        return [found[n] for n in range(len(keys))]

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read ranges of an object; see `Bucket.get_ranges`."""
        return [self.get(key, start, length) for start, length in ranges]

    def put_new(self, key: str, data: bytes) -> bool:
        """Store an object if there is none; see `Bucket.put_new`."""

        def put() -> bool:
            return self._inner.put_new(key, data)

        def refuse() -> bool:
            fate = self._draw.choice(("nothing there", "its own object", "later"))
            if fate == "its own object":
                put()
            elif fate == "later":
                self._later(put)
            return False

        return self._requests.run("log.put_new", refuse if self._draw.random() < self._refused else put)

    def put(self, key: str, data: bytes) -> None:
        """Store an object; see `Bucket.put`."""
        self._requests.run("log.put", lambda: self._inner.put(key, data))

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects, each at a moment of its own; see `Bucket.delete`."""
        for key in keys:
            self._requests.run("log.delete", lambda key=key: self._inner.delete([key]))  # type: ignore[misc]

    def head(self, key: str) -> ObjectInfo | None:
        """Size and time of an object; see `Bucket.head`."""
        return self._requests.run("log.head", lambda: self._inner.head(key))

    def list(self, prefix: str) -> Iterator[list[ObjectInfo]]:
        """List objects in pages, each of which may show what was there since the first one began, or not."""
        before, last = self._inner.inner.infos(prefix), ""

        def page() -> list[ObjectInfo]:
            now = self._inner.inner.infos(prefix)
            shown = [
                now.get(key) or before[key]
                for key in sorted(before.keys() | now.keys())
                if key > last and ((key in before and key in now) or self._draw.random() < 0.5)
            ]
            return shown[: self._inner.inner.page]

        while found := self._requests.run("log.list", page):
            yield found
            last = found[-1].key

    def folders(self, prefix: str) -> Iterator[str]:
        """The segments after a prefix; see `Bucket.folders`."""
        return iter(self._requests.run("log.keys", lambda: [*self._inner.folders(prefix)]))

    def close(self) -> None:
        """Do nothing: other processes use the objects."""
