"""Writes that are known by a token: run again, they are in once.

Owns how a token becomes a named writer: one of its own, which writes number 0 and no other. So the token
and the data are in one compare-and-set, and two processes with the same token fence each other.
"""

from dataclasses import dataclass

from tidelake.errors import UsageError
from tidelake.lake.collection import Collection
from tidelake.lake.names import check_name
from tidelake.spark.writing.commit import Numbered
from tidelake.state.append import Appended

PREFIX = "token:"
_BYTES_MAX = 255 - len(PREFIX)


@dataclass(frozen=True)
class TokenWriter:
    """One write under one token.

    Attributes:
        collection: to write to.
        token: any text of at most 249 bytes.
    """

    collection: Collection
    token: str

    def __post_init__(self) -> None:
        check_token(self.token)

    def done(self) -> Appended | None:
        """The answer to a write that is in; None if it is not. One log scan."""
        record = self.collection.state().writers.get(PREFIX + self.token)
        if record is None or record.sequence is None:
            return None
        return Appended(record.upper, record.upper, already=True)

    def open(self) -> Numbered:
        """The number to write under; fences whoever is writing under this token. One log write."""
        return Numbered(self.collection.writer(PREFIX + self.token), 0)


def check_token(token: str) -> None:
    """Refuse what no writer can be named after.

    Raises:
        UsageError: it is empty, too long or has control characters.
    """
    check_name(token, "token")
    size = len(token.encode())
    if size > _BYTES_MAX:
        raise UsageError(f"token {token[:20]!r}... has {size} bytes: use at most {_BYTES_MAX}")
