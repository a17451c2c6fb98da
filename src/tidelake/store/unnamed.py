"""Local files without a name: no other process sees them, and they vanish with the process, however it ends.

Owns where these files are, and how much of the disk they leave free. Must not know what is in them.
"""

import shutil
import tempfile
from collections.abc import Callable
from typing import IO, TypeVar

T = TypeVar("T")

# One part in so many of the disk is left free.
_FREE_SHARE = 10


def unnamed(write: Callable[[IO[bytes]], bool], read: Callable[[str], T]) -> T | None:
    """Write a file, then read it.

    It is in the directory of temporary files (`TMPDIR`). Its space is freed when it is no longer mapped.

    Returns:
        What `read` returned; None if the file is not complete, or the operating system raised an error, for
        example because the disk is full.
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
    """How many bytes can be written while a tenth of the disk stays free; 0 if that is not known."""
    try:
        disk = shutil.disk_usage(tempfile.gettempdir())
    except OSError:
        return 0
    return max(0, disk.free - disk.total // _FREE_SHARE)
