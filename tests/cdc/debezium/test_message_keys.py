"""What tells rows and tables apart: keys of messages, names of tables, documents of MongoDB."""

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelake.cdc.core.outcome import Parsed
from tidelake.cdc.core.tablename import Table, name_parts, quoted_name
from tidelake.cdc.debezium.messagekeys import key_names
from tidelake.cdc.dialects.canal import CANAL
from tidelake.cdc.dialects.dialect import Dialect, MessageReader
from tidelake.cdc.dialects.dms import DMS
from tidelake.cdc.dialects.maxwell import MAXWELL
from tidelake.cdc.dialects.messageparser import DialectParser
from tidelake.cdc.parse.parser import ChangeParser
from tidelake.cdc.parse.routes import seen_in, tables_of
from tidelake.errors import InvalidUpdates, UsageError
from tidelake.feeds.answers import Answer
from tidelake.feeds.reading import EventReader
from tidelake.feeds.tools import Maxwell
from tiers import examples

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
STORED = ChangeParser(SCHEMA, ("id",), old_rows="stored")
NAMES = st.text(st.sampled_from('ab."%\x1f é'), max_size=4)


def parse(parser: ChangeParser, *messages: tuple[Any, Any]) -> Parsed:
    keys, values = (
        [None if one is None else json.dumps(one) for one in ones] for ones in zip(*messages, strict=True)
    )
    given_keys = pa.array(keys, pa.string())
    return parser.parse(pa.array(values, pa.string()), lambda at: f"line {at}", given_keys)


def event(op: str, after: Any, *, before: Any = None, **source: Any) -> dict[str, Any]:
    return {"op": op, "before": before, "after": after, "source": {"lsn": 5, **source}}


NEW = event("c", {"id": 1, "v": "x"})


@pytest.mark.parametrize("rejects", [False, True])
@pytest.mark.parametrize("key", [{"id": 1, "n": 1}, {"n": 1}, {"payload": {"n": 1}}, None])
def test_a_key_that_is_not_the_collections_is_refused(key: Any, rejects: bool) -> None:
    parser = ChangeParser(SCHEMA, ("id",), old_rows="stored", rejects=rejects)
    with pytest.raises(InvalidUpdates, match=r"key of the collection is 'id'.*line 1"):
        parse(parser, ({"id": 1}, NEW), (key, NEW))
    with pytest.raises(InvalidUpdates, match=r"columns 'id', 'n'"):
        parse(parser, ({"id": 1, "n": 1}, event("d", None, before={"id": 1})))


def test_what_has_no_key_of_a_row_is_not_compared() -> None:
    mark = {"op": "m", "source": {"lsn": 6}}
    truncate = event("t", None)
    done = parse(STORED, ({"id": 1}, NEW), (None, truncate), ({"prefix": "p"}, mark), ({"x": 1}, None))
    assert (done.events, done.heartbeats, done.tombstones) == (2, 1, 1)
    # Without any key in the messages, or with one that names no columns, the collection's key is right.
    assert parse(STORED, (None, NEW), (None, NEW)).events == 2
    assert parse(STORED, (7, NEW), ("Struct{id=1}", NEW)).events == 2
    # Whole old rows need no key.
    assert parse(ChangeParser(SCHEMA, ("id",)), ({"n": 1}, NEW), (None, NEW)).events == 2


def test_the_names_of_keys_are_found_whatever_their_values_are() -> None:
    keys = [{"a": '":1, "b": 2'}, {"a": {"c": 1}, "b": None}, {"b": True, "a": -1.5e3}, {}, [1], "x", None]
    texts = [None if one is None else json.dumps(one) for one in keys]
    schema = {"type": "struct", "fields": [{"field": "a"}]}
    texts += [
        json.dumps({"schema": schema, "payload": {"a": 1}}),
        "null",
        " ",
        "{nonsense",
        '{"__dbz__t":1,"a":2}',
    ]
    codes, names = key_names(pa.array(texts))
    told = [names[code] for code in codes]
    assert told == [("a",), ("a", "b"), ("b", "a"), (), (), (), None, ("a",), None, None, (), ("a",)]
    many = pa.array([json.dumps({"a": i, "b": f"{i}é"}) for i in range(100)])
    assert len(key_names(many)[1]) == 3, "keys of one form are looked at once"


@pytest.mark.promise(
    "Two tables are never taken for one, whatever characters their names have",
    rule="`cdc/core/tablename.py`",
    also=[
        "::test_tables_of_a_tool_whose_names_have_dots_are_not_one",
        "::test_a_name_that_cannot_be_read_is_refused",
        "spark/writing/test_table_targets.py::test_tables_whose_names_have_dots_are_not_one",
    ],
)
@settings(max_examples=examples(200))
@given(st.lists(st.tuples(NAMES, NAMES, NAMES), max_size=9))
def test_no_two_tables_have_one_text(names: list[tuple[str, str, str]]) -> None:
    tables = {Table(*one) for one in names}
    assert len({table.joined for table in tables}) == len({str(table) for table in tables}) == len(tables)
    for table in tables:
        assert Table.of(table.joined) == table
        assert name_parts(quoted_name(table)) == table
    lines = [
        json.dumps({"op": "c", "source": dict(zip(("db", "schema", "table"), one, strict=True))})
        for one in names
    ]
    found = tables_of(pa.array(lines, pa.string())).to_pylist()
    assert found == [Table(*one).joined if one[2] else "" for one in names]


