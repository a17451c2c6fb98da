"""Work on collections as Spark jobs."""
