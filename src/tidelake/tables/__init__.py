"""Tables of Delta Lake and Iceberg without Spark: mirrors of collections, and collections with their history.

`mirror` makes a table with the contents or the changes of a collection, and later adds what has changed.
`publish` lets other engines read the stored parts of a collection as a table.
`import_history` makes the versions of a table times of a collection. Needs the extra `delta` or `iceberg`.
"""

from tidelake.tables.history import HistoryReport, import_history
from tidelake.tables.mirroring import MirrorReport, mirror
from tidelake.tables.publishing import PublishReport, publish, unpublish

__all__ = [
    "HistoryReport",
    "MirrorReport",
    "PublishReport",
    "import_history",
    "mirror",
    "publish",
    "unpublish",
]
