"""`Lake.sql` changes collections: INSERT, UPDATE, DELETE and MERGE, as DuckDB does it, in one commit."""

import uuid
from collections import Counter
from datetime import date
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidelake
from threads import at_once
from tidelake import Frontier
from tidelake.errors import (
    CollectionIsView,
    InvalidUpdates,
    UpdateBeforeLower,
    UsageError,
)
from tidelake.lake.api import sqlchanges
from tiers import examples

duckdb = pytest.importorskip("duckdb")

SCHEMA = {
    "id": "int64 not null",
    "n": "int32",
    "price": "float64",
    "name": "string",
    "paid": "decimal(10,2)",
    "day": "date32",
}
ROWS = [
    {"id": 1, "n": 1, "price": 1.5, "name": "a", "paid": Decimal("1.25"), "day": date(2026, 1, 1)},
    {"id": 2, "n": None, "price": None, "name": None, "paid": None, "day": None},
    {"id": 3, "n": 3, "price": 4.0, "name": "c", "paid": Decimal("3.00"), "day": date(2026, 1, 3)},
    {"id": 3, "n": 3, "price": 4.0, "name": "c", "paid": Decimal("3.00"), "day": date(2026, 1, 3)},
]


@pytest.fixture
def lake():
    with filled() as opened:
        yield opened


def filled():
    lake = tidelake.open(f"memory://{uuid.uuid4().hex}")
    lake.create("t", SCHEMA, key=["id"]).append(ROWS)
    lake.create("s", {"k": "int64 not null", "v": "int32"}, key=["k"]).append(
        [{"k": 1, "v": 10}, {"k": 3, "v": 30}, {"k": 7, "v": None}]
    )
    return lake


def held(collection):
    found = Counter()
    for row in collection.snapshot().to_arrow().to_pylist():
        *values, _time, count = row.values()
        found[tuple(values)] += count
    return found


def told(answer):
    return answer.to_arrow().to_pylist()[0]


WHERE = [
    "",
    " WHERE id = 3",
    " WHERE n IS NULL OR price > 2",
    " WHERE t.id IN (SELECT k FROM s WHERE v > 10)",
    " WHERE name LIKE '%c' -- a remark",
    " WHERE id >= (SELECT max(id) FROM t)",
    " WHERE CASE WHEN n > 1 THEN TRUE END",
]
SETS = [
    "n = n + 1",
    "price = 2",
    "name = 'x;y', n = NULL",
    "paid = paid * 2",
    "id = id + 10",
    "day = day + 1",
]
SETS += ["price = (SELECT max(v) FROM s)", "name = upper(t.name), price = n / 2"]
SOURCES = ["s", "(SELECT k, v FROM s WHERE k < 5) AS s", "(VALUES (2, 5), (9, 9)) AS s(k, v)"]
TWICE = "(VALUES (3, 1), (3, 2)) AS s(k, v)"
MATCHED = [
    " WHEN MATCHED THEN UPDATE SET n = s.v",
    " WHEN MATCHED AND s.v > 10 THEN DELETE WHEN MATCHED THEN UPDATE SET price = s.v, name = 'm'",
    " WHEN MATCHED THEN DELETE",
    "",
]
MISSED = [
    " WHEN NOT MATCHED THEN INSERT (id, n) VALUES (s.k, s.v)",
    " WHEN NOT MATCHED AND s.v IS NULL THEN INSERT (id, name) VALUES (s.k, 'new')",
    "",
]
INSERTS = [
    "INSERT INTO t VALUES (8, 1, 2.5, 'z', 1.5, DATE '2026-02-01'), (8, 1, 2.5, 'z', 1.5, DATE '2026-02-01')",
    "INSERT INTO t (id, price) SELECT max(id) + 1, avg(price) FROM t",
    "INSERT INTO t BY NAME SELECT k AS id, v AS n FROM s",
    "WITH w AS (SELECT k + 20 AS k FROM s) INSERT INTO t (id) SELECT k FROM w",
    "INSERT INTO T SELECT * FROM t WHERE id = 3",
]


