#!/usr/bin/env bash
# Prints options with which Spark's JVM finds its classes as it once read them: a session starts in half the
# processor time. Makes that archive if there is none for this Java and this PySpark. Another JVM ignores it.
set -euo pipefail
cd "$(dirname "$0")/.."

JAVA_HOME="${JAVA_HOME:-$(setup/java.sh)}" && export JAVA_HOME
archive="$(cd .venv && pwd -P)/spark-classes.jsa"
stamp="$archive.stamp"
wanted="$("$JAVA_HOME/bin/java" -version 2>&1; .venv/bin/python -c 'import pyspark; print(pyspark.__file__, pyspark.__version__)')"
quiet="-Xlog:disable -Xlog:all=error:stderr"

make_archive() {
  local place
  place="$(mktemp -d)"
  SPARK_SUBMIT_OPTS="-XX:ArchiveClassesAtExit=$archive.part $quiet" .venv/bin/python - "$place" <<'PYTHON'
import sys

from tidelake.spark import local_session

place = sys.argv[1]
conf = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1", "spark.ui.enabled": "false"}
with local_session("classes", 2, **conf) as spark:
    java = spark.sparkContext._gateway.proc
    rows = spark.range(10).selectExpr("id", "id % 3 AS k", "CAST(id AS string) AS s")
    rows.write.parquet(f"{place}/rows")
    there = spark.read.parquet(f"{place}/rows").join(rows, "id", "left").groupBy(rows.k).count()
    there.mapInArrow(lambda batches: batches, there.schema).orderBy("k").collect()
    stream = spark.readStream.schema(rows.schema).parquet(f"{place}/rows").writeStream
    stream = stream.foreachBatch(lambda frame, _: frame.count() and None).trigger(availableNow=True)
    stream.option("checkpointLocation", f"{place}/checkpoint").start().awaitTermination()
# It writes the archive as it ends.
java.stdin.close()
java.wait()
PYTHON
  rm -rf "$place"
  mv -f "$archive.part" "$archive" && printf '%s' "$wanted" >"$stamp"
}

if [ ! -f "$archive" ] || [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
  # Without it all is only slower.
  make_archive >/dev/null 2>&1 || { rm -f "$archive" "$archive.part"; exit 0; }
fi
printf '%s\n' "-XX:SharedArchiveFile=$archive $quiet"
