"""The query of a view: SQL text in, a plan out.

Owns what DuckDB's SQL means as stages, and what is refused; must not know how a plan is carried out.
"""
