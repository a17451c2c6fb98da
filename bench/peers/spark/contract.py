"""What each peer on Spark is asked to do: one module a peer, whose classes have the methods of this one.

A table has the columns `id` (the key), `n`, `s` and `x`; see `bench.peers.workload`. Rows come as a
DataFrame, and answers are DataFrames that the worker evaluates: what is done before that counts.
"""

import os
from pathlib import Path
from typing import Any

SCHEMA = "id bigint, n bigint, s string, x double"
COLUMNS = ("id", "n", "s", "x")
ROOT = Path(__file__).parents[3]
JARS = ROOT / "build" / "peers"


class Peer:
    """A peer, on a folder of its own, in a session of its own. Versions are whatever it calls them, as JSON.

    Attributes:
        jars: the folder of its jars below `JARS`; empty: none.
    """

    jars = ""

    def __init__(self, spark: Any, folder: str) -> None:
        self.spark, self.folder = spark, folder

    @classmethod
    def conf(cls, _folder: str) -> dict[str, str]:
        """Settings of its session beside those that all have; its tables are in the folder."""
        return {"spark.jars": ",".join(map(str, sorted((JARS / cls.jars).glob("*.jar"))))}

    def create(self, table: str) -> None:
        """Make an empty table."""
        raise NotImplementedError

    def append(self, table: str, rows: Any) -> None:
        """Add rows whose keys are new."""
        raise NotImplementedError

    def upsert(self, table: str, rows: Any) -> None:
        """Replace the rows of these keys, and add those that are new."""
        rows.createOrReplaceTempView("fresh")
        self.sql(
            f"MERGE INTO {self.named(table)} t USING fresh s ON t.id = s.id "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
            rows.sparkSession,  # in a stream another one than ours
        )

    def rest(self, table: str) -> None:
        """Do the maintenance that the peer recommends; old versions stay readable."""
        raise NotImplementedError

    def version(self, table: str) -> Any:
        """The newest version."""
        raise NotImplementedError

    def read(self, table: str) -> Any:
        """All rows."""
        raise NotImplementedError

    def read_at(self, table: str, version: Any) -> Any:
        """All rows as of a version."""
        raise NotImplementedError

    def changes(self, table: str, after: Any, through: Any) -> Any:
        """What changed between two versions, netted: rows with a column `diff`, +1 or -1."""
        raise NotImplementedError

    def append_stream(self, table: str, rows: Any) -> Any:
        """The writer of a stream whose rows are added; the worker starts it."""
        raise NotImplementedError

    def upsert_stream(self, table: str, rows: Any) -> Any:
        """The writer of a stream of upserts."""

        def upserted(batch: Any, _: int) -> None:
            self.upsert(table, batch)

        return rows.writeStream.foreachBatch(upserted)

    def named(self, table: str) -> str:
        """What SQL calls the table."""
        raise NotImplementedError

    def sql(self, text: str, spark: Any = None) -> Any:
        """Have a session carry out a statement; default: ours."""
        return (spark or self.spark).sql(text)

    def path(self, table: str) -> str:
        """A place for a table."""
        return os.path.join(self.folder, table)


def netted(signed: Any) -> Any:
    """Rows with the sum of their `diff`, without those whose sum is zero: as a user nets a feed."""
    summed = signed.groupBy(*COLUMNS).agg({"diff": "sum"}).withColumnRenamed("sum(diff)", "diff")
    return summed.where("diff <> 0")
