"""Small DataFrames that tests of writes begin with, and what another writer does meanwhile."""

from typing import Any

import pyarrow as pa

import tidelake
from tables import SCHEMA


def rows(spark: Any, *values: tuple[Any, ...], schema: str = "id bigint, v string") -> Any:
    """A frame of so many rows."""
    return spark.createDataFrame(list(values), schema)


def close(c: tidelake.Collection, upper: int) -> None:
    """Close times of a collection, and add nothing."""
    c.append(SCHEMA.empty_table().append_column("_time", pa.array([], pa.int64())), upper=upper)
