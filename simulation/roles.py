"""The roles of clients, by the names that `Options.roles` holds."""

from collections.abc import Callable

from simulation import (
    bank,
    droppers,
    forkers,
    keepers,
    readers,
    stagers,
    uploaders,
    writers,
)
from simulation.clients import Client

ROLES: dict[str, Callable[[Client], None]] = {
    "writer": writers.writer,
    "appender": writers.appender,
    "crowd": writers.crowd,
    "reader": readers.reader,
    "listener": readers.listener,
    "holder": readers.holder,
    "maintainer": keepers.maintainer,
    "upkeep": keepers.upkeep,
    "owner": keepers.owner,
    "collector": keepers.collector,
    "critical": keepers.critical,
    "dropper": droppers.dropper,
    "forker": forkers.forker,
    "teller": bank.teller,
    "stager": stagers.stager,
    "sealer": stagers.sealer,
    "drainer": stagers.drainer,
    "uploader": uploaders.uploader,
}
