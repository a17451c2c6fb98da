"""Tidelake on Spark beside Delta Lake and Iceberg."""
