"""Which columns of a DataFrame can be times. Must not know envelopes."""

from pyspark.sql import types as t

from tidelake.errors import InvalidUpdates
from tidelake.feeds import rows
from tidelake.lake.api.collection import Collection
from tidelake.timetext import is_clock


def check_time(frame: t.StructType, time: str, collection: Collection) -> None:
    """Check that a frame has the column that times are taken from."""
    found = [field.dataType for field in frame if field.name == time]
    if len(found) != 1:
        raise InvalidUpdates(
            f"the DataFrame has {len(found)} columns {time!r} to take times from: "
            f"it has {', '.join(map(repr, frame.names))}"
        )
    clock = is_clock(collection.domain.unit)
    if isinstance(found[0], t.IntegralType) or (clock and isinstance(found[0], t.TimestampType | t.DateType)):
        return
    wanted = "bigint, timestamp or date" if clock else "bigint"
    raise InvalidUpdates(
        f"column {time!r} is {found[0].simpleString()}, and times of this collection are {wanted}: cast it"
    )


# SUBTLE: workers of other versions know this class by its name here.
class TakeTime(rows.TimesFrom):
    """As its base."""
