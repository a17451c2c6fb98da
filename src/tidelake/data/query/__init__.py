"""What a read asks of columns: conditions, and what they exclude."""
