"""What tests of Tidelake, ours and yours, are made of: the oracle, strategies, faulty stores, a lossy disk.

May import the lake and what is below, neither Spark nor the command line. Nothing of the product imports it.
"""
