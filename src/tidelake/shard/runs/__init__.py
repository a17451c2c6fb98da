"""Reads and writes the rows of runs, in any process: a task carries all that this takes."""
