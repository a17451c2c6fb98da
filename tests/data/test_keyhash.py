"""Hashes of keys are the same however many keys there are, and a long key costs no call a byte."""

import random
import sys

import pyarrow as pa
import pytest

from tidelake.data.keys.keyhash import hash_encoded


@pytest.mark.parametrize("size", [0, 7, 8, 255, 256, 257, 264, 1000, 5000])
def test_a_key_has_the_same_hash_alone_and_among_many(size):
    rng = random.Random(size)
    keys = [rng.randbytes(max(0, size + rng.randrange(-2, 3))) for _ in range(80)]
    together = hash_encoded(pa.array(keys, pa.binary()))
    alone = [int(hash_encoded(pa.array([key], pa.binary()))[0]) for key in keys]
    assert together.tolist() == alone
    assert hash_encoded(pa.array(keys, pa.binary()).slice(40, 9)).tolist() == alone[40:49]


@pytest.mark.promise("A long key costs no Python call for each of its bytes", rule="`data/keys/keyhash.py`")
def test_a_long_key_costs_few_calls():
    calls = 0

    def count(_frame, event, _value):
        nonlocal calls
        calls += event.endswith("call")

    keys = pa.array([b"short", b"x" * 1_000_000], pa.binary())
    sys.setprofile(count)
    try:
        hash_encoded(keys)
    finally:
        sys.setprofile(None)
    assert calls < 5_000
