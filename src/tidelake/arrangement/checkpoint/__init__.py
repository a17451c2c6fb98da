"""Arrangements on disk: what a checkpoint holds, in which order it is written, whose directory it is."""
