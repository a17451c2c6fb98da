"""The fast way of reading change events says what the exact way says, or leaves the lines to it."""

import json
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tidelake.cdc.core.events import Events
from tidelake.cdc.core.outcome import Reject
from tidelake.cdc.debezium.blocks import raw_events
from tidelake.cdc.parse.parser import ChangeParser
from tidelake.cdc.times.positions import positions
from tidelake.cdc.times.surveys import SURVEY, survey
from tidelake.cdc.times.timeline import timeline
from tidelake.data.json.block import Unsure
from tidelake.data.json.encoding import Encoding
from tiers import examples

INNER = pa.struct([pa.field("code", pa.int8(), nullable=False), ("tags", pa.list_(pa.string()))])
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("näme", pa.string()),
        ("price", pa.decimal128(6, 2)),
        ("big", pa.decimal256(50, 3)),
        ("ratio", pa.float64()),
        ("part", pa.float32()),
        ("day", pa.date32()),
        ("at", pa.timestamp("ms")),
        ("seen", pa.timestamp("us", "UTC")),
        ("raw", pa.binary()),
        ("small", pa.uint8()),
        ("place", INNER),
        ("places", pa.list_(INNER)),
        ("ok", pa.bool_()),
    ]
)
GOOD: dict[str, list[str]] = {
    "id": ["1", "-0", "9223372036854775807"],
    "näme": ['"x"', '"Zürich"', '"\\u00fc\\ud83d\\ude00"', '"\\u0000"', '""', "null", '"a\\/\\"b"', '"},{"'],
    "price": ["1.5", '"1.50"', "-12", "null", "1e2", "9999.99", '".5"', "0.000"],
    "big": ["12345678901234567890123456789012345.125", '"1"', "null", "-0.001"],
    "ratio": ["0.1", "1e300", "-3", "null", "1E-7", "4503599627370497"],
    "part": ["0.1", "3", "null", "1e-50"],
    "day": ["19000", "-1", "null"],
    "at": ["1700000000000", "null", "-1"],
    "seen": ["1700000000000000", "null"],
    "raw": ['"YWJj"', '"YQ=="', '""', "null", '"YWI="'],
    "small": ["0", "255", "null"],
    "place": ['{"code":1,"tags":["x",null]}', "null", '{"tags":null,"code":-1,"more":{"code":"x"}}'],
    "places": ["[]", "null", '[{"code":1,"tags":[]},null]'],
    "ok": ["true", "false", "null"],
}
HOSTILE = [
    "null", "true", "1", "1.0", "-0", "-0.0", "01", "1e400", "1e-400", "1e999999999999999999", "NaN",
    "Infinity", "-", "+1", ".5", "9007199254740993", "16777217", "9223372036854775808", "1" * 25,
    "1" * 5000, '"12"', '"NaN"', '"Infinity"', '"\\ud800"', '"\\udc00"', '"a\tb"', '"\\x"', "[]", "[1]",
    "{}", '{"code":1}', '[{"code":null,"tags":[]}]', '{"code":1,"code":2,"tags":null}',
    '{"code":1,"tags":[1]}', '{"code":null,"tags":[]}', '"2024-01-01"', '"2024-01-01T00:00:00Z"',
    '"2024-01-01T00:00:00"', '"2024-13-01"', '"YWJj="', '"Y==="', '"YQ=a"', '"=AAA"', '"YR=="',
    '["X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="]',
    '["__debezium_unavailable_value"]', json.dumps(list(b"__debezium_unavailable_value")),
    '"__debezium_unavailable_value"', '"X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="', "1.234", "12345.6",
    '"1_0"', '" 1"', '"١"', '"1."', '"1e3"', '"+1"', '""', "100e-2", "{", "}", '"', '{"a":{"a":1}}',
    "[" * 50 + "]" * 50,
]  # fmt: skip

good_value = st.sampled_from(sorted(GOOD)).flatmap(lambda n: st.tuples(st.just(n), st.sampled_from(GOOD[n])))
space = st.sampled_from(["", "", "", " ", "\t", "\r", "\n", "\x0b"])


