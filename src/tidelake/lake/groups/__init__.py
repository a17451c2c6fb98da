"""Collections whose times are closed together, and the transactions that write several of them."""
