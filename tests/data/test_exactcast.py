"""A cast is exact, or refused: Arrow's own wraps decimals and rounds whole numbers."""

from decimal import Decimal, localcontext

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelake.data.kernel.exactcast import cast_exactly
from tiers import examples

_MAKERS = {pa.decimal32: 9, pa.decimal64: 18, pa.decimal128: 38, pa.decimal256: 76}


@st.composite
def _kinds(draw):
    make, most = draw(st.sampled_from(list(_MAKERS.items())))
    precision = draw(st.integers(1, most))
    return make(precision, draw(st.integers(0, precision)))


@pytest.mark.promise(
    "A number becomes the same number of another type, or is refused, also where Arrow's own cast "
    "wraps or rounds",
    rule="`data/kernel/exactcast.py`",
    also=["data/test_exactcast.py"],
)
@pytest.mark.grows
@settings(max_examples=examples(2_000))
@given(_kinds(), _kinds(), st.data())
def test_a_number_becomes_the_same_decimal_or_is_refused(source, target, data):
    digits = data.draw(st.integers(1, source.precision))
    whole = data.draw(st.integers(10 ** (digits - 1), 10**digits - 1)) * data.draw(st.sampled_from([1, -1]))
    with localcontext(prec=200):
        number = Decimal(whole).scaleb(-source.scale)
        if data.draw(st.booleans()):
            number = Decimal(int(number))
        if data.draw(st.booleans()) and abs(number) < 2**63:
            number, source = Decimal(int(number)), pa.int64()
        given_ = int(number) if source == pa.int64() else number
        fits = number == number.quantize(Decimal(1).scaleb(-target.scale))
        fits = fits and abs(number) < Decimal(10) ** (target.precision - target.scale)
        array = pa.array([given_, None], source)
        if not fits:
            with pytest.raises(pa.ArrowInvalid):
                cast_exactly(array, target)
            return
        assert cast_exactly(array, target).to_pylist() == [number, None]
        as_list = cast_exactly(pa.array([[given_, None], None], pa.list_(source)), pa.list_(target))
        assert as_list.to_pylist() == [[number, None], None]


@pytest.mark.parametrize("number", [2049, -2049, 100_000, 2**64 - 1])
def test_a_whole_number_that_float16_rounds_is_refused(number):
    kind = pa.uint64() if number > 2**63 else pa.int64()
    with pytest.raises(pa.ArrowInvalid, match="not exact as float16"):
        cast_exactly(pa.array([number], kind), pa.float16())
    assert cast_exactly(pa.array([2048, None]), pa.float16()).to_pylist() == [2048, None]


def test_nested_values_keep_their_shape():
    struct = pa.struct(
        [pa.field("a", pa.decimal128(5, 2), nullable=False), pa.field("b", pa.list_(pa.float16()))]
    )
    array = pa.array([{"a": 9, "b": [9]}, {"a": 1, "b": [1, None]}, None, {"a": 2, "b": None}]).slice(1)
    found = cast_exactly(array, struct)
    found.validate(full=True)
    assert found.to_pylist() == [{"a": Decimal(1), "b": [1, None]}, None, {"a": Decimal(2), "b": None}]
    fixed, plain = pa.list_(pa.int64(), 2), pa.list_(pa.decimal32(4, 1))
    values = [[9, 9], [1, 2], None, [3, None]]
    for source, target in ((fixed, plain), (pa.list_(pa.int64()), pa.list_(pa.decimal32(4, 1), 2))):
        assert cast_exactly(pa.array(values, source).slice(1), target).to_pylist() == values[1:]
    large = pa.array([[1], None], pa.large_list(pa.int64()))
    assert cast_exactly(large, plain).to_pylist() == [[1], None]