@st.composite
def rows(draw: st.DrawFn) -> str:
    """The text of a row: good, or with something done to it."""
    members = [(name, draw(st.sampled_from(texts))) for name, texts in GOOD.items()]
    if draw(st.integers(0, 3)) == 0:
        at = draw(st.integers(0, len(members) - 1))
        harm = draw(st.integers(0, 4))
        name, text = members[at]
        if harm == 0:
            del members[at]
        elif harm == 1:
            members.append((name, text))
        elif harm == 2:
            members.append(("other", draw(st.sampled_from(HOSTILE))))
        else:
            members[at] = (name, draw(st.sampled_from(HOSTILE)))
    if draw(st.booleans()):
        members = draw(st.permutations(members))
    escape = draw(st.integers(0, 5)) == 0
    return "{" + ",".join(f"{json.dumps(n, ensure_ascii=escape)}:{t}" for n, t in members) + "}"


OPS = {"c": "na", "r": "na", "u": "ba", "d": "bn", "h": "nn", "m": "nn"}


@st.composite
def lines(draw: st.DrawFn) -> bytes | None:
    odd = draw(st.integers(0, 40))
    if odd == 40:
        return None
    if odd == 0:
        return draw(
            st.sampled_from([b"", b"null", b" null ", b"\x0bnull", b"\x0b", b'{"payload":null}', b"[1]"])
        )
    if odd == 1:
        return draw(st.sampled_from(HOSTILE)).encode()
    op = draw(st.sampled_from("crudcrudhm"))
    shape = OPS[op]
    if draw(st.integers(0, 15)) == 0:
        shape = draw(st.sampled_from(["nn", "na", "bn", "ba"]))
    members = [("op", json.dumps(op if draw(st.integers(0, 20)) else draw(st.sampled_from("tx"))))]
    members += [("before", draw(rows()) if shape[0] == "b" else "null")]
    members += [("after", draw(rows()) if shape[1] == "a" else "null")]
    time = str(draw(st.integers(0, 9))) if draw(st.integers(0, 15)) else draw(st.sampled_from(HOSTILE))
    members += [
        ("source", f'{{"lsn":{time},"schema":"public","op":1,"ts":{{"n":{draw(st.integers(0, 9))}}}}}')
    ]
    if draw(st.integers(0, 8)) == 0:
        members.append((draw(st.sampled_from(["op", "before", "source", "x", "payload"])), "null"))
    if draw(st.integers(0, 8)) == 0:
        del members[draw(st.integers(0, len(members) - 1))]
    text = draw(space) + "{" + draw(space) + ",".join(f'"{n}":{t}' for n, t in members) + draw(space) + "}"
    wrap = draw(st.integers(0, 12))
    if wrap < 4:
        schema = draw(st.sampled_from(['"schema":null,', "", '"schema":{"type":"struct"},', '"schema":1,']))
        end = draw(
            st.sampled_from(["", "", "", ',"schema":null', ',"op":null', ',"op":"c"', ',"payload":null'])
        )
        text = "{" + schema + f'"payload":{text}{end}' + "}"
    data = (text + draw(space)).encode()
    if draw(st.integers(0, 40)) == 0:
        at = draw(st.integers(0, len(data)))
        data = (
            data[:at]
            + draw(st.sampled_from([b"\xff", b"\xed\xa0\x80", b"{", b"}", b"\n", b"\xef\xbb\xbf"]))
            + data[at:]
        )
    return data


def at_once(parser: ChangeParser, texts: Sequence[bytes | None]) -> tuple[Events, list[bytes | None]]:
    """The events of the lines that are read at once, and the other lines."""
    given = parser.decoded(pa.array(texts, pa.binary()))
    raw, marks, heartbeats, others = raw_events(given, parser.layout)
    found = parser._blocks.read(raw)
    tombstones = int((~others).sum()) - len(raw) - heartbeats
    found = replace(found, marks=marks, heartbeats=heartbeats, tombstones=tombstones)
    return found, [text for text, other in zip(texts, others.tolist(), strict=True) if other]


def exactly(parser: ChangeParser, texts: Sequence[bytes | None]) -> tuple[Events, list[Reject]]:
    bad: list[Reject] = []
    given = parser.decoded(pa.array(texts, pa.binary()))
    return parser._one_by_one(partial(parser._exact, given), np.arange(len(texts)), bad), bad


