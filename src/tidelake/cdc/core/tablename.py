"""Names of tables: what tells one table of a source from all others, and how people write it.

A table is told apart by all parts of its name. A text of them quotes a part that has a dot or a quote in it
(`shop."a.b".c`), so that two tables never have one text.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from tidelake.errors import UsageError

# A text that quotes nothing: escaped parts, and what stands between them.
SEPARATOR, ESCAPE = "\x1f", "%"
_PART = re.compile(r'"((?:[^"]|"")*)"|([^".]*)')


def quoted_name(parts: Sequence[str]) -> str:
    """The text of some parts of a name; `name_parts` reads it."""
    return ".".join(
        '"{}"'.format(part.replace('"', '""')) if not part or re.search(r'[."]', part) else part
        for part in parts
    )


def name_parts(text: str) -> tuple[str, ...]:
    """The parts of a text such as `shop.orders` or `shop."a.b"`."""
    parts, at = [], 0
    while True:
        found = _PART.match(text, at)
        if found is None or text[found.end() : found.end() + 1] not in ("", "."):
            raise UsageError(
                f'{text!r} is no name of a table: write shop.orders, or shop."a.b" for a part with a dot'
            )
        parts.append(found[2] if found[1] is None else found[1].replace('""', '"'))
        at = found.end() + 1
        if at > len(text):
            return tuple(parts)


class Table(NamedTuple):
    """The name of a table at the source; parts that the source does not have are empty."""

    db: str
    schema: str
    name: str

    @classmethod
    def of(cls, text: str) -> "Table":
        """The table of a text of `joined` or `routes.tables_of`."""
        db, schema, name = (
            part.replace(f"{ESCAPE}s", SEPARATOR).replace(f"{ESCAPE}e", ESCAPE)
            for part in text.split(SEPARATOR)
        )
        return cls(db, schema, name)

    @property
    def joined(self) -> str:
        """A text of its own for each table, for machines."""
        return SEPARATOR.join(
            part.replace(ESCAPE, f"{ESCAPE}e").replace(SEPARATOR, f"{ESCAPE}s") for part in self
        )

    @property
    def spellings(self) -> tuple[str, ...]:
        """How users may write it: in full, and without the database if it has a schema."""
        return str(self), quoted_name(self._short)

    @property
    def short(self) -> str:
        """`schema.table`, or `db.table` if the source has no schemas, without quotes: tables may share it."""
        return ".".join(self._short)

    @property
    def _short(self) -> tuple[str, ...]:
        where = self.schema or self.db
        return (where, self.name) if where else (self.name,)

    def __str__(self) -> str:
        if self.schema:
            return quoted_name(self)
        return quoted_name((self.db, self.name) if self.db else (self.name,))