@st.composite
def statements(draw):
    kind = draw(st.sampled_from(["insert", "update", "delete", "merge"]))
    if kind == "insert":
        return draw(st.sampled_from(INSERTS))
    if kind == "update":
        return f"UPDATE t SET {draw(st.sampled_from(SETS))}{draw(st.sampled_from(WHERE))}"
    if kind == "delete":
        return f"DELETE FROM t{draw(st.sampled_from(WHERE))}"
    matched, missed = draw(st.sampled_from(MATCHED)), draw(st.sampled_from(MISSED))
    matched = MATCHED[0] if not matched + missed else matched
    return f"MERGE INTO t USING {draw(st.sampled_from(SOURCES))} ON t.id = s.k{matched}{missed}"


@pytest.mark.promise(
    "INSERT, UPDATE, DELETE and MERGE of `Lake.sql` leave what DuckDB leaves in a table of its own",
    rule="`lake/api/sqlchanges.py`",
)
@settings(max_examples=examples(25), deadline=None)
@given(st.lists(statements(), min_size=1, max_size=4))
def test_statements_leave_what_duckdb_leaves_in_its_own_table(texts):
    with filled() as lake, duckdb.connect() as engine:
        for name in ("t", "s"):
            whole = lake.collection(name).to_arrow()
            engine.register(f"{name}_given", whole)
            engine.execute(f"CREATE TABLE {name} AS SELECT * FROM {name}_given")
        for text in texts:
            try:
                engine.execute(text)
            except duckdb.Error:
                with pytest.raises(UsageError):
                    lake.sql(text)
                continue
            lake.sql(text)
            assert held(lake.collection("t")) == Counter(engine.execute("FROM t").fetchall()), text


def test_one_commit_with_author_time_and_token(lake):
    given = {"author": "ann", "message": "order 7", "time": 9, "token": "x"}
    c = lake.collection("t")
    before = len(c.commits(100))
    assert told(lake.sql("UPDATE t SET n = 5 WHERE id < 3", **given)) == {"updates": 4, "upper": "[10]"}
    last = c.commits(1)[0]
    assert (last.author, last.message, len(c.commits(100))) == ("ann", "order 7", before + 1)
    assert told(lake.sql("UPDATE t SET n = 5 WHERE id < 3", **given)) == {"updates": 0, "upper": "[10]"}
    # Nothing to change, nothing to commit.
    assert told(lake.sql("DELETE FROM t WHERE id = 99"))["updates"] == 0 and c.upper == Frontier.of(10)
    with pytest.raises(UpdateBeforeLower):
        lake.sql("DELETE FROM t", time=3)
    with pytest.raises(UsageError, match="as_of is for queries"):
        lake.sql("DELETE FROM t", as_of=1)
    with pytest.raises(UsageError, match="time, token, author and message are for statements that change"):
        lake.sql("FROM t", token="x")


