"""The version log in a PostgreSQL database. Its modules import psycopg: import them when they are needed."""
