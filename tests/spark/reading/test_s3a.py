"""Snapshots of a lake in S3 that Spark scans by its own file system, with its own credentials."""

import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("obstore")

from kafka_broker import jars

from tests.store.servers import S3Server, versitygw
from tied_process import tied

pytestmark = [pytest.mark.spark, pytest.mark.full]

DRIVER = """
import os, sys
import pyarrow as pa
import tidelake
import tidelake.spark as ts
from tidelake.config import Config
from tidelake.errors import LeaseExpired
from tidelake.spark.reading import frames
from tests.spark import quick
from tests.spark.s3a_options import options

url, logs, endpoint, other = sys.argv[1:]
secret = options()["secret_access_key"]
OWN = {"fs.s3a.access.key": options()["access_key_id"], "fs.s3a.secret.key": secret}
spark = quick.session(**{
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",  # what is looked for would not be found
    "spark.eventLog.dir": f"file://{logs}",
    "spark.driver.extraClassPath": os.environ["JARS"],
    "spark.hadoop.fs.s3a.endpoint": endpoint,
    "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
    "spark.hadoop.fs.s3a.path.style.access": "true",
    # Nothing of the environment or of an instance.
    "spark.hadoop.fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
})
context = spark.sparkContext
context.setLogLevel("INFO")
frames._SMALL_ROWS = -1  # few rows go to the workers too
config = Config(part_target_bytes=1024, row_group_rows=8, inline_part_bytes=0, merge_budget_s=0.0)
lake = tidelake.open(url, config=config, store_options="tests.spark.s3a_options:options")
c = lake.create("c", pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.float64())]), key=["k"])
def rows(keys): return pa.table({"k": pa.array(keys), "v": [k / 4 for k in keys]})
c.append(rows(range(850)))
parts = [part for member in c.state().spine for part in member.batch.parts()]
assert len(parts) > 32, len(parts)
c.append(rows(range(845, 855)))
wanted = sorted(map(str, c.snapshot().read_all().to_pylist()))

def jobs(): return len(context.statusTracker().getJobIdsForGroup())
def session(**settings):
    made = spark.newSession()
    for name, value in settings.items():
        made.conf.set(name, value)
    return made
def plan_of(frame): return frame._jdf.queryExecution().toString()
def check(of, scans, why=""):
    frame = ts.snapshot(of, c)
    plan = plan_of(frame)
    print("PLAN", plan)
    assert ("FileScan parquet" in plan, why in plan) == (scans, True), plan
    assert "MapInArrow tidelake workers" in plan, plan
    assert sorted(str(row.asDict()) for row in frame.collect()) == wanted
    return frame

marker = url.replace("s3:", "s3a:") + "/tidelake.json"
cannot = f"tidelake workers, as Spark's JVM cannot read {marker}: "
check(spark, False, cannot)                                          # it has no credentials
check(session(**OWN | {"fs.s3a.secret.key": "wrong"}), False, cannot + "AccessDeniedException")
check(session(**OWN, **{"fs.s3a.endpoint": "http://127.0.0.1:9"}), False, cannot + "ConnectException")
check(session(**OWN, **{"fs.s3a.endpoint": other}), False, f"as another lake is at Spark's {marker}")
lacks = {"fs.s3a.impl": "org.example.Nothing"}
check(session(**OWN, **lacks), False, cannot + "its class path has no org.example.Nothing")

able = session(**OWN)
before = jobs()
check(able, True)
first = jobs() - before
# Decided once, whatever becomes of the settings.
able.conf.set("fs.s3a.secret.key", "wrong")
before = jobs()
check(able, True)
assert jobs() - before == first - 1, (first, jobs() - before)

# A part that is gone is an error, when it is planned and when it is read.
frame = ts.snapshot(able, c)
c._shard.stores.blobs.delete(parts[7].name)
try:
    frame.collect()
except Exception as error:
    assert parts[7].name.rpartition("/")[2] in str(error), error
else:
    raise AssertionError("fewer rows")
for name, value in context.getConf().getAll():
    assert secret not in value, name
lake.close()
spark.stop()
print("DONE")
"""


@pytest.mark.promise(
    "Spark scans a lake in an object store only if its JVM has read the marker of this lake; else "
    "the workers read, and the plan says why",
    rule="`spark/reading/jvm.py`",
)
@pytest.mark.promise("Spark gets no credential of `store_options`", rule="`spark/reading/jvm.py`")
def test_spark_scans_what_its_own_settings_reach_and_workers_read_the_rest(tmp_path: Path) -> None:
    found = jars("spark-s3a")
    if not found:
        pytest.skip("no jars of s3a on this machine; setup/servers.sh copies them")
    (tmp_path / "logs").mkdir()
    with versitygw() as server, versitygw() as other:
        bucket = server.new_bucket()
        _another_lake(other, bucket)
        url = f"s3://{bucket}/lake of x=1%20"
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("AWS_")},
            "PYTHONFAULTHANDLER": "1",
            "JARS": os.pathsep.join(map(str, found)),
            "S3_ENDPOINT": server.endpoint,
            "S3_ACCESS": server.access_key,
            "S3_HIDDEN": server.secret_key,
            "PYTHONPATH": os.pathsep.join(
                [str(Path(__file__).parents[3]), *filter(None, [os.environ.get("PYTHONPATH")])]
            ),
        }
        done = subprocess.run(
            tied(sys.executable, "-c", DRIVER, url, tmp_path / "logs", server.endpoint, other.endpoint),
            capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=900, check=False,
        )  # fmt: skip
    assert done.stdout.endswith("DONE\n"), done.stdout[-3_000:] + done.stderr[-6_000:]
    # Seen once: SIGABRT while Python ended, after all was done and Spark had stopped.
    assert done.returncode in (0, -signal.SIGABRT), done.stderr[-6_000:]
    if done.returncode:
        warnings.warn(f"the driver ended with {done.returncode}: {done.stderr[-6_000:]}", stacklevel=1)
    logs = b"".join(path.read_bytes() for path in (tmp_path / "logs").rglob("*") if path.is_file())
    assert b"FileScan parquet" in logs
    assert server.secret_key.encode() not in logs
    assert server.secret_key not in done.stdout + done.stderr


def _another_lake(server: S3Server, bucket: str) -> None:
    """A bucket of the same name on another server, with another lake at the same place."""
    import boto3

    client = boto3.client(
        "s3",
        endpoint_url=server.endpoint,
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
        region_name="us-east-1",
    )
    client.create_bucket(Bucket=bucket)
    client.put_object(Bucket=bucket, Key="lake of x=1%20/tidelake.json", Body=b'{"lake": "another"}')
    client.close()