def test_half_a_character_is_no_name_of_a_table() -> None:
    lines = [json.dumps({"op": "x", "source": {"db": "d", "table": name}}) for name in ("t", "\ud800")]
    assert tables_of(pa.array(lines)).to_pylist() == [Table("d", "", "t").joined, ""]


def test_a_name_that_cannot_be_read_is_refused() -> None:
    assert name_parts('shop."a.""b"') == ("shop", 'a."b')
    for text in ('"a', 'a"b', '"a"b.c'):
        with pytest.raises(UsageError, match="no name of a table"):
            name_parts(text)
    for text in ("a.b.c", "", "a."):
        with pytest.raises(UsageError, match="table="):
            Maxwell(table=text)


def test_what_empties_a_table_is_told_apart_from_its_rows() -> None:
    def line(op: str | None, **more: Any) -> str:
        return json.dumps({"op": op, "source": {"db": "d", "table": "t"}, **more})

    lines = pa.array(
        [line("t"), line(None, ddl="TRUNCATE t", tableChanges=[]), line(None, ddl="ALTER", tableChanges=[])]
    )
    tables, seen = seen_in(lines, pa.array(['{"a":1}', '{"databaseName":"d"}', None]))
    assert (tables.to_pylist()[2], [(one.key, one.empties) for one in seen]) == ("", [("", True)])
    _, seen = seen_in(pa.array([line("t"), line("c", after={"op": "t"})]), None)
    assert [one.empties for one in seen] == [False]


def reader(kind: Dialect, table: str | None = None) -> MessageReader:
    time = {CANAL.tool: "es", DMS.tool: "t", MAXWELL.tool: "position"}[kind.tool]
    parts = None if table is None else name_parts(table)
    return MessageReader(kind, time, None, "counter", SCHEMA, parts, ("id",), stored=True)


def maxwell(database: str, table: str, **more: Any) -> dict[str, Any]:
    row = {"id": 1, "v": f"{database}|{table}"}
    return {"type": "insert", "database": database, "table": table, "position": 5, "data": row, **more}


def rows(found: MessageReader, *messages: dict[str, Any]) -> Parsed:
    parser = DialectParser.of(STORED, found)
    return parser.parse(pa.array([json.dumps(one) for one in messages]), lambda at: f"line {at}")


def test_tables_of_a_tool_whose_names_have_dots_are_not_one() -> None:
    messages = [maxwell("a.b", "c"), maxwell("a", "b.c"), maxwell("x", "c")]
    with pytest.raises(InvalidUpdates, match=r"""several tables.*table='"a.b".c'"""):
        rows(reader(MAXWELL), *messages)
    for table, expected in (('"a.b".c', "a.b|c"), ('a."b.c"', "a|b.c"), ("c", "a.b|c"), ('"b.c"', "a|b.c")):
        found = rows(reader(MAXWELL, table), *messages[:2])
        assert found.rows.column("v").to_pylist() == [expected]
    assert rows(reader(MAXWELL, "b.c"), *messages).events == 0


def test_a_key_that_a_tool_tells_is_compared() -> None:
    canal = {"type": "INSERT", "database": "d", "table": "t", "es": 5, "data": [{"id": "1", "v": "x"}]}
    dms = {
        "metadata": {
            "operation": "create-table",
            "record-type": "control",
            "schema-name": "d",
            "table-name": "t",
        }
    }
    dms["control"] = {"table-def": {"columns": {}, "primary-key": ["id", "n"]}}
    for found, message in (
        (reader(MAXWELL), maxwell("d", "t", primary_key_columns=["id", "n"])),
        (reader(CANAL), canal | {"pkNames": ["id", "n"]}),
        (reader(DMS, "d.t"), dms),
    ):
        with pytest.raises(
            InvalidUpdates, match=r"columns 'id', 'n', and the key of the collection is 'id'.*line 0"
        ):
            rows(found, message)
    assert rows(reader(CANAL), canal | {"pkNames": ["id"]}, canal | {"pkNames": None}).events == 2
    assert rows(reader(DMS), dms).events == 0, "its table is unknown"


