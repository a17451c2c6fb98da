"""SQL statements: which tables a text names, and what of them it needs. Pure: texts in, texts out."""
