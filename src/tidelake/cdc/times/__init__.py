"""Positions in the logs of sources, and the times of the transactions there."""