def survey_of(*lines: bytes) -> pa.Table:
    found = positions(pa.array([b'{"op":"h","source":{"connector":"postgresql"}}', *lines], pa.binary()))
    return pa.Table.from_batches([survey(found)], schema=SURVEY)


def same(fast: Events, exact: Events) -> None:
    assert fast.lines.tolist() == exact.lines.tolist()
    assert fast.times.tolist() == exact.times.tolist()
    assert (fast.orders is None) == (exact.orders is None)
    if fast.orders is not None and exact.orders is not None:
        assert fast.orders.tolist() == exact.orders.tolist()
    assert sorted(fast.marks.tolist()) == sorted(exact.marks.tolist())
    assert (fast.heartbeats, fast.tombstones) == (exact.heartbeats, exact.tombstones)
    for a, b in ((fast.before, exact.before), (fast.after, exact.after)):
        assert a.lines.tolist() == b.lines.tolist()
        a.rows.validate(full=True)
        assert a.rows.schema == b.rows.schema
        assert a.rows.equals(b.rows)
        ratios = [
            rows.column("ratio").to_pylist() for rows in (a.rows, b.rows) if "ratio" in rows.schema.names
        ]
        assert repr(ratios[:1]) == repr(ratios[1:])  # minus zero


PARSERS = [
    ChangeParser(SCHEMA, ("id",)),
    ChangeParser(SCHEMA, ("id",), old_rows="stored", order_by="source.ts.n"),
    ChangeParser(
        SCHEMA,
        ("id",),
        encodings=(("price", Encoding("bytes")), ("at", Encoding("s"))),
        optional=frozenset(["ok", "place"]),
    ),
]


@pytest.mark.promise(
    "Change events that are parsed in blocks give the same result as parsed one by one; doubtful "
    "lines are parsed one by one",
    rule="`cdc/debezium/blocks.py`, `data/json/block.py`, `data/json/raw.py`",
    also=["data/json/test_json_values.py"],
)
@pytest.mark.parametrize("parser", PARSERS, ids=["plain", "stored", "encoded"])
@settings(max_examples=examples(400))
@given(texts=st.lists(lines(), min_size=1, max_size=4))
@example(
    texts=[
        b'{"op":"h","source":{"lsn":1}} {"op":"h","source":{"lsn":2}}',
        b'{"op":',
        b'"h","source":{"lsn":1}}',
    ]
)
@example(texts=[b"null", b'{"op":"h","source":{"lsn":1}}'])
def test_a_block_says_what_its_lines_say_or_is_left_to_them(
    parser: ChangeParser, texts: list[bytes | None]
) -> None:
    given = parser.decoded(pa.array(texts, pa.binary()))
    _, _, _, others = raw_events(given, parser.layout)
    sure = [text for text, other in zip(texts, others.tolist(), strict=True) if not other]
    try:
        fast, rest = at_once(parser, sure)
    except Unsure:
        return
    assert rest == []
    exact, bad = exactly(parser, sure)
    assert bad == []
    same(fast, exact)


@pytest.mark.parametrize("parser", PARSERS, ids=["plain", "stored", "encoded"])
@settings(max_examples=examples(200))
@given(texts=st.lists(lines(), min_size=1, max_size=60))
def test_lines_together_are_what_they_are_one_by_one(parser: ChangeParser, texts: list[bytes | None]) -> None:
    parser = replace(parser, rejects=True)
    bad: list[Reject] = []
    together = parser._read(parser.decoded(pa.array(texts, pa.binary())), bad)
    exact, refused = exactly(parser, texts)
    same(together, exact)
    assert sorted(bad, key=lambda one: one.line) == sorted(refused, key=lambda one: one.line)


def wrapped(event: dict[str, Any], schema: Any) -> bytes:
    return json.dumps({"schema": schema, "payload": event}).encode()


def ordinary(i: int) -> dict[str, Any]:
    # Neither whole floats past 2^53 nor exponents below -19 are read at once.
    ordinary = {"1e300": "1e15", "1e-50": "1e-15"}
    chosen = {name: texts[i % len(texts)] for name, texts in GOOD.items()}
    row = {name: json.loads(ordinary.get(text, text)) for name, text in chosen.items()}
    old = {**row, "ok": None}
    before, after = [(None, row), (old, row), (row, None)][i % 3]
    return {"before": before, "after": after, "source": {"lsn": i, "ts": {"n": i}}, "op": "cud"[i % 3]}


