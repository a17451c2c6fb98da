"""Keys by themselves: hashes, filters, sets and ranges of them."""
