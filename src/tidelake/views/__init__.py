"""Incremental views: a query whose answer is a collection, exact at every time.

Owns what a view is: its plan, the rules of its stages, its refresh and its life. Must not know Spark, the
command line or the page.
"""
