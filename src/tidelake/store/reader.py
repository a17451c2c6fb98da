"""A reader of one object that calls a hook for each read.

Owns the rest of the file interface (seek, tell, close). Must not know what the hook does.

INVARIANT: every byte is read through the hook.
"""

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, BinaryIO, cast

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

ReadHook = Callable[[BinaryIO, int], bytes]
"""Called with the inner reader and a size; reads up to `size` bytes from it, or all if `size` is negative."""


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
    """A reader that reads by `hook(inner, size)` and passes on the rest to `inner`, also `close`."""
    return cast(BinaryIO, _ReadThrough(inner, hook))
