"""The command line: `tidelake`. The top layer; may start Spark, which it imports lazily."""
