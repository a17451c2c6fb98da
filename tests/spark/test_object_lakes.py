"""Spark on a lake in an object store: executors find the store by a provider, and no secret is anywhere."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.store.servers import S3Server
from tied_process import tied

pytestmark = [pytest.mark.spark, pytest.mark.full]

DRIVER = """
import sys
import pyarrow as pa
import tidelake
import tidelake.spark as ts
from tests.spark import quick

url, logs = sys.argv[1:]
spark = quick.session(**{
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",  # what is looked for would not be found
    "spark.eventLog.dir": f"file://{logs}",
    "spark.tidelake.driverBytesMax": "0",
})
lake = tidelake.open(url, store_options="providing:options")
items = lake.create("items", pa.schema([("item", pa.string()), ("count", pa.int64())]), key=["item"])
rows = spark.range(20_000).selectExpr("cast(id as string) item", "id count", "3L _time", "1L _diff")
ts.write(items, rows, "updates", upper=5)
named = spark.read.format("tidelake").option("storeOptions", "providing:options")
read = named.option("collection", "items").load(url)
read.explain(True)
assert read.where("count < 10").count() == 10
assert ts.snapshot(spark, items).count() == 20_000
more = spark.range(5).selectExpr("cast(id as string) item", "id + 1 count", "5L _time", "1L _diff")
more.write.format("tidelake").option("storeOptions", "providing:options").mode("append").save(f"{url}/items")
items.merge()
try:
    spark.read.format("tidelake").option("secret_access_key", "whatever").load(f"{url}/items").count()
except Exception as error:
    print("refused:", error)
print(repr(lake), repr(items.distributed.uploader()))
by_path = spark.read.format("tidelake").option("storeOptions", "providing:options").load(f"{url}/items")
print("rows", by_path.count())
lake.close()
spark.stop()
"""


def test_spark_reaches_an_object_store_and_shows_no_secret(s3_server: S3Server, tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    options = {name: value for name, value in s3_server.options().items() if name != "secret_access_key"}
    (tmp_path / "providing.py").write_text(
        f"import os\ndef options(): return {{**{options!r}, 'secret_access_key': os.environ['HERE']}}\n"
    )
    (tmp_path / "logs").mkdir()
    (tmp_path / "work").mkdir()
    url = f"s3://{s3_server.new_bucket()}/lake of Spark"
    environment = {**os.environ, "HERE": s3_server.secret_key}
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(tmp_path), str(Path(__file__).parents[2]), *filter(None, [environment.get("PYTHONPATH")])]
    )
    done = subprocess.run(
        tied(sys.executable, "-c", DRIVER, url, tmp_path / "logs"),
        capture_output=True, text=True, env=environment, cwd=tmp_path / "work", timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-6_000:]
    assert "rows 20005" in done.stdout
    logs = b"".join(path.read_bytes() for path in (tmp_path / "logs").rglob("*") if path.is_file())
    assert len(logs) > 10_000
    assert s3_server.secret_key.encode() not in logs
    assert s3_server.secret_key not in done.stdout + done.stderr
