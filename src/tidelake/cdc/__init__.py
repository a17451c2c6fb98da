"""Change feeds of databases: what their lines say. Nothing here knows Spark, nor how updates are stored."""
