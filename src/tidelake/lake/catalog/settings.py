"""The settings of a lake as users see them: names, units, and which ones a process may pass in `Config`."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from tidelake.config import Config
from tidelake.errors import UsageError
from tidelake.lake.arguments.spans import duration_s
from tidelake.state.core.agreed import NAMES, Agreed
from tidelake.tabletext import FieldsAsHtml

_PROCESS = Config()
_GIVEN = ("lease_s", "garbage_age_s", "upload_age_s")


@dataclass(frozen=True)
class LakeSettings(FieldsAsHtml):
    """The settings of a lake, in seconds. All processes use them, whatever `Config` they were opened with.

    Attributes:
        lease_s: a reader's hold expires if the reader does not renew it for so long. An open reader keeps the
            value that it was opened with.
        garbage_age_s: how long a stored object stays after the collection no longer needs it. A longer read
            writes a hold by itself.
        upload_age_s: an upload that is older than this, and in no collection, is given up and removed; so are
            undecided transactions and unfinished forks.
        max_ahead_s: how far ahead of the wall clock the times of a clock collection may be closed.
        token_age_s: how long the token of a write is remembered; after that, the same token is a new write.
    """

    lease_s: float
    garbage_age_s: float
    upload_age_s: float
    max_ahead_s: float
    token_age_s: float

    @classmethod
    def of(cls, agreed: Agreed) -> "LakeSettings":
        """Convert the stored settings, which are in milliseconds."""
        return cls(**{_seconds(name): value / 1000 for name, value in agreed.values.items()})


SETTINGS = tuple(one.name for one in fields(LakeSettings))


def _seconds(name: str) -> str:
    return name.removesuffix("ms") + "s"


def asked(values: Mapping[str, object]) -> dict[str, int]:
    """Check the settings that a user wants to change. Returns milliseconds by stored name."""
    for name in values:
        if name not in SETTINGS:
            raise UsageError(f"a lake has no setting {name!r}: it has {', '.join(SETTINGS)}")
    found = {_seconds(name): name for name in NAMES}
    return {found[name]: int(duration_s(value, name) * 1000) for name, value in values.items()}


def check_agreed(config: Config, agreed: Agreed) -> None:
    """Refuse a `Config` that sets a lake-wide setting to another value than the lake's."""
    there = LakeSettings.of(agreed)
    for name in _GIVEN:
        wanted = getattr(config, name)
        if wanted not in (getattr(_PROCESS, name), getattr(there, name)):
            raise UsageError(
                f"setting {name}={wanted:g} is not this lake's, which is {getattr(there, name):g} for all "
                f"processes: leave it out of Config, or change it for all of them with "
                f"lake.settings({name}={wanted:g}) or `tidelake settings LAKE {name}={wanted:g}`"
            )


def for_another_lake(config: Config) -> Config:
    """The settings of a process, with the lake-wide ones back at their defaults."""
    return replace(config, **{name: getattr(_PROCESS, name) for name in _GIVEN})
