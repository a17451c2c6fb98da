"""CSV files lose nothing that their texts say."""

from pathlib import Path

import pyarrow as pa
import pytest

from tidelake.errors import InvalidUpdates
from tidelake.feeds import csvfile


def _read(texts, kind=None):
    data = "".join(f"{line}\n" for line in ["a", *texts]).encode()
    schema = None if kind is None else pa.schema([("a", kind)])
    return csvfile.read(Path("f.csv"), lambda: pa.BufferReader(data), schema).column("a")


@pytest.mark.promise(
    "A CSV file loses nothing that its texts say: `0012345` stays a text, or is refused as a number",
    rule="`feeds/csvfile.py`",
    also=["feeds/test_csvfile.py"],
)
@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (["0012345"], "string"),
        (["1", "007"], "string"),
        (["00.5"], "string"),
        (["+41791234567"], "string"),
        (["1E5"], "string"),
        (["0x1F"], "string"),
        (["-0"], "string"),
        (["12345678901234567890"], "string"),
        (["1", "9223372036854775808"], "string"),
        (["12345678901234567.89"], "string"),
        (["9007199254740993.0"], "string"),
        (["1.10", "1.9"], "string"),
        (["NaN"], "string"),
        (["2024-02-31"], "string"),
        (["2024-01-01T00:00Z", "2024-01-01T00:00"], "string"),
        (['""', "1"], "string"),
        (["yes"], "string"),
        (["1", "-7", "9223372036854775807"], "int64"),
        (["1.5", "2", "1e-05", "NaN", "-inf"], "double"),
        (["0.30000000000000004", "1.0"], "double"),
        (["1.10", "12.00"], "decimal128(18, 2)"),
        (["true", "False"], "bool"),
        (["2024-01-31"], "date32[day]"),
        (["2024-01-01 12:00:00"], "timestamp[s]"),
        (["2024-01-01 12:00:00.5"], "timestamp[us]"),
        (["2024-01-01T12:00:00.000000001Z"], "timestamp[ns, tz=UTC]"),
    ],
)
def test_a_column_has_a_type_only_if_it_gives_each_text_back(texts, kind):
    found = _read([*texts, '"x"'][:-1])
    assert str(found.type) == kind
    if kind == "string":
        assert found.to_pylist() == [text.replace('"', "") for text in texts]


@pytest.mark.parametrize(
    ("kind", "text", "why"),
    [
        (pa.int64(), "0012345", "leading zeros.*string"),
        (pa.uint8(), "007", "leading zeros"),
        (pa.duration("s"), "01", "leading zeros"),
        (pa.decimal128(10, 2), "01.50", "leading zeros"),
        (pa.float64(), "00.5", "leading zeros"),
        (pa.int64(), "0x1F", "no whole number"),
        (pa.int64(), "1.5", "no whole number"),
        (pa.float64(), "9007199254740993", "does not hold"),
        (pa.float32(), "16777217", "does not hold"),
        (pa.float16(), "2049", "does not hold"),
        (pa.float64(), "1e400", "does not hold"),
        (pa.int8(), "300", "int8"),
        (pa.float64(), "abc", "double"),
    ],
)
def test_a_text_that_a_declared_type_would_change_is_refused(kind, text, why):
    with pytest.raises(InvalidUpdates, match=f"f.csv line 3: column 'a' is '{text}', .*{why}"):
        _read(["1", text], kind)


def test_texts_that_a_declared_type_holds_are_taken():
    assert _read(["1", "-0", '" 7 "'], pa.int64()).to_pylist() == [1, 0, 7]
    assert _read(["16777216", "0.1", "1e3"], pa.float32()).to_pylist()[::2] == [16777216, 1000]
    assert _read(["1.5"], pa.float16()).to_pylist() == [1.5]
    assert _read(["90"], pa.duration("s")).cast(pa.int64()).to_pylist() == [90]


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (["a,b", f"1,{'x' * 200_000}", "no,y"], "line 3: column 'a' is 'no'"),
        (["a,b", f"1,{'x' * 200_000}", "2,y,3"], "line 3 has 3 values"),
        (["on,b", "2024-01-01,y", "on,b"], "line 3: column 'on' is 'on', expected date32"),
        ([b"a,\xed\xa0\x80", "1,2"], "utf-8"),
        ([], "is empty"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_error_with_the_line(lines, why):
    data = b"\n".join(line if isinstance(line, bytes) else line.encode() for line in lines)
    schema = pa.schema([("a", pa.int64()), ("on", pa.date32())])
    with pytest.raises(InvalidUpdates, match=why):
        csvfile.read(Path("f.csv"), lambda: pa.BufferReader(data), schema)


def test_a_file_is_read_part_by_part():
    lines = "".join(f"{n},{'x' * 40}\n" for n in range(200_000))
    kinds = pa.schema([("a", "int64"), ("b", "string")])

    def found(data):
        return csvfile.batches(Path("f.csv"), lambda: pa.BufferReader(data), kinds)

    rows = [(batch.num_rows, batch.nbytes) for batch in found(f"a,b\n{lines}".encode())]
    assert rows[0][0] == 0 and sum(count for count, _ in rows) == 200_000
    assert max(size for _, size in rows) < 3 * 2**20 < len(lines)
    with pytest.raises(InvalidUpdates, match="line 200002: column 'a' is 'y'"):
        list(found(f"a,b\n{lines}y,z\n".encode()))
