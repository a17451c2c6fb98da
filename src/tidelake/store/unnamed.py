"""Local files without a name: nobody else sees them, and they are gone with the process, however it ends.

Owns where they are, and how much of the disk they leave free. Must not know what is in them.
"""

import shutil
import tempfile
from collections.abc import Callable
from typing import IO

import pyarrow as pa

# So much of the disk is left to others.
_FREE_SHARE = 10


def mapped(write: Callable[[IO[bytes]], bool]) -> pa.Buffer | None:
    """A file that was written, as read-only memory; it goes when that is let go of.

    It is in the directory of temporary files (`TMPDIR`), and takes no descriptor: a process has few of them.

    Args:
        write: writes it, at least one byte, and says whether that is complete.

    Returns:
        None if it is not complete, or the operating system refused: there is no room.
    """
    try:
        with tempfile.TemporaryFile(prefix="tidelake-") as file:
            if not write(file):
                return None
            file.flush()
            # Python's own maps keep a descriptor each. The memory outlives this one.
            with pa.memory_map(f"/dev/fd/{file.fileno()}") as source:
                return source.read_buffer()
    except OSError:
        return None


def spare_bytes() -> int:
    """How much may be written before less than a tenth of the disk is free."""
    try:
        disk = shutil.disk_usage(tempfile.gettempdir())
    except OSError:
        return 0
    return max(0, disk.free - disk.total // _FREE_SHARE)
