"""Lists what one writer has put into the blob store, so that all of it can be deleted.

Owns the list of names; must not know what is stored. Invariant: every object that was put through a
ledger, and may exist, is listed until it is certainly deleted.
"""

import threading
from collections.abc import Iterable

from tidelake.env import Env
from tidelake.errors import OutcomeUnknown, StoreUnavailable
from tidelake.store.layers import BlobLayer
from tidelake.store.protocols import BlobStore


class Ledger(BlobLayer):
    """A `BlobStore` that lists the objects that were put through it and not deleted. Thread-safe."""

    def __init__(self, inner: BlobStore) -> None:
        super().__init__(inner)
        self._names: dict[str, None] = {}
        self._lock = threading.Lock()

    def put(self, name: str, data: bytes) -> None:
        """Put if absent; see `BlobStore.put`."""
        # List it before the put, whose outcome may be unknown.
        with self._lock:
            self._names[name] = None
        self._inner.put(name, data)

    def delete(self, name: str) -> bool:
        """Remove; see `BlobStore.delete`."""
        present = self._inner.delete(name)
        with self._lock:
            self._names.pop(name, None)
        return present

    def close(self) -> None:
        """Do nothing: others use the store below too."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the objects that may exist, in the order in which they were put."""
        with self._lock:
            return tuple(self._names)

    def delete_all_but(self, kept: Iterable[str], env: Env) -> None:
        """Delete all listed objects but the `kept` ones. Counts failures, whose names stay listed."""
        wanted = set(kept)
        for name in self.names:
            if name in wanted:
                continue
            try:
                self.delete(name)
            except (StoreUnavailable, OutcomeUnknown):
                env.failed("discard.failed")
