"""Small file systems for tests; the machine may not allow them, and the test is skipped then."""

import fcntl
import os
import shutil
import struct
import subprocess
from contextlib import contextmanager

import pytest

from tied_process import tied

_SHUTDOWN = 0x8004587D  # _IOR('X', 125, __u32): take a file system away from under its files
SHUTDOWN_FLAGS = (0, 1, 2)  # flush all; flush the journal only; flush nothing


def _done(*command):
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


@contextmanager
def tmpfs(place, size):
    """A file system in memory of `size`."""
    place.mkdir()
    if os.geteuid() != 0 or not _done("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)):
        pytest.skip("cannot mount a small file system here: it needs root, and a kernel that lets it")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


class Disk:
    """An ext4 file system in a file, which can be taken away at any moment."""

    def __init__(self, folder):
        self.image, self.place = folder / "disk.img", folder / "disk"
        self.place.mkdir()
        if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
            pytest.skip("cannot make a file system here: it needs root and mkfs.ext4")
        with self.image.open("wb") as file:
            file.truncate(128 << 20)
        subprocess.run(["mkfs.ext4", "-q", "-F", str(self.image)], check=True)
        if not self.mount():
            pytest.skip("cannot mount a file as a disk here: there is no loop device")

    def mount(self):
        return _done("mount", "-o", "loop", str(self.image), str(self.place))

    def shut_down(self, flag):
        """As if the disk had been pulled out: all that follows fails."""
        descriptor = os.open(self.place, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, _SHUTDOWN, struct.pack("I", flag))
        except OSError as error:
            pytest.skip(f"this kernel does not shut a file system down: {error}")
        finally:
            os.close(descriptor)

    def plug_in_again(self):
        """Unmount, check and mount what it holds: the journal is played back, as after a power cut.

        A process with mounts of its own, such as another test's, may still hold the file system that was shut
        down, and a mount of the same file would get that one back. So it is a copy that is mounted.
        """
        subprocess.run(["umount", str(self.place)], check=True)
        copy = self.image.with_suffix(".copy")
        subprocess.run(["cp", "--sparse=always", str(self.image), str(copy)], check=True)
        copy.replace(self.image)
        checked = subprocess.run(["fsck.ext4", "-f", "-p", str(self.image)], check=False, capture_output=True)
        assert checked.returncode in (0, 1), checked.stdout  # 1: it mended what the journal left
        assert self.mount()


@contextmanager
def ext4(folder):
    """A disk in a folder."""
    disk = Disk(folder)
    try:
        yield disk
    finally:
        _done("umount", "-l", str(disk.place))


@contextmanager
def holding_all_mounts():
    """While a process with a mount namespace of its own holds all that is mounted now."""
    command = ["unshare", "--mount", "sh", "-c", "echo ready; exec sleep infinity"]
    with subprocess.Popen(tied(*command), stdout=subprocess.PIPE) as holder:
        try:
            if holder.stdout.readline() != b"ready\n":
                pytest.skip("mount namespaces are not permitted here")
            yield
        finally:
            holder.kill()
