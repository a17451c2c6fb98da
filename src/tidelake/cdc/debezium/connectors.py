"""The connectors of Debezium: which fields have positions, and what these tell."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa


@dataclass(frozen=True)
class Connector:
    """What Tidelake knows of a connector.

    Attributes:
        fields: those of `source` with positions.
        remedy: why an event has no position, and what to do.
        gives_before: it gives the position of the commit before a transaction, and not that of its own.
        has_own: an event has a position of its own, and not only that of its transaction.
        has_alike: events may be alike without being the same.
        creates_once: it tells once that a row is created, but for what is known to come again. SQL Server's
            and MongoDB's read rows for a first copy whose creation they tell of afterwards; of Oracle's not
            all repeats are known.
        swaps: rows may swap their keys within a transaction.
    """

    fields: Mapping[str, pa.DataType] = field(default_factory=dict)
    remedy: str = ""
    gives_before: bool = False
    has_own: bool = True
    has_alike: bool = False
    creates_once: bool = False
    swaps: bool = False


_TEXT, _NUMBER = pa.string(), pa.int64()
_MYSQL = Connector(
    {"file": _TEXT, "pos": _NUMBER, "gtid": _TEXT},
    "no 'source.gtid' and no 'transaction.id': set gtid_mode=ON at the source, or "
    "provide.transaction.metadata=true of the connector; or name the time that events have, such as "
    "time='source.ts_ms'",
    creates_once=True,
    swaps=True,
)
CONNECTORS = {
    "postgresql": Connector(
        {"sequence": _TEXT, "lsn": _NUMBER},
        "no commit position in 'source.sequence': Debezium has it since 1.4",
        gives_before=True,
        creates_once=True,
        swaps=True,
    ),
    "mysql": _MYSQL,
    "mariadb": _MYSQL,
    "sqlserver": Connector({"commit_lsn": _TEXT}, "no 'source.commit_lsn'", has_own=False),
    "oracle": Connector(
        {"commit_scn": _TEXT, "scn": _TEXT},
        "no 'source.commit_scn'",
        has_own=False,
        has_alike=True,
        swaps=True,
    ),
    "mongodb": Connector({"ord": _NUMBER}, "no 'source.ts_ms' and 'source.ord'"),
}
_NONE = Connector()


def connector_of(name: str) -> Connector:
    """A connector, by its name; of any other name, one without positions."""
    return CONNECTORS.get(name, _NONE)
