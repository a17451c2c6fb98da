"""The format `tidelake` of Spark: what `spark.read` and `df.write` call."""
