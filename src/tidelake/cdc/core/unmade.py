"""A collection that is to be made when its first events are checked."""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from tidelake.data.kernel.types import row_schema, schema_from_arrow
from tidelake.model.time import TimeDomain


@dataclass(frozen=True)
class Unmade:
    """What a parser must know of a collection, before it is there.

    Attributes:
        name: its name.
        schema: key and value columns, in the order of a collection.
        key: names of the key columns.
        domain: what its times are.
    """

    name: str
    schema: pa.Schema
    key: tuple[str, ...]
    domain: TimeDomain

    @classmethod
    def of(cls, name: str, columns: pa.Schema, key: Sequence[str], domain: TimeDomain) -> "Unmade":
        """As `Lake.create` makes it. Errors as there."""
        return cls(name, row_schema(schema_from_arrow(columns, key)), tuple(key), domain)
