"""What writes tell of themselves in numbers, and how the numbers of several are summed."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, Self

from tidelake.model.frozen import with_fields


@dataclass(frozen=True, kw_only=True)
class Removals:
    """What removals of rows did. Answers and reports of writes have these numbers, and others of their own.

    Attributes:
        removed: rows that went because their removal was asked for: by a delete or the `delete_column` of an
            upsert, as far as old rows were looked up.
        absent: removals of keys that had no row, likewise.
    """

    removed: int = 0
    absent: int = 0

    def counts(self) -> dict[str, Any]:
        """The numbers alone, by name."""
        return dict(zip(_NAMES, _NUMBERS(self), strict=True))

    def plus(self, *others: "Removals") -> Self:
        """The same answer with the numbers of others added, as far as it has these numbers."""
        sums = self.counts()
        for other in others:
            for name, more in other.counts().items():
                if name in sums and more:
                    sums[name] = added(sums[name], more)
        return with_fields(self, **sums)


_NAMES = [one.name for one in fields(Removals)]
_NUMBERS = attrgetter(*_NAMES)


def added(a: Any, b: Any) -> Any:
    """The sum of two numbers, two lists, or two numbers for each name."""
    if isinstance(a, Mapping):
        return {name: a.get(name, 0) + b.get(name, 0) for name in {**a, **b}}
    return a + b
