"""SQL in this process tells nothing of the machine, and takes texts for dates if they are some."""

import datetime
import uuid

import pytest

pytest.importorskip("duckdb")

import tidelake
from tidelake.errors import UsageError


@pytest.fixture
def lake():
    with tidelake.open(f"memory://{uuid.uuid4().hex}") as opened:
        opened.create("c", {"k": "int64", "d": "date32", "t": "timestamp[us, UTC]", "v": "string"}, key=["k"])
        opened["c"].append({"k": 1, "d": None, "t": None, "v": "2024-01-01"})
        yield opened


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM duckdb_settings()",
        "SELECT Current_Setting('memory_limit')",
        'SELECT * FROM "duckdb_settings" ()',
        "SELECT * FROM query('SELECT * FROM duckdb_' || 'settings()')",
        "SELECT * FROM pragma_database_size()",
        "INSERT INTO c (k, v) SELECT 9, current_setting('temp_directory')",
    ],
)
def test_settings_of_the_machine_are_out_of_reach(lake, text):
    with pytest.raises(UsageError, match="tells of this process"):
        lake.sql(text)
    assert lake["c"].snapshot().read_all().num_rows == 1


def test_texts_and_columns_may_have_such_words(lake):
    found = lake.sql("SELECT 'current_setting, query (old)' AS query FROM c WHERE v <> 'duckdb_settings'")
    assert found.to_arrow().to_pylist() == [{"query": "current_setting, query (old)"}]


def test_texts_that_are_dates_become_dates(lake):
    lake.sql("UPDATE c SET d = v, t = '2024-02-03 10:00Z'")
    (row,) = lake["c"].to_arrow().to_pylist()
    assert row["d"] == datetime.date(2024, 1, 1)
    assert row["t"] == datetime.datetime(2024, 2, 3, 10, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("UPDATE c SET d = 'no date'", "a text is no date32"),
        ("UPDATE c SET t = '2024-02-03 10:00'", "a text is no timestamp"),
        ("UPDATE c SET d = 'infinity'::DATE", "'infinity' does not fit column 'd'"),
        ("INSERT INTO c (k, t) VALUES (2, '-infinity'::TIMESTAMPTZ)", "'infinity' does not fit column 't'"),
    ],
)
def test_what_is_no_date_is_refused_and_nothing_is_written(lake, change, reason):
    before = lake["c"].state().seqno
    with pytest.raises(UsageError, match=reason):
        lake.sql(change)
    assert lake["c"].state().seqno == before


def test_an_insert_at_tuple_times_says_what_it_needs(lake):
    lake.create("p", {"k": "int64"}, key=["k"], time="tuple(2)")
    with pytest.raises(
        UsageError, match=r"computed from contents .*SQL.* needs times that follow each other"
    ):
        lake.sql("INSERT INTO p VALUES (1)")


def test_a_group_is_not_made_of_one_collection_twice(lake):
    with pytest.raises(UsageError, match="'c' is named twice"):
        lake.join(["c", "c"])


def test_a_home_of_no_user_is_no_directory():
    with pytest.raises(UsageError, match="there is no user 'nosuchuser'"):
        tidelake.open("~nosuchuser/lake")
