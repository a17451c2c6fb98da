"""Iceberg, merge on read: format version 3, so deletion vectors."""

from typing import Any

from bench.peers.spark import contract

_MODES = ("write.merge.mode", "write.update.mode", "write.delete.mode")


class Iceberg(contract.Peer):
    """A catalog in a folder.

    Its changelog cannot be read over merges on read ("Delete files are currently not supported in changelog
    scans"), so both versions are read and compared, as a user would have to.
    """

    jars = "spark-iceberg"

    @classmethod
    def conf(cls, folder: str) -> dict[str, str]:
        catalog = "spark.sql.catalog.peers"
        return {
            **super().conf(folder),
            "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
            catalog: "org.apache.iceberg.spark.SparkCatalog",
            f"{catalog}.type": "hadoop",
            f"{catalog}.warehouse": folder,
            # A stream has a session of its own: its commits are not seen through what another one keeps.
            f"{catalog}.cache-enabled": "false",
        }

    def create(self, table: str) -> None:
        modes = "".join(f", '{mode}' = 'merge-on-read'" for mode in _MODES)
        self.sql(
            f"CREATE TABLE {self.named(table)} ({contract.SCHEMA}) USING iceberg "
            f"TBLPROPERTIES ('format-version' = '3'{modes})"
        )

    def append(self, table: str, rows: Any) -> None:
        rows.writeTo(self.named(table)).append()

    def rest(self, table: str) -> None:
        options = "map('delete-file-threshold', '1', 'min-input-files', '2')"
        self.sql(f"CALL peers.system.rewrite_data_files(table => 'db.{table}', options => {options})")

    def version(self, table: str) -> Any:
        snapshots = f"SELECT snapshot_id FROM {self.named(table)}.refs WHERE name = 'main'"
        return self.sql(snapshots).first().snapshot_id

    def read(self, table: str) -> Any:
        return self.spark.table(self.named(table))

    def read_at(self, table: str, version: Any) -> Any:
        return self.sql(f"SELECT * FROM {self.named(table)} VERSION AS OF {version}")

    def changes(self, table: str, after: Any, through: Any) -> Any:
        gone, come = (
            self.read_at(table, version).selectExpr(*contract.COLUMNS, f"{diff}L AS diff")
            for version, diff in ((after, -1), (through, 1))
        )
        return contract.netted(gone.unionAll(come))

    def append_stream(self, table: str, rows: Any) -> Any:
        return rows.writeStream.format("iceberg").option("path", self.named(table))

    def named(self, table: str) -> str:
        return f"peers.db.{table}"
