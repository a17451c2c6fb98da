"""An envelope whose tasks fail before or after they have uploaded: for tests of retries."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import SystemRandom
from typing import Any


@dataclass(frozen=True)
class Flaky:
    """Another envelope with tasks that fail at `rate`, and once at each moment whatever the rate is.

    Each failure leaves a file in `marks`.
    """

    inner: Any
    rate: float
    marks: str

    @classmethod
    def of_environment(cls, inner: Any) -> "Flaky":
        return cls(inner, float(os.environ["FLAKY_RATE"]), os.environ["FLAKY_MARKS"])

    @property
    def rebases(self) -> bool:
        return self.inner.rebases

    def check(self, frame: Any, collection: Any) -> None:
        self.inner.check(frame, collection)

    def prepare(self, frame: Any, collection: Any) -> Any:
        return self.inner.prepare(frame, collection)

    def spread(self, prepared: Any, collection: Any) -> Any:
        return self.inner.spread(prepared, collection)

    def looks_up_bytes(self, collection: Any) -> int:
        # None of its tasks may be the driver.
        return 1 << 62

    def work(self, collection: Any, columns: Sequence[str], lower: Any) -> Any:
        return FlakyWork(self.inner.work(collection, columns, lower), self.rate, self.marks)


@dataclass(frozen=True)
class FlakyWork:
    inner: Any
    rate: float
    marks: str

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        self._maybe_fail("before")
        answers = list(self.inner(batches))
        self._maybe_fail("after")
        yield from answers

    def _maybe_fail(self, moment: str) -> None:
        chance = SystemRandom()
        marks = Path(self.marks)
        if chance.random() < self.rate / 2 or not any(marks.glob(f"{moment}-*")):
            (marks / f"{moment}-{os.getpid()}-{chance.getrandbits(60)}").touch()
            raise RuntimeError(f"a task fails {moment} its upload")
