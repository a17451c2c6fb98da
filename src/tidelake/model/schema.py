"""The schema of a collection: typed columns, some of them the key.

Types are described here without Arrow, so that the pure state can compare and evolve them;
`tidelake.data.kernel.types` maps them to Arrow and back.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter

from tidelake.errors import UsageError

DIFF = "_diff"
_RESERVED = re.compile(r"_diff|_time(_\d+)?|_tidelake.*")


@dataclass(frozen=True)
class DataType:
    """A column's type: Arrow's name for it, its parameters, and its children.

    Attributes:
        name: as Arrow spells it: `int64`, `string`, `decimal128`, `timestamp`, `list`, `struct`, ...
        params: precision and scale, unit and zone, byte width; empty for most.
        children: fields of a struct, or the one item field of a list.
    """

    name: str
    params: tuple[int | str, ...] = ()
    children: tuple["Field", ...] = ()

    @property
    def nested(self) -> bool:
        """Whether it is a struct or list."""
        return bool(self.children) or self.name == "struct"

    def __str__(self) -> str:
        if self.children:
            return f"{self.name}<{', '.join(f'{c.name}: {c.type}' for c in self.children)}>"
        return f"{self.name}[{', '.join(map(str, self.params))}]" if self.params else self.name


@dataclass(frozen=True)
class Field:
    """A field of a nested type."""

    name: str
    type: DataType
    nullable: bool = True


_HASHED = attrgetter("id", "name")


@dataclass(frozen=True)
class Column:
    """A column: `id` (never used again), `name` (may be used again), `type`, and whether it is `nullable`."""

    id: int
    name: str
    type: DataType
    nullable: bool = True

    def __hash__(self) -> int:
        # Of what tells columns apart: caches ask for it for every part that is read.
        return hash(_HASHED(self))

    def __str__(self) -> str:
        return f"{self.name}: {self.type}{'' if self.nullable else ' not null'}"


@dataclass(frozen=True)
class Schema:
    """The columns of the `key` (at least one) and of the `value` (any number), in order."""

    key: tuple[Column, ...]
    value: tuple[Column, ...] = ()

    def __post_init__(self) -> None:
        if not self.key:
            raise UsageError("a collection needs at least one key column: name it in key=[...]")
        names: set[str] = set()
        for name in (c.name for c in self.columns):
            if not name:
                raise UsageError("a column needs a name")
            if _RESERVED.fullmatch(name):
                raise UsageError(f"column name {name!r} is reserved: rename it")
            if name in names:
                raise UsageError(f"column {name!r} appears twice: rename one of them")
            names.add(name)
        for column in self.key:
            if column.type.nested:
                raise UsageError(
                    f"key column {column.name!r} is a {column.type}: keys cannot be nested; make it a value"
                )

    def __hash__(self) -> int:
        return hash(tuple(map(_HASHED, self.columns)))

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """Key columns, then value columns."""
        return self.key + self.value

    def __str__(self) -> str:
        return f"key({', '.join(map(str, self.key))}) value({', '.join(map(str, self.value))})"

    def same_columns(self, other: "Schema") -> bool:
        """Whether both have the same keys and values by name, type and nullability, in order."""

        def shape(columns: tuple[Column, ...]) -> list[tuple[str, DataType, bool]]:
            return [(c.name, c.type, c.nullable) for c in columns]

        return shape(self.key) == shape(other.key) and shape(self.value) == shape(other.value)


@dataclass(frozen=True)
class SchemaVersion:
    """A schema that was registered.

    Attributes:
        schema: the columns.
        seqno: of the state that registered it; all later states have it.
        renamed: columns that have another name than in the schema before: that name, and the one here.
    """

    schema: Schema
    seqno: int
    renamed: tuple[tuple[str, str], ...] = ()
