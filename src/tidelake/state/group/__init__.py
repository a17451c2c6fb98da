"""Collections whose times are closed together, and how a group decides for them."""
