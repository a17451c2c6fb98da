"""Local files without a name: nobody else sees them, and they are gone with the process, however it ends.

Owns where they are, and how much of the disk they leave free. Must not know what is in them.
"""

import shutil
import tempfile
from collections.abc import Callable
from typing import IO, TypeVar

T = TypeVar("T")

# So much of the disk is left to others.
_FREE_SHARE = 10


def unnamed(write: Callable[[IO[bytes]], bool], read: Callable[[str], T]) -> T | None:
    """A file that is written, and then read.

    It is in the directory of temporary files (`TMPDIR`), and goes when nothing of it is mapped any more.

    Args:
        write: writes it, at least one byte, and says whether that is complete.
        read: is given a path that leads to it during the call.

    Returns:
        What was read; None if it is not complete, or the operating system refused: there is no room.
    """
    try:
        with tempfile.TemporaryFile(prefix="tidelake-") as file:
            if not write(file):
                return None
            file.flush()
            return read(f"/dev/fd/{file.fileno()}")
    except OSError:
        return None


def spare_bytes() -> int:
    """How much may be written before less than a tenth of the disk is free."""
    try:
        disk = shutil.disk_usage(tempfile.gettempdir())
    except OSError:
        return 0
    return max(0, disk.free - disk.total // _FREE_SHARE)
