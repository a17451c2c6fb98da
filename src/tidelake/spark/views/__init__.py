"""Views that Spark computes: its SQL as an engine of `tidelake.views`."""
