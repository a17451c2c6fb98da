"""Decodes records of types outside the state, such as tasks and batches. Thread-safe.

Owns the set of types that are registered with `tidelake.state.core.codec`, which owns the format. INVARIANT:
one thread registers a type, and no thread decodes the type before that is done.
"""

import threading
from typing import TypeVar

from tidelake.state.core.codec import decode_record, learn

T = TypeVar("T")

_lock = threading.Lock()
_learned: set[type] = set()


def decoded(kind: str, data: bytes, type_: type[T], name: str) -> T:
    """As `tidelake.state.core.codec.decode_record`, for any type: registers the type at its first use."""
    if type_ not in _learned:
        with _lock:
            learn(type_)
            _learned.add(type_)
    return decode_record(kind, data, type_, name)
