"""Messages in other bytes than JSON texts of Debezium: schema registries, and flattened events."""
