"""What the compiler asks of an engine: how it reads a text, its types, and how it computes sums."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from tidelake.views.functions import Linear
from tidelake.views.plan import Columns


class Analyzer(Protocol):
    """Knows types, and checks each stage of a plan over tables that are empty.

    Attributes:
        dialect: in which the parser reads and writes texts.
        title: what people call the engine.
        orders_by_selected: whether a name anywhere in ORDER BY means a selected column first; else only where
            it is all of a term.
        has_using_first: whether `*` of a join begins with the columns of its USING.
        has_group_of_nothing: whether of several grouping sets one without columns has a group over no rows.
    """

    dialect: Any
    title: str
    orders_by_selected: bool
    has_using_first: bool
    has_group_of_nothing: bool

    def read(self, text: str) -> Any:
        """The parser's tree of a user's query.

        Raises:
            UsageError: it is no query, or more than one; or it calls a function that no view may call.
        """
        ...

    def check_read(self, text: str, node: Any) -> None:
        """Check that the parser reads a text as the engine does.

        Raises:
            UsageError: it does not.
        """
        ...

    def answered(self, text: str) -> Columns:
        """The columns of the answer of a user's query.

        Raises:
            UsageError: the engine refuses it; has its reason.
        """
        ...

    def define(self, name: str, columns: Mapping[str, str]) -> None:
        """Make an empty table, in place of one of this name."""
        ...

    def described(self, sql: str) -> Columns:
        """The columns of the answer of a text of a stage; errors as `answered`."""
        ...

    def check_calls(self, sql: str) -> None:
        """Check that a text calls functions only whose results are the same each time.

        Raises:
            UsageError: names the function.
        """
        ...

    def linear(self, name: str, argument: str | None, type_: str, present: str) -> Linear | None:
        """An aggregate as accumulators; see `tidelake.views.functions`."""
        ...

    def of_rows(self, name: str, argument: str, type_: str, *, distinct: bool, present: str) -> str:
        """The text of an aggregate over the rows of a group, whatever their order."""
        ...

    def of_list(self, name: str, argument: str, type_: str, present: str) -> tuple[str, str] | None:
        """An aggregate that is rounded as its rows come: the text of a list, and over it (`{0}`) the result.

        None: it is no sum that is rounded.
        """
        ...

    def bucket(self, texts: Sequence[str], number: int) -> str:
        """A number of a row below a number, which spreads rows evenly."""
        ...

    def close(self) -> None:
        """Free what it holds."""
        ...
