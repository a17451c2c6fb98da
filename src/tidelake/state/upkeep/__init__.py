"""Merges and bases: who makes which, and how results are put in place."""
