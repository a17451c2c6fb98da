"""Answers out, and the holds of those who ask."""
