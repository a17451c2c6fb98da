"""Writes with a token (an idempotency key): repeated under the same token, they are committed once.

`tidelake.lake.arguments.tokens` defines tokens.
"""

from dataclasses import dataclass

from tidelake.feeds.commit import Numbered
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.writer import Writer
from tidelake.lake.arguments.tokens import writer_of
from tidelake.state.write.write import Appended


@dataclass(frozen=True)
class TokenWriter:
    """One write under one token.

    Attributes:
        collection: the collection to write to.
        token: any text of at most 249 bytes.
    """

    collection: Collection
    token: str

    def __post_init__(self) -> None:
        writer_of(self.token)

    def done(self) -> Appended | None:
        """The answer to a committed write under the token; None if there is none. One log scan."""
        record = self.collection.distributed.token_record(self.token)
        return None if record is None else Appended(record.upper, record.upper, already=True)

    def open(self) -> Numbered[Writer]:
        """The number to write under; fences other processes that write under this token. One log write."""
        return Numbered(self.collection.writer(writer_of(self.token)), 0)
