"""Settings that all processes of a lake go by, since they decide about each other's safety.

Every shard has them in its state. So a command that deletes or refuses by an age reads it in the very state
that it changes, and whoever reads goes by the state that it reads. How they come there is in
`tidelake.state.agreeing`.

An age that becomes shorter stays in force for as long as it was: whoever began something under the longer
one is not deceived. One that becomes longer holds from the same commit on.

INVARIANT: no step makes an age that is in force shorter.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidelake.config import Config

AGES = ("garbage_age_ms", "upload_age_ms", "token_age_ms")
"""Those by which something ends that others may need."""

_DAY_MS = 86_400_000


@dataclass(frozen=True)
class Longer:
    """What an age was before it became shorter.

    Attributes:
        age_ms: the longer one.
        until_ms: wall clock until which it stays in force.
    """

    age_ms: int
    until_ms: int


@dataclass(frozen=True)
class Agreed:
    """The settings, and since when they are these.

    Attributes:
        revision: counts the changes in the lake; 0: they are as when the lake was made.
        lease_ms: how long a reader's hold lasts without a sign of life from it.
        garbage_age_ms: how long a stored object stays after the collection no longer needs it.
        upload_age_ms: an upload that was begun so long ago, and is in no collection, is given up.
        max_ahead_ms: how far ahead of the clock times of clock collections may be closed.
        longer: ages that were longer and are in force still, by name.
        told: of the catalog: whether every shard of the lake has this revision.
        token_age_ms: how long a token is remembered after a write under it began.
    """

    revision: int = 0
    lease_ms: int = 900_000
    garbage_age_ms: int = 600_000
    upload_age_ms: int = _DAY_MS
    max_ahead_ms: int = _DAY_MS
    longer: dict[str, Longer] = field(default_factory=dict)
    told: bool = True
    token_age_ms: int = 30 * _DAY_MS

    @classmethod
    def of(cls, config: Config) -> "Agreed":
        """Of a lake that is made by a process with these settings."""
        return cls(
            lease_ms=int(config.lease_s * 1000),
            garbage_age_ms=int(config.garbage_age_s * 1000),
            upload_age_ms=int(config.upload_age_s * 1000),
        )

    @property
    def values(self) -> dict[str, int]:
        """The settings by name."""
        return {name: getattr(self, name) for name in NAMES}

    def in_force(self, name: str, now_ms: int) -> int:
        """The age that holds now: a longer one of a while ago, or the present one."""
        value: int = getattr(self, name)
        longer = self.longer.get(name)
        return value if longer is None or now_ms >= longer.until_ms else max(value, longer.age_ms)

    def garbage_ms(self, now_ms: int) -> int:
        """How long garbage stays."""
        return self.in_force("garbage_age_ms", now_ms)

    def upload_ms(self, now_ms: int) -> int:
        """How long an upload may take."""
        return self.in_force("upload_age_ms", now_ms)

    def changed(self, now_ms: int, revision: int, values: Mapping[str, int]) -> "Agreed":
        """The settings of a later revision, which take some from `values`."""
        mine = self.values | dict(values)
        longer = {}
        for name in AGES:
            before_ms, known = self.in_force(name, now_ms), self.longer.get(name)
            if before_ms > mine[name]:
                until_ms = max(now_ms + before_ms, 0 if known is None else known.until_ms)
                longer[name] = Longer(before_ms, until_ms)
        return Agreed(
            revision,
            mine["lease_ms"],
            mine["garbage_age_ms"],
            mine["upload_age_ms"],
            mine["max_ahead_ms"],
            longer,
            token_age_ms=mine["token_age_ms"],
        )


NAMES = ("lease_ms", "garbage_age_ms", "upload_age_ms", "max_ahead_ms", "token_age_ms")
AS_MADE = Agreed()