@pytest.mark.promise(
    "Documents of MongoDB are read with their types, exactly or not at all",
    rule="`cdc/debezium/extendedjson.py`",
)
def test_documents_of_mongodb_are_texts() -> None:
    schema = pa.schema(
        [
            pa.field("_id", pa.string(), nullable=False),
            *(
                ("n", pa.int64()),
                ("d", pa.decimal128(9, 2)),
                ("at", pa.timestamp("us", "UTC")),
                ("b", pa.binary()),
            ),
            *(("tags", pa.list_(pa.string())), ("x", pa.float64())),
        ]
    )
    document = {
        **{"_id": {"$oid": "65"}, "n": {"$numberLong": "9007199254740993"}, "d": {"$numberDecimal": "1.50"}},
        **{
            "at": {"$date": 1_700_000_000_000},
            "b": {"$binary": "YQ==", "$type": "00"},
            "tags": [{"$symbol": "s"}],
        },
        **{"x": {"$numberDouble": "Infinity"}},
    }
    parser = ChangeParser(schema, ("_id",), old_rows="stored")
    key = {"id": '{"$oid": "65"}'}
    done = parse(
        parser,
        (key, event("c", json.dumps(document), connector="mongo")),
        (key, event("d", None, connector="mongo")),
        ({"id": '"65"'}, event("d", None)),
    )
    assert done.rows.column("_id").to_pylist() == ["65"] * 3
    row = done.rows.slice(0, 1).to_pylist()[0]
    told = (row["n"], str(row["d"]), row["at"].timestamp(), row["b"], row["tags"], row["x"])
    assert told == (9007199254740993, "1.50", 1_700_000_000, b"a", ["s"], float("inf"))
    with pytest.raises(InvalidUpdates, match=r"capture.mode=change_streams_update_full"):
        parse(parser, (key, event("u", None, connector="mongodb")))
    for bad in ("no text", '{"_id": {"$numberLong": "x"}}', "5"):
        with pytest.raises(InvalidUpdates, match="'after' is not an object, nor the text of one"):
            parse(parser, (key, event("c", bad)))
    with pytest.raises(InvalidUpdates, match="no JSON text of an '_id'"):
        parse(parser, ({"id": "no text"}, event("d", None)))


@pytest.mark.promise(
    "Rows that are copied again are not doubled: old rows are looked up, or the copy is refused",
    rule="`REPEATS`, `copies_again`",
    also=[
        "spark/envelopes/test_commit_times.py::test_rows_that_are_copied_among_others_have_the_times_of_these",
        "spark/jobs/test_ingest_tables.py::test_tables_that_are_copied_again_are_not_doubled",
    ],
)
@pytest.mark.parametrize("more", ["", "x" * 50])
def test_a_row_of_an_incremental_snapshot_is_not_doubled(more: str) -> None:
    again = event("r", {"id": 1, "v": more}, snapshot="incremental")
    first = event("r", {"id": 1, "v": more}, snapshot="first")
    whole = ChangeParser(SCHEMA, ("id",))
    with pytest.raises(InvalidUpdates, match=r"incremental snapshot.*old_rows='stored'.*line 60"):
        parse(whole, *((None, first) for _ in range(60)), (None, again))
    assert (
        parse(whole, (None, first), (None, event("c", {"id": 2, "v": '"snapshot":"incremental"'}))).events
        == 2
    )
    assert parse(STORED, (None, again)).events == 1


def test_events_that_are_columns_are_not_doubled_either() -> None:
    row = pa.struct(list(SCHEMA))
    kinds = {"op": pa.string(), "before": row, "after": row}
    kinds["source"] = pa.struct([("lsn", pa.int64()), ("snapshot", pa.string())])
    event_ = {"op": "r", "after": {"id": 1, "v": "x"}, "source": {"lsn": 5, "snapshot": "incremental"}}
    batch = pa.RecordBatch.from_pylist([event_], schema=pa.schema(list(kinds.items())))
    with pytest.raises(InvalidUpdates, match="incremental snapshot"):
        EventReader(ChangeParser(SCHEMA, ("id",)), tuple(kinds), Answer()).read(batch)
    assert EventReader(STORED, tuple(kinds), Answer()).read(batch)[1].events == 1


def test_advice_about_times_fits_the_connector() -> None:
    row = event("c", {"id": 1, "v": "x"}, connector="mysql", file="bin.000001", pos=5, snapshot="false")
    parser = ChangeParser(SCHEMA, ("id",), untimed=True)
    with pytest.raises(InvalidUpdates, match=r"gtid_mode=ON.*time='source.ts_ms'.*line 0"):
        parse(parser, (None, row))
    row["source"]["gtid"] = "a:1"
    with pytest.raises(InvalidUpdates, match=r"use tidelake.spark.ingest"):
        parse(parser, (None, row))


def test_only_tables_that_are_routed_are_emptied_by_statements() -> None:
    told = {"ddl": "TRUNCATE t", "tableChanges": [], "source": {"lsn": 5, "table": "t"}}
    with pytest.raises(InvalidUpdates, match=r"ingest_tables or tables_sink.*skipped.operations=none"):
        parse(STORED, (None, told))
    assert parse(STORED, (None, told | {"ddl": "ALTER TABLE t ADD x int"})).heartbeats == 1
