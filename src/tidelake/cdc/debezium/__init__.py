"""Debezium's events: one line exactly, many lines at once, schemas beside payloads, keys of messages."""
