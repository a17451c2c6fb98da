"""Work of a process that is killed before each change that it makes to files, one after the other.

The kill is real: a fork runs the work and ends by `os._exit` within the call, so that no `finally` runs and
the operating system releases its locks.
"""

import contextlib
import itertools
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

from tiers import calls

_KILLED = 137
_CHANGES = {"os.rename", "os.remove", "os.link", "os.mkdir", "os.rmdir", "os.truncate", "os.symlink"}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_BY_DESCRIPTOR = ("write", "pwrite", "fsync", "fdatasync")


def killed(prepared: Path, work: Callable[[Path], object], *, fast: int, full: int = 3) -> Iterator[Path]:
    """The places that work leaves that is killed; the last one is that of work which came to its end.

    Args:
        prepared: a folder. Each kill has its own copy.
        work: what to do in such a copy, which is its argument.
        fast: the fast tier kills before one change in so many.
        full: the full tier kills before one change in so many, and the soak before all of them.
    """
    place = prepared.with_name(f"{prepared.name}-killed")
    for changes in itertools.chain(calls(most=2_000, fast=fast, full=full), [sys.maxsize]):
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(prepared, place)
        has_ended = killed_before(place, work, changes)
        yield place
        if has_ended:
            assert changes, "it changes nothing"
            return


def killed_before(place: Path, work: Callable[[Path], object], changes: int) -> bool:
    """Run work in a fork that dies before its change of this number; whether it came to its end."""
    child = os.fork()
    if not child:
        code = 1
        try:
            _die_before(place, changes)
            work(place)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stderr.flush()
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, _KILLED), f"the work has failed before its change {changes}: {code}"
    return code == 0


def _die_before(place: Path, changes: int) -> None:
    """From now on, end this process before its change of this number to something below a folder."""
    left, root = changes, str(place)

    def step(path: object) -> None:
        nonlocal left
        if isinstance(path, bytes):
            path = os.fsdecode(path)
        if isinstance(path, str) and path.startswith(root):
            if not left:
                os._exit(_KILLED)
            left -= 1

    def hook(event: str, args: tuple[object, ...]) -> None:
        is_change = event in _CHANGES
        if event == "open":
            flags = args[2]
            is_change = isinstance(flags, int) and bool(flags & _WRITES)
        if is_change:
            step(args[0])

    def by_descriptor(name: str) -> None:
        call = getattr(os, name)

        def wrapped(descriptor: int, *more: object) -> object:
            # The descriptors of files in memory and of the terminal have no path of this kind.
            step(os.readlink(f"/proc/self/fd/{descriptor}"))
            return call(descriptor, *more)

        setattr(os, name, wrapped)

    for name in _BY_DESCRIPTOR:
        by_descriptor(name)
    sys.addaudithook(hook)
