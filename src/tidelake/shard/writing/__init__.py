"""Appends, stages, upserts, batches and builders."""
