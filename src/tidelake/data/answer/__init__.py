"""What goes out: answers as streams, tables, frames and texts."""
