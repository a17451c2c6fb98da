"""What keeps a whole lake in order: checks and repairs, copies to other lakes, settings, history."""
