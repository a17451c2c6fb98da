"""What a refresh did, for those who asked for it and for `Lake.explain`."""

from dataclasses import dataclass, field

from tidelake.model.frontier import Frontier
from tidelake.tabletext import FieldsAsHtml


@dataclass(frozen=True)
class Refreshed(FieldsAsHtml):
    """What a refresh of one view did.

    Attributes:
        view: its name.
        lower: times from here on were computed.
        upper: the upper of the view now.
        already: there was nothing to do, or another refresh did it.
        rows: updates that were written.
        read: rows that were read, by the name of an input; where executors look up, those that are stored.
        stages: for each stage that had something to do its number, the rows read of it, its updates, and in
            which way the last of its rows were read or its groups computed.
        took_s: how long it took.
        waits_for: the inputs that are closed less far than others; the view cannot pass them.
        place: who had the rows, if the engine has a choice: the `driver` of Spark, or its `executors`.
    """

    view: str
    lower: Frontier
    upper: Frontier
    already: bool = False
    rows: int = 0
    read: dict[str, int] = field(default_factory=dict)
    stages: tuple[tuple[int, int, int, str], ...] = ()
    took_s: float = 0.0
    waits_for: tuple[str, ...] = ()
    place: str = ""
