"""Where a lake of these tests is, and how a process opens it, with the clock that the process has."""

import dataclasses
import json
from pathlib import Path

import tidelake
from tidelake.env import Counters, Env, SystemClock


class WrongClock(SystemClock):
    """A clock whose time of day is wrong."""

    def __init__(self, ahead_s):
        self._ahead_ms = round(ahead_s * 1000)

    def now_ms(self):
        return super().now_ms() + self._ahead_ms


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a lake is.

    Attributes:
        url: its path or url.
        log: address of its log, if that is in a database.
        options: options of its object store.
        ahead_s: how far ahead the clock of a process is that opens it there.
    """

    url: str
    log: str | None = None
    options: dict[str, str] | None = None
    ahead_s: float = 0.0

    @property
    def text(self):
        """All of it, as an argument of a process."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def of(cls, place):
        """A place from what `text` gave, or from a path."""
        if isinstance(place, cls):
            return place
        return cls(**json.loads(place)) if str(place).startswith("{") else cls(str(place))

    @property
    def is_local(self):
        return "://" not in self.url

    @property
    def copies(self):
        """Where copies of collections of the lake are made."""
        return dataclasses.replace(self, url=f"{self.url}-copies")

    def has_copies(self):
        """Whether any were made."""
        return self.is_local and Path(self.copies.url).exists()

    def open(self, config):
        """Open the lake; make it if there is none."""
        env = Env(clock=WrongClock(self.ahead_s), recorder=Counters())
        return tidelake.open(self.url, config=config, env=env, log=self.log, store_options=self.options)
