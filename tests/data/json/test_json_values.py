"""JSON values as columns: base64, decimals in bytes, encodings, and fields that are given twice."""

import base64 as reference
import decimal
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidelake.data.json.base64 import decoded, whole_numbers
from tidelake.data.json.encoding import Encoding, encoding
from tidelake.data.json.values import UnfitValue, column, loads
from tidelake.errors import UsageError

texts = st.one_of(
    st.none(),
    st.binary(max_size=9).map(lambda data: reference.b64encode(data).decode()),
    st.text("AQgwz+/=09\n-é", max_size=9),
)


@given(st.lists(texts, max_size=5))
@example(["AA=="])
@example(["=AAA"])
@example(["AA=A"])
def test_base64_is_decoded_as_the_standard_library_does(values: list[str | None]) -> None:
    try:
        expected = [None if v is None else reference.b64decode(v, validate=True) for v in values]
    except ValueError:
        expected = None
    found = decoded(pa.array(values, pa.string()))
    if found is not None:
        assert found.to_pylist() == expected
    elif expected is not None:
        # A text may be read one by one and not at once, but only an odd one.
        assert any(
            reference.b64encode(e).decode() != v
            for e, v in zip(expected, values, strict=True)
            if e is not None
        )


def as_bytes(number: int, pad: int = 0) -> bytes:
    return number.to_bytes(number.bit_length() // 8 + 1 + pad, "big", signed=True)


@given(st.lists(st.tuples(st.integers(-(10**30), 10**30), st.integers(0, 3)), max_size=5))
def test_decimals_in_bytes_are_read_at_once_as_one_by_one(numbers: list[tuple[int, int]]) -> None:
    kind = pa.decimal128(31, 4)
    data = [as_bytes(*number) for number in numbers] + [None]
    found = whole_numbers(pa.array(data, pa.binary()), kind)
    written = [None if d is None else reference.b64encode(d).decode() for d in data]
    one_by_one = column(written, kind, Encoding("bytes"))
    assert found is not None and found.equals(one_by_one)
    with decimal.localcontext(prec=60):
        assert one_by_one.to_pylist() == [Decimal(n).scaleb(-4) for n, _ in numbers] + [None]


@pytest.mark.parametrize("data", [b"", b"\x00" * 17, (10**6).to_bytes(4, "big")])
def test_bytes_that_are_no_decimal_of_the_column_are_not_read_at_once(data: bytes) -> None:
    assert whole_numbers(pa.array([data], pa.binary()), pa.decimal128(6, 2)) is None


@pytest.mark.parametrize(
    ("value", "kind", "form", "expected"),
    [
        ("AIg=", pa.decimal128(6, 2), Encoding("bytes"), Decimal("1.36")),
        ("/w==", pa.decimal128(6, 2), Encoding("bytes", 1), Decimal("-0.10")),
        ({"scale": 3, "value": "AIg="}, pa.decimal128(6, 3), Encoding("scaled"), Decimal("0.136")),
        (5, pa.timestamp("us"), Encoding("ms"), 5000),
        (5000, pa.timestamp("ms"), Encoding("us"), 5),
        (1, pa.timestamp("s", "UTC"), Encoding("days"), 86400),
        (5, pa.int64(), Encoding("us"), 5),
        (5, pa.date32(), Encoding("days"), 5),
    ],
)
def test_encodings_are_undone(value: Any, kind: pa.DataType, form: Encoding, expected: Any) -> None:
    found = column([None, value], kind, form)
    if pa.types.is_temporal(kind):
        found = found.cast(pa.int32() if kind == pa.date32() else pa.int64())
    assert found.to_pylist() == [None, expected]


@pytest.mark.parametrize(
    ("value", "kind", "form", "reason"),
    [
        ("AIg=", pa.string(), Encoding("bytes"), "decimals as bytes, which is no string"),
        (5, pa.date32(), Encoding("ms"), "a count of ms, which is no date32"),
        (5001, pa.timestamp("ms"), Encoding("us"), "5001 does not fit"),
        ("AIg=", pa.decimal128(6, 2), Encoding("bytes", 3), "does not fit"),
        ("x", pa.decimal128(6, 2), Encoding("bytes"), "is not base64"),
        ("", pa.decimal128(6, 2), Encoding("bytes"), "holds 0 bytes"),
        ({"scale": "2", "value": "AIg="}, pa.decimal128(6, 2), Encoding("scaled"), "no object of 'scale'"),
        (16777217, pa.float32(), Encoding(), "16777217 is no exact float"),
        ("1_0", pa.decimal128(6, 2), Encoding(), "is not a decimal number"),
        ("١", pa.decimal128(6, 2), Encoding(), "is not a decimal number"),
        (loads("1e9999999999999999999"), pa.float64(), Encoding(), "too large an exponent"),
        (loads("1" * 5000), pa.int64(), Encoding(), "a value is a number of too many digits, not int64"),
        (loads('{"a":1,"a":2}'), pa.struct([("a", pa.int64())]), Encoding(), "given twice"),
    ],
)
def test_values_that_an_encoding_or_a_type_does_not_hold_are_refused(
    value: Any, kind: pa.DataType, form: Encoding, reason: str
) -> None:
    with pytest.raises(UnfitValue) as caught:
        column([None, value], kind, form)
    assert reason in caught.value.reason
    assert caught.value.index == 1


def test_a_field_given_twice_does_no_harm_where_it_is_not_read() -> None:
    row = loads('{"a":1,"b":1,"b":2,"c":{"d":1,"d":1}}')
    assert column([row], pa.struct([("a", pa.int64())])).to_pylist() == [{"a": 1}]


@pytest.mark.parametrize("text", ["", "byte", "ms:2", "bytes:", "bytes:-1", "bytes:x", "plain"])
def test_encodings_are_checked(text: str) -> None:
    if text == "bytes:":
        assert encoding(text) == Encoding("bytes")
        return
    with pytest.raises(UsageError, match="encoding"):
        encoding(text)


def test_encodings_are_read() -> None:
    assert encoding("bytes:2") == Encoding("bytes", 2)
    assert encoding("us") == Encoding("us")
