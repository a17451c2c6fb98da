"""Run by an environment with DuckDB and its extensions: compares tables, which a file of JSON lists."""

import importlib
import json
import sys
from pathlib import Path

import duckdb


def main() -> None:
    """Print the differences of each table, as JSON."""
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    for name in ("parquet", "avro", "httpfs", "delta", "iceberg"):
        (folder,) = importlib.import_module(f"duckdb_extension_{name}").__path__
        (file,) = Path(folder).rglob("*.duckdb_extension")
        connection.execute(f"LOAD '{file}'")
    found = []
    for one in json.loads(Path(sys.argv[1]).read_text()):
        if one["format"] == "delta":
            version = "" if one["newest"] else f", version = {one['version']}"
            source = f"delta_scan('{one['table']}'{version})"
        else:
            place = one["table"] if one["newest"] else one["metadata"]
            source = f"iceberg_scan('{place.removeprefix('file://')}')"
        wanted = f"'{one['wanted']}'"
        differ = [
            connection.sql(f"SELECT count(*) FROM (FROM {a} EXCEPT ALL FROM {b})").fetchone()[0]
            for a, b in ((source, wanted), (wanted, source))
        ]
        names = [row[0] for row in connection.sql(f"DESCRIBE FROM {source}").fetchall()]
        found.append([*differ, names])
    sys.stdout.write(json.dumps(found))


main()