@pytest.mark.parametrize("parser", PARSERS[:2], ids=["plain", "stored"])
def test_ordinary_events_are_read_at_once(parser: ChangeParser) -> None:
    plain = [json.dumps(ordinary(i)).encode() for i in range(60)]
    for texts in (
        plain,
        [wrapped(ordinary(i), None) for i in range(60)],
        [wrapped(ordinary(i), {"type": "struct", "fields": []}) for i in range(60)],
        [b'{"payload":' + line + b"}" for line in plain],
        [plain[0], b"null", None, b"", plain[1], b'{"op":"h","source":{"lsn":9}}'],
    ):
        exact, bad = exactly(parser, texts)
        assert bad == []
        fast, rest = at_once(parser, texts)
        assert rest == []
        same(fast, exact)


@pytest.mark.parametrize("form", ["2024-01-01", 19000, None])
def test_dates_are_read_at_once_in_either_form(form: Any) -> None:
    schema = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("days", pa.list_(pa.date32()))])
    parser = ChangeParser(schema, ("id",))
    row = {"id": 1, "day": form, "days": [form]}
    line = json.dumps({"op": "c", "after": row, "source": {"lsn": 1}}).encode()
    fast, rest = at_once(parser, [line] * 3)
    assert rest == []
    same(fast, exactly(parser, [line] * 3)[0])
    other = line.replace(b'"2024-01-01"', b"1").replace(b"19000", b'"1970-01-02"')
    mixed = parser.parse(pa.array([line, other, line], pa.binary()), str)
    assert mixed.rows.num_rows == 3


def test_one_bad_line_costs_only_the_lines_around_it() -> None:
    texts: list[bytes] = [json.dumps(ordinary(i)).encode() for i in range(500)]
    texts[321] = b"{"
    parser = ChangeParser(SCHEMA, ("id",), rejects=True)
    parsed = parser.parse(pa.array(texts, pa.binary()), str)
    assert [reject.line for reject in parsed.rejects] == [321]
    assert "not JSON" in parsed.rejects[0].reason
    exact = ChangeParser(SCHEMA, ("id",)).parse(pa.array(texts[:321] + texts[322:], pa.binary()), str)
    assert parsed.rows.equals(exact.rows)
    assert parsed.events == 499
    assert exact.rows.column("price")[0].as_py() == Decimal("1.50")


def agree(parser: ChangeParser, line: bytes) -> bool:
    """Whether a line is read at once; then as exactly."""
    good = json.dumps({**ordinary(0), "op": "h"}).encode()
    try:
        fast, rest = at_once(parser, [line])
    except Unsure:
        return False
    if rest:
        return False
    exact, bad = exactly(parser, [line])
    assert bad == [], line
    same(fast, exact)
    # The next block is none the worse for it.
    same(at_once(parser, [good])[0], exactly(parser, [good])[0])
    return True


def line_of(row: str, time: str = "1", op: str = '"c"') -> bytes:
    return f'{{"op":{op},"after":{row},"source":{{"lsn":{time},"ts":{{"n":1}}}}}}'.encode(
        "utf-8", "surrogatepass"
    )


@pytest.mark.parametrize("name", list(GOOD))
def test_one_odd_value_in_an_ordinary_line(name: str) -> None:
    parser = ChangeParser(SCHEMA, ("id",))
    read = 0
    for value in [*GOOD[name], *HOSTILE, '"\ud800"', '"\udfff\udc00"']:
        members = {**{n: texts[0] for n, texts in GOOD.items()}, name: value}
        row = "{" + ",".join(f'"{n}":{text}' for n, text in members.items()) + "}"
        read += agree(parser, line_of(row))
    assert read >= len(GOOD[name]) - 1, "nearly all good values are read at once"


