"""DataFrames into collections: what is uploaded by workers, and how it is committed."""
