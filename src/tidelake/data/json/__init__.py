"""JSON values as Arrow columns: exactly (`values`), and fast where that is surely the same (`block`)."""
