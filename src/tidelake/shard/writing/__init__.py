"""Updates in: tables, and batches that were built before."""
