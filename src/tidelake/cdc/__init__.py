"""Change feeds of databases: what their lines say. Nothing here knows Spark, nor how updates are stored."""

from tidelake.cdc.reading import ChangeEvent, read

__all__ = ["ChangeEvent", "read"]
