"""The envelope of messages of Canal, and of TiCDC in Canal's form (`canal-json`).

Owns their options; `tidelake.cdc.dialects.canal` owns what they mean.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from tidelake.cdc.dialects.canal import CanalDialect
from tidelake.cdc.dialects.dialect import Dialect
from tidelake.spark.envelopes.dialectmessages import ToolMessages


@dataclass(frozen=True)
class Canal(ToolMessages):
    """Each row is a message of Canal, which reads MySQL's binlog, in its flat JSON form.

    Attributes:
        time: path of the time in a message. Default: `es` (milliseconds, of the statement) for clocks; for
            counters it must be given, such as `_tidb.commitTs` for TiCDC.
    """

    dialect: ClassVar[type[Dialect]] = CanalDialect
    defaults: ClassVar[Mapping[str, str]] = MappingProxyType({"us": "es", "ms": "es"})
    positions: ClassVar[frozenset[str]] = frozenset({"id", "gtid", "_tidb.commitTs"})

    def no_time(self) -> str:
        """As `ToolMessages`."""
        return "give time='_tidb.commitTs' if TiCDC writes them, or take a collection of time 'ms'"
