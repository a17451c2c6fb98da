"""Which allocator Arrow uses while a merge runs.

Owns the one change to Arrow's process-wide default; must not know what is allocated. Invariant: once
the last merge of the process has ended, the default is what it was before the first.

Chunks pass from thread to thread. mimalloc, Arrow's own choice, keeps what another thread frees until
its owner comes by again: three times what was in use, measured. jemalloc keeps a third of that, as fast.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

_lock = threading.Lock()
_running: list[pa.MemoryPool] = []
"""For every merge that runs, the default from before the first of them."""


@contextmanager
def lean_memory() -> Iterator[None]:
    """Let Arrow allocate from jemalloc where it has been built with it, until the last block is left.

    Buffers know where they came from, so other threads may go on allocating and freeing.
    """
    with _lock:
        _running.append(_running[0] if _running else pa.default_memory_pool())
        if len(_running) == 1 and "jemalloc" in pa.supported_memory_backends():
            pa.set_memory_pool(pa.jemalloc_memory_pool())
    try:
        yield
    finally:
        with _lock:
            before = _running.pop()
            if not _running:
                pa.set_memory_pool(before)
