"""The dialects of other tools by their names, as users write them."""

from tidelake.cdc.dialects.canal import CANAL
from tidelake.cdc.dialects.dms import DMS
from tidelake.cdc.dialects.dynamodb import DYNAMODB
from tidelake.cdc.dialects.goldengate import GOLDENGATE
from tidelake.cdc.dialects.maxwell import MAXWELL
from tidelake.cdc.dialects.ticdc import TICDC
from tidelake.cdc.dialects.wal2json import WAL2JSON

DIALECTS = {
    **{"canal": CANAL, "dms": DMS, "dynamodb": DYNAMODB, "goldengate": GOLDENGATE, "maxwell": MAXWELL},
    **{"ticdc": TICDC, "wal2json": WAL2JSON},
}
