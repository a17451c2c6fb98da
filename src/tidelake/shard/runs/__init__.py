"""Runs as rows: what is read of them, what is written, and a task for both in any process."""