def test_odd_bytes_times_ops_and_wrappings_of_an_ordinary_line() -> None:
    parser = ChangeParser(SCHEMA, ("id",))
    row = "{" + ",".join(f'"{n}":{texts[0]}' for n, texts in GOOD.items()) + "}"
    line = line_of(row)
    assert agree(parser, line)
    for value in HOSTILE:
        agree(parser, line_of(row, time=value))
        agree(parser, line_of(row, op=value))
        agree(parser, line_of(row[:-1] + f',"other":{value}}}'))
        agree(parser, line_of(value))
    for bad in (b"\xff", b"\xed\xa0\x80", b"\x00", b"\xc0\x80"):
        agree(parser, line.replace(b'"x"', b'"' + bad + b'"', 1))
        agree(parser, line.replace(b'"op"', b'"z":"' + bad + b'","op"', 1))
    at = '{"field":"at","type":"int32","name":"io.debezium.time.Date"}'
    late = f',"schema":{{"fields":[{{"field":"after","type":"struct","fields":[{at}]}}]}}'
    for end in (
        "",
        late,
        ',"schema":null',
        ',"schema":{}',
        ',"op":null',
        ',"op":"c"',
        ',"op":"\\u0000"',
        ',"payload":1',
    ):
        for schema in (
            "",
            '"schema":null,',
            '"schema":{"fields":[]},',
            '"schema":{"a":1,"a":2},',
            '"schema":1,',
        ):
            agree(parser, b"{" + schema.encode() + b'"payload":' + line + end.encode() + b"}")


@pytest.mark.parametrize("empty", [None, b"", b"null", b"{"])
def test_a_line_without_fields_has_none_of_their_columns_either(empty: bytes | None) -> None:
    event = b'{"op":"c","source":{"connector":"mysql","file":"b.7","pos":5,"gtid":"u:1"},"after":{}}'
    found = PARSERS[0].decoded(pa.array([event, empty], pa.binary()))
    for one in found.fields.flatten() + [found.fields.field(i) for i in range(found.fields.type.num_fields)]:
        assert one[1].as_py() is None
    told = positions(found)
    assert told.groups is not None and told.groups.to_pylist() == ["u:1", None]
    assert (told.starts[1], told.ends[1]) == (-1, -1)


def test_lines_that_run_into_each_other_are_not_read_at_once() -> None:
    parser = ChangeParser(SCHEMA, ("id",))
    mark = '{"op":"h","source":{"lsn":1}}'
    for texts in (
        [mark + mark, mark[:10], mark[10:]],
        [mark + " " + mark, '{"op":"h","source":', '{"lsn":1}}'],
        [mark + mark, '{"op":"}', '{","source":{"lsn":1}}'],
        [mark + mark],
        ["null", mark],
        [mark + "\nnull"],
    ):
        fast, rest = at_once(parser, [text.encode() for text in texts])
        sure = [text.encode() for text in texts if text.encode() not in rest]
        exact, bad = exactly(parser, sure)
        assert bad == []
        assert (fast.heartbeats, fast.tombstones) == (exact.heartbeats, exact.tombstones)


@pytest.mark.parametrize("wrap", ["%s", '{"payload":%s}', '{"schema":{"type":"struct"},"payload":%s}'])
def test_begin_and_end_of_transactions_are_read_at_once(wrap: str) -> None:
    times = timeline(survey_of(b'{"status":"END","id":"5:9"}'), None, None, whole=True)
    parsers = [replace(PARSERS[0], timeline=times), PARSERS[0]]
    begin, end = '{"status":"BEGIN","id":"5:7","ts_ms":1}', '{"status":"END","id":"5:9","event_count":2}'
    odd = [
        '{"op":null,"status":"END","id":"5:9"}', '{"status":"OTHER","id":"5:9"}', '{"status":"END"}',
        '{"status":"END","status":"END","id":"5:9"}', '{"status":"END","id":"5:9","op":"h"}',
    ]  # fmt: skip
    for parser, sure in zip(parsers, (2, 0), strict=True):
        for several in ([begin, end], *([one] for one in odd), [begin, *odd, end]):
            texts = [(wrap % text).encode() for text in several]
            given = parser.decoded(pa.array(texts, pa.binary()))
            assert int(given.brackets.sum()) == (2 if several == [begin, end] else 0)
            if several == [begin, end]:
                assert raw_events(given, parser.layout)[2] == sure
            bad: list[Reject] = []
            together = replace(parser, rejects=True)._read(given, bad)
            exact, refused = exactly(parser, texts)
            same(together, exact)
            assert sorted(bad, key=lambda one: one.line) == refused
