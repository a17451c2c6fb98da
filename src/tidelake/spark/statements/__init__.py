"""Statements of SQL, carried out by Spark: queries of collections, and changes in one commit."""
