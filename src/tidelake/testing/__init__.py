"""Building blocks for tests of Tidelake, ours and yours: an oracle, strategies, and tables of their rows.

May import the lake and the layers below it, neither Spark nor the command line. The product imports nothing
from here.
"""
