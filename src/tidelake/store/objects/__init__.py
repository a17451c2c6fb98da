"""Stores on an object store: objects, and the version log that lies beside them."""
