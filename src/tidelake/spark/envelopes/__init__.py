"""What the rows of a DataFrame mean: how they become updates."""
