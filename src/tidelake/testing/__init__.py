"""What tests of Tidelake, ours and yours, are made of: the oracle, strategies, faulty stores, a lossy disk.

May import anything below the lake. Nothing of the product imports it.
"""
