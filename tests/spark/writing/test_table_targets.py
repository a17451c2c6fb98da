"""Tables of a feed and their collections: which rows go where, and what stops before rows get lost."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from feed import connect, contents

import tidelake
from tidelake.cdc.wire.decoder import Decoder
from tidelake.errors import IncompatibleSchema, InvalidUpdates, TidelakeWarning, UsageError
from tidelake.feeds.reading import AS_TEXT
from tidelake.feeds.tablelines import FewLines
from tidelake.spark import WrittenBatch, tables_sink

COLUMNS = {"id": ("int64", False), "v": ("string", True)}
DATE = {"type": "int32", "name": "io.debezium.time.Date"}


class Stream:
    """A stream of messages into the tables of a lake; each call is a micro-batch."""

    def __init__(self, root: Path, *, keyed: bool = True, **options: Any) -> None:
        self.lake = tidelake.open(root / "lake")
        self.keyed, self.options, self.batch = keyed, options, 0

    def take(self, *messages: tuple[Any, Any]) -> WrittenBatch:
        """Write messages, each a key and a value."""
        texts = [[None if one is None else json.dumps(one) for one in pair] for pair in messages]
        given = {"key": [key for key, _ in texts], "value": [value for _, value in texts]}
        given["offset"] = list(range(1, len(texts) + 1))
        kinds = {"block": pa.int64(), "modified": pa.int64(), "offset": pa.int64()}
        nulls = [None] * len(texts)
        arrays = [pa.array(given.get(name, nulls), kinds.get(name, pa.string())) for name in AS_TEXT]
        lines = pa.RecordBatch.from_arrays(arrays, names=list(AS_TEXT))
        sink = tables_sink(self.lake, "crm", **self.options)
        done = sink.write(lambda _: FewLines([lines], keyed=self.keyed), "query", self.batch)
        self.batch += 1
        return done

    def rows(self, name: str) -> dict[int, dict[str, Any]]:
        """The newest rows of a collection."""
        found = self.lake[name]
        return contents(found, found.upper.elements[0] - 1)


def event(
    op: str, after: Any, lsn: int, *, before: Any = None, table: str = "t", schema: str = "p", **more: Any
) -> dict[str, Any]:
    source = {"db": "s", "schema": schema, "table": table, "lsn": lsn, **more.get("source", {})}
    payload = {"before": before, "after": after, "op": op, "source": source}
    return {"schema": more.get("columns") or connect(table, COLUMNS), "payload": payload}


def key(**columns: Any) -> dict[str, Any]:
    fields = [{"field": name, "type": "int64", "optional": False} for name in columns]
    return {"schema": {"type": "struct", "fields": fields}, "payload": columns}


def statement(ddl: str | None, lsn: int, *changes: str, table: str = "t", **source: Any) -> dict[str, Any]:
    told = [{"type": kind, "id": f'"s"."p"."{table}"'} for kind in changes]
    where = {"db": "s", "schema": "p", "table": table, "lsn": lsn, "snapshot": "false", **source}
    return {"source": where, "ts_ms": 1, "databaseName": "s", "ddl": ddl, "tableChanges": told}


@pytest.mark.promise(
    "The key of each message is that of the collection, or the feed stops; a deletion that leaves "
    "its key out is refused",
    rule="`cdc/debezium/messagekeys.py`, `_check_keys`, `StoreEvents._check_deletions`",
    also=[
        "::test_a_key_that_the_caller_gave_is_compared_too",
        "::test_a_deletion_that_leaves_its_key_out_is_refused",
        "cdc/debezium/test_message_keys.py::test_a_key_that_is_not_the_collections_is_refused",
        "cdc/debezium/test_message_keys.py::test_what_has_no_key_of_a_row_is_not_compared",
        "cdc/debezium/test_message_keys.py::test_the_names_of_keys_are_found_whatever_their_values_are",
        "cdc/debezium/test_message_keys.py::test_a_key_that_a_tool_tells_is_compared",
    ],
)
@pytest.mark.parametrize("bare", [False, True])
@pytest.mark.parametrize("changed", [{"id": 1, "n": 2}, {"n": 1}, None])
def test_a_key_that_changes_at_the_source_stops_the_table(
    tmp_path: Path, bare: bool, changed: dict[str, int] | None
) -> None:
    def told(columns: dict[str, int] | None) -> Any:
        return columns if bare or columns is None else key(**columns)

    stream = Stream(tmp_path)
    assert stream.take((told({"id": 1}), event("c", {"id": 1, "v": "x"}, 5))).created == ["crm.p.t"]
    with pytest.raises(IncompatibleSchema, match=r"table 's.p.t': .*key of the collection is 'id'"):
        stream.take(
            (told({"id": 2}), event("c", {"id": 2, "v": "y"}, 6)),
            (told(changed), event("c", {"id": 1, "v": "z"}, 7)),
        )
    assert stream.rows("crm.p.t") == {1: {"id": 1, "v": "x"}}, "nothing of the micro-batch is in"


def test_a_key_that_the_caller_gave_is_compared_too(tmp_path: Path) -> None:
    stream = Stream(tmp_path, keys=["id"])
    # Nothing tells its rows apart but what the caller says.
    stream.take((None, event("c", {"id": 1, "v": "x"}, 5)))
    with pytest.raises(IncompatibleSchema, match="columns 'id', 'v'"):
        stream.take(({"id": 1, "v": "y"}, event("c", {"id": 1, "v": "y"}, 6)))
    with pytest.raises(IncompatibleSchema, match="message has no key"):
        stream.take(
            ({"id": 1}, event("c", {"id": 1, "v": "y"}, 6)), (None, event("c", {"id": 1, "v": "z"}, 7))
        )
    # Truncations, messages of the log, and tombstones have no key of a row.
    done = stream.take(
        (None, event("t", None, 6)),
        ({"prefix": "x"}, {"op": "m", "source": {"lsn": 7}}),
        ({"__dbz__physicalTableIdentifier": "a", "id": 4}, event("c", {"id": 4, "v": "y"}, 8)),
        ({"id": 4}, None),
    )
    assert (done.events, stream.rows("crm.p.t")) == (2, {4: {"id": 4, "v": "y"}})


def test_columns_that_a_collection_has_for_itself_need_other_names(tmp_path: Path) -> None:
    kinds = connect("t", {"id": ("int64", False), "_time": ("int64", True)})
    message = key(id=1), event("c", {"id": 1, "_time": 2}, 5, columns=kinds)
    stream = Stream(tmp_path)
    with pytest.raises(
        UsageError, match=r"'_time' is reserved: rename it with decode_events\(frame, rename="
    ):
        stream.take(message)
    decoder = Decoder(rename={"_time": "at"})
    texts = [json.dumps(one).encode() for one in message]
    found = decoder.keys(pa.array(texts[:1]))[0].as_py(), decoder.values(pa.array(texts[1:]))[0].as_py()
    stream.take((json.loads(found[0]), json.loads(found[1])))
    assert stream.rows("crm.p.t") == {1: {"id": 1, "at": 2}}


def test_a_table_that_was_truncated_amid_its_copy_is_told(tmp_path: Path) -> None:
    """Its copy has no rows, and an update before the truncation leaves a large value of one out."""
    stream = Stream(tmp_path, keys=["id"])
    update = event("u", {"id": 231, "v": "__debezium_unavailable_value"}, 5)
    with pytest.raises(InvalidUpdates, match=r"'v' for the key .*231.*truncated before it is read"):
        stream.take((key(id=231), update), (None, event("t", None, 6)))


def test_a_deletion_that_leaves_its_key_out_is_refused(tmp_path: Path) -> None:
    def deletion(id_: int, v: Any, lsn: int) -> tuple[Any, Any]:
        return key(id=id_), event("d", None, lsn, before={"id": id_, "v": v})

    stream = Stream(tmp_path)
    stream.take(*((key(id=n), event("c", {"id": n, "v": f"e{n}"}, 5)) for n in range(3)))
    # A whole old row of key 0; and, of a replica identity by default, only the key, of a row that is gone.
    stream.take(deletion(0, "e0", 6))
    stream.take(deletion(0, None, 7))
    stream.take((key(id=0), event("c", {"id": 0, "v": "e0"}, 8)), deletion(0, "e0", 8))
    with pytest.raises(InvalidUpdates, match=r"\[\"id\"\] are 0 or empty.*USING INDEX"):
        stream.take(deletion(0, "e2", 9))
    assert set(stream.rows("crm.p.t")) == {1, 2}


@pytest.mark.promise(
    "A table without a key stops no other one, is told of, and is never begun amid its history",
    rule="`_is_left_out` in `feeds/tabletargets.py`",
)
def test_tables_without_a_key_do_not_stop_other_tables(tmp_path: Path) -> None:
    stream = Stream(tmp_path)
    with pytest.raises(UsageError, match=r"no key.*keys=\{'p.log': \['id'\]\}"):
        stream.take((None, event("c", {"id": 1, "v": "x"}, 5, table="log")))
    with pytest.warns(TidelakeWarning, match=r"table 's.p.log' is left out.*keys=\{'p.log'"):
        done = stream.take(
            (None, event("c", {"id": 1, "v": "x"}, 5, table="log")),
            ({"id": 1}, event("c", {"id": 1, "v": "x"}, 5)),
            (None, event("c", {"id": 1, "v": "x"}, 6, table="log")),
        )
    assert (done.created, done.left_out, done.events) == (["crm.p.t"], {"s.p.log": 2}, 1)
    # It is not begun amid its history either.
    stream.options["keys"] = ["id"]
    with pytest.warns(TidelakeWarning, match="begin anew"):
        done = stream.take(({"id": 1}, event("c", {"id": 1, "v": "y"}, 7, table="log")))
    assert done.left_out == {"s.p.log": 1} and "crm.p.log" not in stream.lake


def test_tables_whose_names_have_dots_are_not_one(tmp_path: Path) -> None:
    events = [
        (None, event("c", {"id": 1, "v": f"{schema}|{table}"}, lsn, schema=schema, table=table))
        for lsn, (schema, table) in enumerate([("a.b", "c"), ("a", "b.c"), ("a", "b\x1fc")], 5)
    ]
    stream = Stream(tmp_path, keyed=False, keys=["id"])
    with pytest.raises(UsageError, match=r"""tables 's.a."b.c"' and 's."a.b".c' would both go to"""):
        stream.take(*events)
    assert stream.lake.list() == ["crm"], "no collection is made before all is checked"
    stream.options["names"] = {'s."a.b".c': "first", 'a."b.c"': "second", "a.b\x1fc": "third"}
    stream.take(*events)
    found = {name: stream.rows(name)[1]["v"] for name in stream.lake.list() if name != "crm"}
    assert found == {"first": "a.b|c", "second": "a|b.c", "third": "a|b\x1fc"}


@pytest.mark.parametrize("at_once", [False, True])
def test_a_column_that_is_dropped_and_comes_again_is_compared_with_the_collection(
    tmp_path: Path, at_once: bool
) -> None:
    def told(lsn: int, kind: dict[str, Any] | None, value: Any) -> tuple[None, Any]:
        fields = [{"field": "id", "type": "int64"}] + ([] if kind is None else [{"field": "n", **kind}])
        schema = {"type": "struct", "fields": [{"type": "struct", "field": "after", "fields": fields}]}
        row = {"id": lsn} | ({} if kind is None else {"n": value})
        return None, event("c", row, lsn, columns=schema)

    date, number = DATE | {"optional": True}, {"type": "int32", "optional": True}
    stream = Stream(tmp_path, keyed=False, keys=["id"])
    stream.take(told(5, date, 19000))
    dropped, again = told(6, None, None), told(7, number, 7)
    if not at_once:
        stream.take(dropped)
    with pytest.raises(IncompatibleSchema, match="column 'n' has become int32"):
        stream.take(*([dropped] if at_once else []), again)
    stream.take(told(8, date, 19001))
    assert set(stream.rows("crm.p.t")) == {5, 8} | (set() if at_once else {6})


@pytest.mark.promise(
    "A collection of a feed is made when the first events of its table, and those of all other new "
    "tables, were read",
    rule="`TableTargets.plan`, `Lines.check`",
)
def test_a_collection_is_made_when_its_first_rows_are_checked(tmp_path: Path) -> None:
    stream = Stream(tmp_path, keyed=False, keys=["id"])
    good = (None, event("c", {"id": 1, "v": "x"}, 5, table="a"))
    for bad, why in (
        (event("c", {"id": "one", "v": "x"}, 6), "'id'"),
        (event("c", {"id": 1, "v": "x"}, -6), "time"),
        (event("c", {"id": 1}, 6), "missing"),
    ):
        with pytest.raises(InvalidUpdates, match=why):
            stream.take(good, (None, bad))
        assert stream.lake.list() == ["crm"]
    stream.lake.create("other", {"id": "int64", "v": "string"}, key=["id"], time="ms")
    stream.options["names"] = {"p.t": "other"}
    with pytest.raises(UsageError, match="of time ms: the register has times of counter"):
        stream.take(good, (None, event("c", {"id": 1, "v": "x"}, 6)))
    assert stream.lake.list() == ["crm", "other"]


@pytest.mark.promise(
    "Events on statements change no rows; one that empties a table empties its collection, and one "
    "that changes rows in another way is refused",
    rule="`cdc/debezium/statements.py`",
    also=[
        "spark/envelopes/test_commit_times.py::test_statements_have_positions_but_for_those_of_a_first_copy",
        "cdc/debezium/test_message_keys.py::test_only_tables_that_are_routed_are_emptied_by_statements",
        "cdc/debezium/test_message_keys.py::test_what_empties_a_table_is_told_apart_from_its_rows",
    ],
)
def test_statements_change_no_rows_but_for_those_that_empty_a_table(tmp_path: Path) -> None:
    stream = Stream(tmp_path)
    of_database = {"databaseName": "s"}
    done = stream.take(
        (of_database, statement("CREATE TABLE t (id int)", 3, "CREATE")),
        (of_database, statement("DROP TABLE IF EXISTS `s`.`t`", 3, "DROP", snapshot="true")),
        ({"id": 1}, event("c", {"id": 1, "v": "x"}, 5)),
        ({"id": 2}, event("c", {"id": 2, "v": "y"}, 5, table="u")),
        (of_database, statement("ALTER TABLE t ADD x int", 6, "ALTER")),
        (of_database, {"schema": {"type": "struct"}, "payload": statement(None, 6, "ALTER")}),
        (of_database, statement("alter table t rename column a to b", 6, "ALTER")),
    )
    assert (done.events, done.heartbeats) == (2, 5)
    # Debezium leaves out the event of a truncation by default (skipped.operations=t): the statement is there.
    done = stream.take((of_database, statement("/* x */ truncate table `t`", 8)))
    assert done.events == 1
    assert (stream.rows("crm.p.t"), stream.rows("crm.p.u")) == ({}, {2: {"id": 2, "v": "y"}})
    stream.take((of_database, statement("DROP TABLE `u`", 9, "DROP", table="u")))
    assert stream.rows("crm.p.u") == {}
    stream.take((of_database, statement("DROP TABLE `w`", 10, "DROP", table="w")))
    for ddl, changes in (
        ("RENAME TABLE t TO u", ()),
        ("ALTER TABLE t RENAME TO u", ("ALTER",)),
        ("ALTER TABLE t TRUNCATE PARTITION p0", ("ALTER",)),
        ("DROP DATABASE s", ()),
        ("DROP TABLE t, u", ("DROP", "DROP")),
    ):
        with pytest.raises(InvalidUpdates, match=r"no event names.*rejects=FOLDER"):
            stream.take((of_database, statement(ddl, 12, *changes)))
