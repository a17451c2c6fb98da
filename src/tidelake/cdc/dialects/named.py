"""The dialects of other tools by their names, as users write them."""

from collections.abc import Mapping
from types import MappingProxyType

from tidelake.cdc.dialects.canal import CanalDialect
from tidelake.cdc.dialects.dialect import Dialect
from tidelake.cdc.dialects.dms import DmsDialect
from tidelake.cdc.dialects.dynamodb import DynamoDbDialect
from tidelake.cdc.dialects.goldengate import GoldenGateDialect
from tidelake.cdc.dialects.maxwell import MaxwellDialect
from tidelake.cdc.dialects.ticdc import TicdcDialect
from tidelake.cdc.dialects.wal2json import Wal2JsonDialect

DIALECTS: Mapping[str, type[Dialect]] = MappingProxyType(
    {
        "canal": CanalDialect,
        "dms": DmsDialect,
        "dynamodb": DynamoDbDialect,
        "goldengate": GoldenGateDialect,
        "maxwell": MaxwellDialect,
        "ticdc": TicdcDialect,
        "wal2json": Wal2JsonDialect,
    }
)
