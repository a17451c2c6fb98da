"""Memory and disk budgets: measures what is left, and decides whether a batch is kept in memory or on disk.

Owns the measuring and the decision; must not know rows, levels or threads. Invariant: merges to disk are
admitted only as long as the disk has space for the full size of all their outputs.
"""

import os
import shutil
from typing import Protocol

from tidelake.arrangement.merge.pressure import Pressure, pressure, to_disk
from tidelake.arrangement.merge.settings import ArrangementConfig
from tidelake.errors import StoreUnavailable

# A column of a batch in memory holds at most 2 GiB; reads join a batch with some more rows, hence the margin.
MEMORY_BATCH_BYTES_MAX = 15 << 27


class SystemResources(Protocol):
    """Measures of the operating system."""

    def resident_bytes(self) -> int:
        """Memory that the process holds; 0 if it cannot be measured."""

    def free_bytes(self, directory: str) -> int:
        """Free disk space on the file system of a directory."""


class SystemMachine:
    """Measures the machine that this process runs on."""

    def resident_bytes(self) -> int:
        """The resident set, where there is `/proc`; elsewhere 0: only the arrangement's own use counts."""
        try:
            with open("/proc/self/statm", "rb") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except FileNotFoundError:
            return 0

    def free_bytes(self, directory: str) -> int:
        """Free disk space that this user may use."""
        try:
            return shutil.disk_usage(directory).free
        except OSError as error:
            raise StoreUnavailable(
                f"cannot determine the free disk space at {directory!r}: {error.strerror}", False
            ) from error


SYSTEM_MACHINE = SystemMachine()


class MemoryBudget:
    """How much memory and disk an arrangement may still use.

    Attributes:
        level: the memory pressure when it was last measured.
    """

    def __init__(self, config: ArrangementConfig, machine: SystemResources, directory: str) -> None:
        self.level = Pressure.LOW
        self.machine = machine
        self._config = config
        self._directory = directory

    def measure(self, used: int) -> Pressure:
        """Update the pressure, given the used bytes of the arrangement's budget."""
        config = self._config
        share = used / config.memory_budget_bytes
        if config.process_budget_bytes is not None:
            share = max(share, self.machine.resident_bytes() / config.process_budget_bytes)
        self.level = pressure(share, self.level, config.shares)
        return self.level

    def on_disk(self, size: int, used: int) -> bool:
        """Whether a batch of `size` bytes is kept on disk when `used` bytes of the budget are in use."""
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
        """Whether a merge may write `size` bytes to disk, when others are still going to write `promised`."""
        free = self.machine.free_bytes(self._directory) - self._config.disk_reserve_bytes
        return size + promised <= free
