"""Arrow arrays without pandas are those that pyarrow makes, and back."""

import numpy as np
import pyarrow as pa
import pytest

from tidelake.data.kernel.arrays import as_mask, binaries, from_numpy, null_mask, places, to_numpy

DTYPES = ("?", "i1", "u1", "i2", "i4", "i8", "u8", "f2", "f4", "f8")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 100])
def test_numbers_are_those_of_pyarrow(dtype: str, count: int) -> None:
    values = (np.arange(count) % 3).astype(dtype)
    null = np.arange(count) % 4 == 1
    for given in (values, values[::-1], values[1:]):
        assert from_numpy(given).equals(pa.array(given))
        made = from_numpy(given, null[: len(given)])
        made.validate(full=True)
        assert made.equals(pa.array(given, mask=null[: len(given)]))
        assert null_mask(made).tolist() == null[: len(given)].tolist()


@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_come_back_from_slices(dtype: str) -> None:
    values = (np.arange(50) % 3).astype(dtype)
    for start in (0, 1, 8, 13, 50):
        assert to_numpy(pa.array(values).slice(start)).tolist() == values[start:].tolist()


def test_a_mask_is_false_where_null() -> None:
    array = pa.array([True, None, False, None, True] * 5)
    for start in range(len(array) + 1):
        assert as_mask(array.slice(start)).tolist() == [v is True for v in array.slice(start).to_pylist()]
        assert null_mask(array.slice(start)).tolist() == [v is None for v in array.slice(start).to_pylist()]
    assert not as_mask(pa.nulls(9, pa.bool_())).any()


@pytest.mark.parametrize("values", [[], [b""], [b"a", b"", b"\x00\xff" * 50]])
def test_binaries(values: list[bytes]) -> None:
    made = binaries(values)
    made.validate(full=True)
    assert made.equals(pa.array(values, pa.binary()))


def test_places() -> None:
    assert places(0, 5).equals(pa.array([0, 5]))
