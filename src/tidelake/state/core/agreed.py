"""Settings that all processes of a lake must agree on, because they protect each other's data by them.

Every shard has them in its state. So a command that deletes or refuses by an age reads that age in the very
state that it changes, and a reader uses those of the state that it reads. `tidelake.state.life.agreeing`
changes them.

When an age becomes shorter, the longer one stays in force for as long as it was, so that what was begun under
it is still safe. When an age becomes longer, it holds from that commit on.

The format of the lake is one of them: no process writes a record of a later format, so that processes of the
version before can work on the same lake until all of them are replaced. `upgrade` raises it.

INVARIANT: no step makes an age that is in force shorter, or the format lower.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidelake.config import Config
from tidelake.state.core.formats import FIRST, NEWEST

AGES = ("garbage_age_ms", "upload_age_ms", "token_age_ms")
"""Settings after which something ends that others may need."""

_DAY_MS = 86_400_000


@dataclass(frozen=True)
class Longer:
    """What an age was before it became shorter.

    Attributes:
        until_ms: wall clock until which it stays in force.
    """

    age_ms: int
    until_ms: int


@dataclass(frozen=True)
class Agreed:
    """The settings of one revision.

    Attributes:
        revision: counts the changes in the lake; 0: the settings that the lake was made with.
        lease_ms: how long a reader's hold lasts without a sign of life from it.
        garbage_age_ms: how long a stored object stays after the collection no longer needs it.
        upload_age_ms: an upload that was begun longer ago, and is in no collection, is given up.
        max_ahead_ms: how far ahead of the wall clock a collection with clock times may close times.
        longer: by name, ages that were longer before and are still in force.
        told: in the catalog: whether every shard of the lake has this revision.
        token_age_ms: how long a token is remembered after a write under it began.
        format: the latest format of records that is written.
    """

    revision: int = 0
    lease_ms: int = 900_000
    garbage_age_ms: int = 600_000
    upload_age_ms: int = _DAY_MS
    max_ahead_ms: int = _DAY_MS
    longer: dict[str, Longer] = field(default_factory=dict)
    told: bool = True
    token_age_ms: int = 30 * _DAY_MS
    format: int = FIRST

    @classmethod
    def of(cls, config: Config) -> "Agreed":
        """The settings of a lake that is made with this configuration."""
        return cls(
            lease_ms=int(config.lease_s * 1000),
            garbage_age_ms=int(config.garbage_age_s * 1000),
            upload_age_ms=int(config.upload_age_s * 1000),
            format=NEWEST,
        )

    @property
    def values(self) -> dict[str, int]:
        """The settings by name."""
        return {name: getattr(self, name) for name in NAMES}

    def in_force(self, name: str, now_ms: int) -> int:
        """The age that holds now: the present one, or a longer one from before."""
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
        """The settings of a later revision: those in `values` are new, the others stay."""
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
            format=self.format,
        )


NAMES = ("lease_ms", "garbage_age_ms", "upload_age_ms", "max_ahead_ms", "token_age_ms")
AS_MADE = Agreed()
"""Those of a state that does not tell any. They never change, since states are stored without them."""
NEW = Agreed(format=NEWEST)
"""Those of a new lake, unless its process says otherwise."""
