"""What look-ups, ranges and cursors see of batches: filters, folded times, snapshots."""
