"""What tests of Tidelake, ours and yours, are made of: the oracle, strategies, faulty stores, a lossy disk.

And the simulation, which puts all of them around the real code. May import the lake and what is below,
neither Spark nor the command line. Nothing of the product imports it.
"""
