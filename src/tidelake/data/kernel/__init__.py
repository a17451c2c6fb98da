"""Arrow columns in the one total order: types, sorting, consolidation, merging."""
