"""Reads of collections as DataFrames."""
