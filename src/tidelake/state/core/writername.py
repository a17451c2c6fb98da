"""The names under which the records of writers are kept, and what they tell.

A state keeps the record of a writer under its name. A group also keeps those of the writers of its
collections: then the id of the collection stands before the name. Tokens are writers whose names begin with a
prefix. Owns these texts: nothing else puts them together or takes them apart.
"""

from typing import NamedTuple

PREFIX = "token:"
"""Names of tokens begin with this."""


class WriterName(NamedTuple):
    """A writer, as a state knows it.

    Attributes:
        member: id of that collection, if a group keeps the record for it.
    """

    name: str
    member: str = ""

    @classmethod
    def of_token(cls, token: str) -> "WriterName":
        """The writer that writes under a token."""
        return cls(PREFIX + token)

    @classmethod
    def of(cls, text: str) -> "WriterName":
        """Read `text` of a record in a group. Only tokens of the group itself have no member there."""
        member, _, name = text.partition(":")
        return cls(text) if text.startswith(PREFIX) or not name else cls(name, member)

    @property
    def text(self) -> str:
        """The name under which a state keeps the record."""
        return f"{self.member}:{self.name}" if self.member else self.name

    @property
    def is_token(self) -> bool:
        """Whether it may be a token; a writer of that name that writes several numbers is none."""
        return self.name.startswith(PREFIX)
