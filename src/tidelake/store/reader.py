"""A reader of one object that a layer looks through.

Owns the file behaviour (seek, tell, close). Must not know what the layer does at each read: it is handed in.

INVARIANT: every byte that is read passes through the hook of the layer.
"""

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, BinaryIO, cast

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

ReadHook = Callable[[BinaryIO, int], bytes]
"""Reads up to so many bytes (all that are left if negative) from the reader below."""


class _ReadThrough(io.RawIOBase):
    def __init__(self, inner: BinaryIO, hook: ReadHook) -> None:
        super().__init__()
        self._inner = inner
        self._hook = hook

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        return self._inner.seek(offset, whence)

    def tell(self) -> int:
        return self._inner.tell()

    def read(self, size: int | None = -1, /) -> bytes:
        return self._hook(self._inner, -1 if size is None else size)

    def readall(self) -> bytes:
        return self._hook(self._inner, -1)

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        view = memoryview(buffer).cast("B")
        data = self._hook(self._inner, len(view))
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._inner.close()
        super().close()


def read_through(inner: BinaryIO, hook: ReadHook) -> BinaryIO:
    """A reader that reads by `hook(inner, size)` and is otherwise `inner`; closing it closes `inner`."""
    return cast(BinaryIO, _ReadThrough(inner, hook))