def test_parameters_of_each_kind(lake):
    lake.sql("UPDATE t SET name = ? WHERE id = ?", args=["it's", 1])
    lake.sql("INSERT INTO t (id, name) VALUES ($i, $n)", args={"i": 5, "n": "$i"})
    text = "MERGE INTO t USING s ON t.id = s.k AND s.k = $k WHEN MATCHED THEN UPDATE SET name = $n"
    lake.sql(text, args={"k": 3, "n": "m"})
    found = dict(lake.sql("SELECT DISTINCT id, name FROM t").to_arrow().to_pandas().itertuples(index=False))
    assert found == {1: "it's", 2: None, 3: "m", 5: "$i"}
    with pytest.raises(UsageError, match=r"write \$name"):
        lake.sql(text.replace("$k", "?").replace("$n", "?"), args=[3, "m"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("UPDATE t SET n = 1.5", "does not fit column 'n'"),
        ("UPDATE t SET n = 3000000000", "does not fit column 'n'"),
        ("UPDATE t SET paid = 0.125", "does not fit column 'paid'"),
        ("UPDATE t SET day = '2026-13-01'", "a text is no date32.*, as column 'day' is"),
        ("UPDATE t SET id = NULL", "must not be null"),
        ("UPDATE t SET nope = 1", "no one column 'nope'"),
        ("UPDATE t SET n = 1, N = 2", "gets two values"),
        ("INSERT INTO t VALUES (1)", "rows of 1 values for the 6 columns of 't'"),
        ("INSERT INTO t (id, id) VALUES (1, 2)", "gets two values"),
        ("INSERT INTO t (id) SELECT id FROM s", "read here has a column 'id': 's' has 'k', 'v'$"),
        ("INSERT OR REPLACE INTO t VALUES (1)", "no OR"),
        ("INSERT INTO t (id) VALUES (1) ON CONFLICT DO NOTHING", "no ON CONFLICT"),
        ("INSERT INTO t (id) VALUES (1) RETURNING id", "no RETURNING"),
        ("UPDATE t SET n = s.v FROM s WHERE s.k = t.id", "MERGE INTO"),
        ("DELETE FROM t FOR VERSION AS OF 0", "only the newest contents"),
        (f"MERGE INTO t USING {TWICE} ON t.id = s.k WHEN MATCHED THEN UPDATE SET n = s.v", "several rows"),
        ("MERGE INTO t USING s ON t.id = s.k WHEN NOT MATCHED BY SOURCE THEN DELETE", "collection.replace"),
        ("UPDATE t SET n = 1 WHERE nope", "no table .* has a column 'nope'"),
        ("DELETE FROM t; DELETE FROM s", "2 statements"),
        ("DELETE FROM t WHERE TRUE) OR (SELECT count(*) FROM read_text('x')) > 0 --", "cannot be parsed"),
        ("DELETE FROM t WHERE id IN (SELECT 1 FROM read_text('/etc/hostname'))", "DuckDB"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_says_why_and_changes_nothing(lake, text, said):
    before = held(lake.collection("t")), lake.collection("t").upper
    with pytest.raises(UsageError, match=said):
        lake.sql(text)
    assert (held(lake.collection("t")), lake.collection("t").upper) == before


def test_views_and_tuples_and_empty_collections(lake):
    lake.view("w", "SELECT count(*) AS n FROM t")
    with pytest.raises(CollectionIsView):
        lake.sql("DELETE FROM w")
    pairs = lake.create("pairs", SCHEMA, key=["id"], time="tuple(2)")
    with pytest.raises(UsageError, match="follow each other"):
        lake.sql("INSERT INTO pairs (id) VALUES (1)")
    assert pairs.upper == Frontier.of((0, 0))
    empty = lake.create("e", SCHEMA, key=["id"])
    lake.sql("INSERT INTO e (id) SELECT id + 1 FROM e")
    lake.sql("UPDATE e SET n = 1")
    lake.sql("INSERT INTO e (id) VALUES (1)")
    assert empty.to_arrow()["id"].to_pylist() == [1]
    lake.sql("DELETE FROM e")
    assert not empty.to_arrow().num_rows


def test_rows_that_go_are_taken_as_they_are_stored(lake):
    """Whatever DuckDB makes of their values, they cancel."""
    exact = {"id": "int64 not null", "x": "float64", "at": "timestamp[ns]", "v": "int64"}
    c = lake.create("exact", exact, key=["id"])
    c.append(
        pa.table(
            {
                "id": [1, 2, 3],
                "x": [-0.0, float("nan"), float("inf")],
                "at": pa.array([1, 2**62, None], pa.timestamp("ns")),
                "v": [1, 2, 3],
            }
        )
    )
    lake.sql("UPDATE exact SET v = v + 1")
    assert c.negative_rows() == 0 and c.to_arrow()["v"].to_pylist() == [2, 3, 4]
    lake.sql("DELETE FROM exact")
    assert c.negative_rows() == 0 and not c.to_arrow().num_rows


@pytest.mark.promise(
    "`Lake.sql` changes the newest contents: if another writer commits first, it runs the statement again",
    rule="`ComputedChange` in `shard/writing/derived.py`",
    also=["::test_a_change_between_the_look_and_the_commit_is_seen"],
)
def test_counters_of_several_threads_lose_nothing(lake):
    c = lake.create("counter", {"id": "int64 not null", "v": "int64"}, key=["id"])
    c.append({"id": 1, "v": 0})

    def count(_):
        for _ in range(2):
            lake.sql("UPDATE counter SET v = v + 1")
            lake.sql("INSERT INTO counter SELECT max(id) + 1, 0 FROM counter")

    at_once(count, range(3))
    assert c.to_arrow()["id"].to_pylist() == list(range(1, 8))
    assert c.lookup({"id": 1})["v"].to_pylist() == [6]


@pytest.mark.parametrize(
    "text",
    ["UPDATE t SET n = 7", "DELETE FROM t", "INSERT INTO t (id, n) SELECT count(*), 7 FROM t",
     "MERGE INTO t USING (SELECT DISTINCT id FROM t) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET n = 7"],
)  # fmt: skip
def test_a_change_between_the_look_and_the_commit_is_seen(lake, monkeypatch, text):
    c, meanwhile = lake.collection("t"), [{"id": 9}]
    read = sqlchanges.run

    def run(*given, **how):
        if meanwhile:
            c.append({**ROWS[1], **meanwhile.pop()})
        return read(*given, **how)

    monkeypatch.setattr(sqlchanges, "run", run)
    lake.sql(text)
    found = held(c)
    assert not any(count < 0 for count in found.values())
    if text.startswith("INSERT"):
        assert (5, 7) in {row[:2] for row in found}
    else:
        assert all(row[1] == 7 for row in found) and (9 in {row[0] for row in found}) == bool(found)


def test_a_change_in_a_group_is_a_transaction_of_one(lake):
    c = lake.create("g", SCHEMA, key=["id"])
    lake.join(["t", "g"])
    lake.write({"g": ROWS, "t": [{**ROWS[0], "id": 50}]})
    lake.sql("UPDATE g SET n = 1 WHERE id = 2")
    lake.sql("INSERT INTO g SELECT * FROM t WHERE id = 50")
    assert {row[0]: row[1] for row in held(c)} == {1: 1, 2: 1, 3: 3, 50: 1}


def test_a_row_that_does_not_fit_is_refused_before_anything_is_written(lake):
    with pytest.raises(InvalidUpdates):
        lake.sql("INSERT INTO t (n) VALUES (1)")
    assert lake.collection("t").upper == Frontier.of(1)


STAGED = [
    {"k": 1, "v": 10, "_time": 6, "_diff": -1},
    {"k": 1, "v": 11, "_time": 6, "_diff": 1},
    {"k": 4, "v": 40, "_time": 7, "_diff": 1},
]


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("UPDATE c SET v = v + 1", {(1, 12): 1, (2, 21): 1, (4, 41): 1}),
        ("DELETE FROM c WHERE v > 10", {}),
        ("UPDATE c SET v = (SELECT max(v) FROM c) WHERE k = 1", {(1, 40): 1, (2, 20): 1, (4, 40): 1}),
        (
            "MERGE INTO c USING (VALUES (1, 0), (4, 0)) s(k, v) ON c.k = s.k WHEN MATCHED THEN UPDATE SET * "
            "WHEN NOT MATCHED THEN INSERT *",
            {(1, 0): 1, (2, 20): 1, (4, 0): 1},
        ),
    ],
)
def test_what_is_staged_up_to_the_time_of_a_change_is_changed_too(lake, text, left):
    staged = lake.create("c", {"k": "int64 not null", "v": "int64"}, key=["k"])
    staged.append([{"k": 1, "v": 10}, {"k": 2, "v": 20}], time=4)
    staged.stage(STAGED)
    lake.sql(text, time=10)
    assert held(staged) == left


def test_values_of_structs_are_one_value(lake):
    kind = pa.struct([("a", pa.int64()), ("b", pa.list_(pa.int64()))])
    nested = lake.create("c", pa.schema([pa.field("k", pa.int64(), False), ("x", kind)]), key=["k"])
    lake.sql("INSERT INTO c VALUES (1, {'a': 1, 'b': [1, 2]})")
    lake.sql("UPDATE c SET x = {'a': k + 1, 'b': [3, 4]}, k = 2 WHERE x = {'a': 1, 'b': [1, 2]}")
    lake.sql(
        "MERGE INTO c USING (VALUES (2), (3)) s(k) ON c.k = s.k "
        "WHEN MATCHED THEN UPDATE SET x = {a: 5, b: [6]} "
        "WHEN NOT MATCHED THEN INSERT (k, x) VALUES (s.k, {'a': 7, 'b': [8, 9]})"
    )
    rows = nested.to_arrow().to_pylist()
    assert rows == [{"k": 2, "x": {"a": 5, "b": [6]}}, {"k": 3, "x": {"a": 7, "b": [8, 9]}}]


@pytest.mark.parametrize(
    "text",
    [
        "UPDATE t SET n = count(*) OVER ()",
        "UPDATE t SET n = unnest([1])",
        "UPDATE t SET n = unnest([]::int[])",
        "UPDATE t SET n = max(n)",
        "MERGE INTO t USING s ON t.id = s.k WHEN MATCHED THEN UPDATE SET n = row_number() OVER ()",
        "MERGE INTO t USING s ON t.id = s.k WHEN NOT MATCHED THEN INSERT (id, n) VALUES (max(s.k), sum(s.v))",
        "MERGE INTO t USING s ON t.id = s.k WHEN NOT MATCHED THEN INSERT (id) VALUES (unnest([s.k, 50]))",
    ],
)
def test_a_value_is_of_one_row(lake, text):
    before = held(lake["t"])
    with pytest.raises(UsageError, match="is no value of one row: put it into a sub-query"):
        lake.sql(text)
    assert held(lake["t"]) == before


def test_a_merge_returns_no_rows(lake):
    with pytest.raises(UsageError, match="MERGE takes no RETURNING"):
        lake.sql("MERGE INTO t USING s ON t.id = s.k WHEN MATCHED THEN DELETE RETURNING *")


def test_null_and_nothing_inside_of_a_value_have_its_types(lake):
    kind = pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))])
    fields = [pa.field("k", pa.int64(), False), ("x", kind), ("l", pa.list_(pa.int64()))]
    nested = lake.create("c", pa.schema(fields), key=["k"])
    lake.sql("INSERT INTO c VALUES (1, {'a': NULL, 'b': []}, []), (2, {'a': NULL, 'b': NULL}, NULL)")
    lake.sql("UPDATE c SET l = [NULL], x = {'a': k, 'b': [NULL]} WHERE k = 2")
    assert nested.to_arrow().to_pylist() == [
        {"k": 1, "x": {"a": None, "b": []}, "l": []},
        {"k": 2, "x": {"a": 2, "b": [None]}, "l": [None]},
    ]
    with pytest.raises(InvalidUpdates, match="column 'x' has type"):
        lake.sql("UPDATE c SET x = {'z': NULL}")


def test_a_name_of_a_with_clause_takes_the_place_of_no_collection(lake):
    clause = "WITH tidelake_table_0 AS (SELECT 99 AS k), tidelake_table_1 AS (SELECT 98 AS k)"
    found = lake.sql(f"{clause} SELECT k FROM s ORDER BY k").to_arrow()
    assert found["k"].to_pylist() == [1, 3, 7]
    lake.sql(f"{clause} INSERT INTO t (id) SELECT k FROM s WHERE k > 3")
    assert max(lake["t"].to_arrow()["id"].to_pylist()) == 7


def test_a_row_whose_multiplicity_has_no_opposite_is_refused(lake):
    c = lake.create("c", {"k": "int64", "v": "int64"}, key=["k"])
    c.append({"k": [1], "v": [1], "_diff": [-(2**63)]})
    for change in ("UPDATE c SET v = 2", "DELETE FROM c"):
        with pytest.raises(InvalidUpdates, match="multiplicity -2\\^63"):
            lake.sql(change)
    with pytest.raises(InvalidUpdates, match="multiplicity -2\\^63"):
        c.upsert({"k": [1], "v": [2]})
    assert c.upper == Frontier.of(1)
