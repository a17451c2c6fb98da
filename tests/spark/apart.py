"""Machines without a shared disk: processes, each in a mount namespace that sees no directory of the others.

As a script: apart.py MACHINES HOME SOFTWARE COMMAND...: becomes COMMAND on the machine whose disk is the
folder HOME of the folder MACHINES. There is nothing else in MACHINES; `/tmp`, `/var/tmp` and `/dev/shm` are
its own and empty, but for the folders SOFTWARE, which can only be read. A folder `copy` in HOME is seen at
MACHINES/copy: each machine has its own copy of the same data. Needs root; the network is that of all.
"""

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

HERE = Path(__file__).resolve().parent
COPY = "copy"
_OWN = ("/tmp", "/var/tmp", "/dev/shm")
_NEWNS, _RDONLY, _REMOUNT, _BIND, _REC, _PRIVATE = 0x20000, 1, 32, 4096, 16384, 1 << 18


class Machines:
    """Machines by name, below one folder that only this process sees as a whole.

    Args:
        folder: for their disks.
        software: folders that each of them has as well, to be read only.
    """

    def __init__(self, folder: Path, software: Iterable[Path] = ()) -> None:
        self.folder = folder
        self._software = [HERE.parent, *software]
        folder.mkdir()

    def home(self, machine: str) -> Path:
        """The disk of a machine; made if it is new."""
        home = self.folder / machine
        home.mkdir(exist_ok=True)
        return home

    def give(self, data: Path, machines: Iterable[str]) -> Path:
        """Copy a folder to machines; where all of them see it."""
        for machine in machines:
            shutil.copytree(data, self.home(machine) / COPY, copy_function=shutil.copy2)
        return self.folder / COPY

    def on(self, machine: str, command: Iterable[str]) -> list[str]:
        """A command as it is to be started here to run on a machine."""
        kept = os.pathsep.join(map(str, self._software))
        script = [sys.executable, "-I", "-S", __file__, str(self.folder), str(self.home(machine)), kept]
        return [*script, *command]


def skip_unless_permitted() -> None:
    """Skip the test where this process may not make mount namespaces."""
    command = ["unshare", "-m", "mount", "-t", "tmpfs", "none", "/tmp"]
    import pytest  # the script has it not

    if shutil.which("unshare") is None:
        pytest.skip("no unshare on this machine")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mount namespaces are not permitted here: {done.stderr.strip()}")


def _enter(machines: str, home: str, software: list[str]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)

    def checked(answer: int, what: str) -> None:
        if answer:
            sys.exit(f"{what}: {os.strerror(ctypes.get_errno())}")

    def mount(source: str, target: str, kind: str, flags: int) -> None:
        checked(libc.mount(source.encode(), target.encode(), kind.encode(), flags, None), f"mount {target}")

    checked(libc.unshare(_NEWNS), "unshare")
    mount("none", "/", "", _REC | _PRIVATE)
    hidden = [place for place in (*_OWN, machines) if os.path.isdir(place)]
    # What lies in a hidden place is reached by a descriptor.
    seen = {home: home}
    if os.path.isdir(f"{home}/{COPY}"):
        seen[f"{machines}/{COPY}"] = f"{home}/{COPY}"
    inside = [one for one in software if any(Path(one).is_relative_to(place) for place in hidden)]
    held = {target: os.open(source, os.O_PATH | os.O_DIRECTORY) for target, source in seen.items()}
    read_only = {one: os.open(one, os.O_PATH | os.O_DIRECTORY) for one in inside}
    for place in hidden:
        os.makedirs(place, exist_ok=True)
        mount("none", place, "tmpfs", 0)
    for target, descriptor in {**held, **read_only}.items():
        os.makedirs(target, exist_ok=True)
        mount(f"/proc/self/fd/{descriptor}", target, "", _BIND)
        if target in read_only:
            mount("none", target, "", _BIND | _REMOUNT | _RDONLY)
        os.close(descriptor)
    os.chdir(home)


if __name__ == "__main__":
    _enter(sys.argv[1], sys.argv[2], sys.argv[3].split(os.pathsep))
    os.execvp(sys.argv[4], sys.argv[4:])
