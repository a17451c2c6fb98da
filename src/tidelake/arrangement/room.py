"""Room for batches: what memory and disk have left, and where a batch is to be kept.

Owns the measuring and the decision; must not know rows, levels or threads. Invariant: of merges that write
to disk only so many are admitted that all of them can end, whatever cancels out.
"""

import os
import shutil
from typing import Protocol

from tidelake.arrangement.pressure import Pressure, pressure, to_disk
from tidelake.arrangement.settings import ArrangementConfig
from tidelake.errors import StoreUnavailable

# One column of a batch in memory holds 2 GiB, and what is not quite as large is joined with some rows more.
MEMORY_BATCH_BYTES_MAX = 15 << 27


class Machine(Protocol):
    """What a process is told by its operating system."""

    def resident_bytes(self) -> int:
        """Memory that the process holds; 0 if that is not to be had."""

    def free_bytes(self, directory: str) -> int:
        """Disk space that is left where a directory is."""


class SystemMachine:
    """The machine itself."""

    def resident_bytes(self) -> int:
        """The resident set, where there is `/proc`; elsewhere 0: only the arrangement's own use counts."""
        try:
            with open("/proc/self/statm", "rb") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except FileNotFoundError:
            return 0

    def free_bytes(self, directory: str) -> int:
        """What this user may still write.

        Raises:
            StoreUnavailable: the directory is not there.
        """
        try:
            return shutil.disk_usage(directory).free
        except OSError as error:
            raise StoreUnavailable(
                f"cannot tell how much disk is left at {directory!r}: {error.strerror}", False
            ) from error


SYSTEM_MACHINE = SystemMachine()


class Room:
    """How much memory and disk an arrangement may still take.

    Attributes:
        level: the pressure, as it was last measured.
        machine: that measures.
    """

    def __init__(self, config: ArrangementConfig, machine: Machine, directory: str) -> None:
        self.level = Pressure.LOW
        self.machine = machine
        self._config = config
        self._directory = directory

    def measure(self, used: int) -> Pressure:
        """The pressure when so many bytes of the arrangement's budget are used."""
        config = self._config
        share = used / config.memory_budget_bytes
        if config.process_budget_bytes is not None:
            share = max(share, self.machine.resident_bytes() / config.process_budget_bytes)
        self.level = pressure(share, self.level, config.shares)
        return self.level

    def on_disk(self, size: int, used: int) -> bool:
        """Whether a batch of so many bytes is to be kept on disk while so many are used."""
        config = self._config
        return size >= MEMORY_BATCH_BYTES_MAX or to_disk(
            size,
            used,
            self.level,
            budget=config.memory_budget_bytes,
            shares=config.shares,
            large=config.large_share,
        )

    def admits(self, size: int, promised: int) -> bool:
        """Whether a merge may write so many bytes to disk when others are still going to write some."""
        free = self.machine.free_bytes(self._directory) - self._config.disk_reserve_bytes
        return size + promised <= free
