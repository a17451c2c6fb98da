"""Delta Lake, with its change data feed; with deletion vectors and without."""

from typing import Any

from bench.peers.spark import contract


class Delta(contract.Peer):
    """A folder for each table; a merge rewrites the files that it changes."""

    jars = "spark-delta"
    vectors = False

    @classmethod
    def conf(cls, folder: str) -> dict[str, str]:
        return {
            **super().conf(folder),
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            # Its log is read by 50 tasks otherwise, which is made for clusters.
            "spark.databricks.delta.snapshotPartitions": "2",
        }

    def create(self, table: str) -> None:
        self.sql(
            f"CREATE TABLE {self.named(table)} ({contract.SCHEMA}) USING delta TBLPROPERTIES ("
            "'delta.enableChangeDataFeed' = 'true', "
            f"'delta.enableDeletionVectors' = '{str(self.vectors).lower()}')"
        )

    def append(self, table: str, rows: Any) -> None:
        rows.write.format("delta").mode("append").save(self.path(table))

    def rest(self, table: str) -> None:
        self.sql(f"OPTIMIZE {self.named(table)}")

    def version(self, table: str) -> Any:
        return self.sql(f"DESCRIBE HISTORY {self.named(table)} LIMIT 1").first().version

    def read(self, table: str) -> Any:
        return self._read().load(self.path(table))

    def read_at(self, table: str, version: Any) -> Any:
        return self._read(versionAsOf=version).load(self.path(table))

    def changes(self, table: str, after: Any, through: Any) -> Any:
        asked = {"readChangeFeed": "true", "startingVersion": after + 1, "endingVersion": through}
        added = "_change_type IN ('insert', 'update_postimage')"
        feed = self._read(**asked).load(self.path(table))
        return contract.netted(feed.selectExpr(*contract.COLUMNS, f"IF({added}, 1, -1) AS diff"))

    def append_stream(self, table: str, rows: Any) -> Any:
        return rows.writeStream.format("delta").option("path", self.path(table))

    def named(self, table: str) -> str:
        return f"delta.`{self.path(table)}`"

    def _read(self, **options: Any) -> Any:
        return self.spark.read.format("delta").options(**options)


class DeltaVectors(Delta):
    """A merge marks the rows that it replaces in deletion vectors."""

    vectors = True
