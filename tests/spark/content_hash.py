"""Counts and hashes of rows in Spark SQL, made as the shared data sets' own were."""

from typing import Any

MODULUS = 2**128


def hashes(frame: Any, columns: list[str]) -> dict[int, tuple[int, str]]:
    """Version -> rows and content hash: the sum of the first 128 bits of each row's sha256, modulo 2^128.

    The frame has `_time`, the version, and `_diff`, which may be negative.
    """
    from pyspark.sql import functions as f

    # Spark's JSON of an array of strings is that of Python, byte by byte.
    digest = frame.select("_time", "_diff", f.sha2(f.to_json(f.array(*columns)), 256).alias("h"))
    words = [f.conv(f.substring("h", 1 + 8 * i, 8), 16, 10).cast("bigint") for i in range(4)]
    sums = [f.sum(word * f.col("_diff")).cast("decimal(38,0)").alias(f"w{i}") for i, word in enumerate(words)]
    found = {}
    for r in digest.groupBy("_time").agg(f.sum("_diff").alias("rows"), *sums).collect():
        total = sum(int(r[f"w{i}"]) << (96 - 32 * i) for i in range(4)) % MODULUS
        found[r._time] = (r.rows, f"{total:032x}")
    return found
