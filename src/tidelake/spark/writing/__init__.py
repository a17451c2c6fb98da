"""Writing DataFrames to collections: workers upload, and the driver commits."""
