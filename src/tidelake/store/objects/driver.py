"""The driver of object stores, obstore, as this process may use it, and the loop that its calls run on.

Owns the import of obstore and the thread of the loop. Must not know what is asked of an object store.

SUBTLE: obstore keeps its threads in variables of its shared library. A fork has a copy of these variables,
but none of the threads, so that every call there would hang, also with a store that the fork makes itself. A
fork therefore loads the library once more, from a copy in memory that has its own variables (15 MB, 20 ms).
"""

import asyncio
import atexit
import concurrent.futures
import importlib.util
import os
import sys
import threading
from collections.abc import Coroutine
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from typing import Any, TypeVar

from tidelake.env import Stop, ThreadSpawner
from tidelake.errors import UsageError, to_install
from tidelake.process import PerProcess, ProcessOrigin

T = TypeVar("T")

_END_S = 5.0
_FREED_S = 0.2


class Driver:
    """The functions and classes of obstore for this process."""

    def __init__(self) -> None:
        # SUBTLE: what others have imported may have been used by the process that this one is a fork of.
        is_first = "obstore" not in sys.modules
        try:
            from obstore import _obstore
        except ImportError as error:
            raise UsageError(f"object stores need obstore ({error}): {to_install('cloud')}") from error
        self.api: Any = _obstore if is_first else _loaded_again(str(_obstore.__file__))
        self.stores: Any = self.api._store


class Loop:
    """An event loop in one daemon thread, which lives as long as the process. Thread-safe.

    SUBTLE: a thread of the driver that frees a result while the interpreter ends aborts the process. So the
    end of the process cancels what is under way, and gives the driver a moment after the last call.
    """

    def __init__(self) -> None:
        self._origin = ProcessOrigin()
        self._ended_s = 0.0
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        ThreadSpawner().spawn("tidelake-objects", self._work)
        self._ready.wait()
        _running.append(self)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the thread of the loop, and wait. A signal ends the wait and cancels it."""
        future: concurrent.futures.Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise
        finally:
            self._ended_s = self._loop.time()

    def end(self) -> None:
        """Cancel what is under way, if this process made the loop. For the end of the process."""
        if self._origin.is_here:
            asyncio.run_coroutine_threadsafe(self._cancel_all(), self._loop).result(_END_S)

    async def _cancel_all(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        since_s = 0.0 if tasks else self._loop.time() - self._ended_s
        await asyncio.sleep(max(0.0, _FREED_S - since_s))

    def _work(self, _stop: Stop) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.call_soon(self._ready.set)
        self._loop.run_forever()


driver = PerProcess(Driver)
loop = PerProcess(Loop)
_running: list[Loop] = []


def _end_loops() -> None:
    for one in _running:
        one.end()


# When this module is loaded, so that it is called after those that others register: they may make requests.
atexit.register(_end_loops)


def _loaded_again(path: str) -> Any:
    """Load a shared library from a copy of its own, so that it has variables of its own."""
    if not hasattr(os, "memfd_create"):
        raise UsageError("object stores cannot be used in a fork here: start the process by spawn instead")
    # The copy stays open, so that a fork of this process gives its own another name: a library that is loaded
    # from a name already is not loaded again.
    copy = os.memfd_create("obstore")
    with open(path, "rb") as file:
        size, sent = os.fstat(file.fileno()).st_size, 0
        while sent < size:
            sent += os.sendfile(copy, file.fileno(), sent, size - sent)
    loader = ExtensionFileLoader("_obstore", f"/proc/self/fd/{copy}")
    module = importlib.util.module_from_spec(ModuleSpec("_obstore", loader, origin=loader.path))
    loader.exec_module(module)
    return module
