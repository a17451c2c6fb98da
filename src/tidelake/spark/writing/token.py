"""Writes that are known by a token: run again, they are in once.

What a token is, is `tidelake.lake.tokens`.
"""

from dataclasses import dataclass

from tidelake.lake.collection import Collection
from tidelake.lake.tokens import writer_of
from tidelake.spark.writing.commit import Numbered
from tidelake.state.append import Appended


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
        writer_of(self.token)

    def done(self) -> Appended | None:
        """The answer to a write that is in; None if it is not. One log scan."""
        record = self.collection.token_record(self.token)
        return None if record is None else Appended(record.upper, record.upper, already=True)

    def open(self) -> Numbered:
        """The number to write under; fences whoever is writing under this token. One log write."""
        return Numbered(self.collection.writer(writer_of(self.token)), 0)
