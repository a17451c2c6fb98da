"""Which batches are merged, when, by whom, and how much memory and disk that may take."""
