"""The envelope of messages of Maxwell's daemon.

Owns their options; `tidelake.cdc.dialects.maxwell` owns what they mean.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from tidelake.cdc.dialects.dialect import Dialect
from tidelake.cdc.dialects.maxwell import MaxwellDialect
from tidelake.spark.envelopes.dialectmessages import ToolMessages


@dataclass(frozen=True)
class Maxwell(ToolMessages):
    """Each row is a message of Maxwell's daemon, which reads MySQL's binlog.

    Attributes:
        time: path of the time in a message. Default: `ts` (seconds) for clocks; for counters `position`, the
            number of the log's file times 2^32, plus the position in it (needs `output_binlog_position`).
    """

    dialect: ClassVar[type[Dialect]] = MaxwellDialect
    defaults: ClassVar[Mapping[str, str]] = MappingProxyType({"counter": "position", "us": "ts", "ms": "ts"})
    positions: ClassVar[frozenset[str]] = frozenset({"position", "xid", "xoffset", "gtid"})

    def no_time(self) -> str:
        """As `ToolMessages`."""
        return "take a collection of time 'ms', or 'counter'"
