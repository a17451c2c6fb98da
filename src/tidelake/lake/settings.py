"""The settings of a lake as users know them: names, units, and which of them a process may bring along."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from tidelake.config import Config
from tidelake.errors import UsageError
from tidelake.lake.spans import duration_s
from tidelake.state.agreed import NAMES, Agreed

_PROCESS = Config()
_GIVEN = ("lease_s", "garbage_age_s", "upload_age_s")


@dataclass(frozen=True)
class LakeSettings:
    """The settings of a lake, in seconds. All processes go by them, whatever they were opened with.

    Attributes:
        lease_s: how long a reader's hold lasts without a sign of life from it. An open one keeps its own.
        garbage_age_s: how long a stored object stays after the collection no longer needs it; a read that
            takes longer holds what it reads by itself.
        upload_age_s: an upload that was begun so long ago, and is in no collection, is given up and removed;
            so are transactions, and forks that were never made.
        max_ahead_s: how far ahead of the clock times of a clock collection may be closed.
        token_age_s: how long a token of a write is remembered; the same one is a new write after that.
    """

    lease_s: float
    garbage_age_s: float
    upload_age_s: float
    max_ahead_s: float
    token_age_s: float

    @classmethod
    def of(cls, agreed: Agreed) -> "LakeSettings":
        """As users know them."""
        return cls(**{_seconds(name): value / 1000 for name, value in agreed.values.items()})


SETTINGS = tuple(one.name for one in fields(LakeSettings))


def _seconds(name: str) -> str:
    return name.removesuffix("ms") + "s"


def asked(values: Mapping[str, object]) -> dict[str, int]:
    """The milliseconds of settings that a user wants to change.

    Raises:
        UsageError: there is no such setting, or it is no span of time.
    """
    for name in values:
        if name not in SETTINGS:
            raise UsageError(f"a lake has no setting {name!r}: it has {', '.join(SETTINGS)}")
    found = {_seconds(name): name for name in NAMES}
    return {found[name]: int(duration_s(value, name) * 1000) for name, value in values.items()}


def check_agreed(config: Config, agreed: Agreed) -> None:
    """Refuse settings of one process that are the lake's to decide; those that it has are no matter.

    Raises:
        UsageError: names the setting, and how it is changed for all.
    """
    there = LakeSettings.of(agreed)
    for name in _GIVEN:
        wanted = getattr(config, name)
        if wanted not in (getattr(_PROCESS, name), getattr(there, name)):
            raise UsageError(
                f"setting {name}={wanted:g} is not this lake's, which is {getattr(there, name):g}, and all "
                f"processes go by that: leave it out of Config, or change it for all of them with "
                f"lake.settings({name}={wanted:g}) or `tidelake settings LAKE {name}={wanted:g}`"
            )


def for_another_lake(config: Config) -> Config:
    """The settings of a process without those of the lake that it has open."""
    return replace(config, **{name: getattr(_PROCESS, name) for name in _GIVEN})
