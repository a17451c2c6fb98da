"""Times on the command line: texts in tables, numbers in JSON and files, timestamps on request; `history`."""

import json
from datetime import date

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tidelake

NOON = 1_793_534_400_000
# Far after the year 9999, and after the last one that Arrow has a text for.
FAR = 10**18


@pytest.fixture
def prices(tmp_path, monkeypatch):
    """A lake `cl` whose collection `prices` has times of a clock."""
    monkeypatch.chdir(tmp_path)
    schema = pa.schema([pa.field("sku", pa.string(), nullable=False), ("price", pa.float64())])
    with tidelake.open(tmp_path / "cl") as lake:
        # The tests may run before that day.
        lake.settings(max_ahead_s=3_000_000_000)
        made = lake.create("prices", schema, key=["sku"], time="ms")
        tea = {"sku": ["tea"], "price": [4.5]}
        made.append(pa.table({**tea, "_time": [NOON]}), upper=NOON + 240_000)
        made.append(
            pa.table(
                {"sku": ["tea", "tea"], "price": [4.5, 5.0], "_time": [NOON + 240_000] * 2, "_diff": [-1, 1]}
            ),
            upper=NOON + 240_001,
        )
        yield made


def test_tables_show_times_as_people_write_them_and_json_as_they_are_stored(run, prices):
    answer = run("snapshot", "cl", "prices", "--as-of", str(NOON))
    assert "2026-11-01 12:00Z" in answer.out and str(NOON) not in answer.out
    assert run("snapshot", "cl", "prices", "--as-of", str(NOON), "--json").lines[0]["_time"] == NOON
    assert str(NOON) in run("snapshot", "cl", "prices", "--as-of", str(NOON), "--times", "int64").out
    stamped = run("snapshot", "cl", "prices", "--as-of", str(NOON), "--times", "timestamp", "--json").lines[0]
    assert stamped["_time"] == "2026-11-01 12:00:00.000Z"
    changed = run("changes", "cl", "prices", str(NOON), str(NOON + 240_000))
    assert changed.out.count("2026-11-01 12:04Z") == 2


def test_files_have_numbers_unless_asked(run, prices, tmp_path):
    run("snapshot", "cl", "prices", "--out", "plain.parquet")
    run("snapshot", "cl", "prices", "--out", "asked.parquet", "--times", "timestamp")
    assert pq.read_schema(tmp_path / "plain.parquet").field("_time").type == pa.int64()
    assert pq.read_schema(tmp_path / "asked.parquet").field("_time").type == pa.timestamp("ms", "UTC")


def test_frontiers_holds_and_wall_clocks_are_texts_in_tables_and_numbers_in_json(run, prices):
    with prices.reader("a report"):
        prices.retain(240_000)
        listed, shown, held = (
            run(*words).out for words in (["ls", "cl"], ["show", "cl", "prices"], ["holds", "cl"])
        )
        assert "2026-11-01 12:04:00.001Z" in listed and "2026-11-01 12:04:00.001Z" in shown
        assert "retention: since follows upper at a distance of 4 minutes" in shown
        assert "1970-01-01 00:00Z" in held and "opened " in held and "_ms" not in held + shown
        assert run("ls", "cl", "--json").json[0]["upper"] == [NOON + 240_001]
        line = run("holds", "cl", "--json").json[0]
        assert line["since"] == [0] and isinstance(line["opened_ms"], int)
    kept = run("retain", "cl", "prices", "2h")
    assert "2 hours" in kept.out
    assert run("retain", "cl", "prices", "2h", "--json").json[0]["retention"] == 7_200_000


def test_a_time_without_a_date_is_shown_as_the_number(run, prices):
    prices.stage(pa.table({"sku": ["far"], "price": [1.0], "_time": [FAR]}))
    assert str(FAR) in run("snapshot", "cl", "prices", "--staged").out
    assert str(FAR) in run("history", "cl", "prices", "far", "--staged").out
    assert str(FAR) in run("show", "cl", "prices").out
    far = ("history", "cl", "prices", "far", "--staged", "--json")
    assert run(*far).lines[0]["_time"] == FAR
    refused = run(*far, "--times", "timestamp")
    assert refused.code == 2 and "outside of the years 1 to 9999" in refused.err


def test_errors_tell_times_as_people_write_them(run, prices):
    answer = run("snapshot", "cl", "prices", "--as-of", str(NOON + 480_000), "--timeout", "0")
    assert answer.code == 4
    assert "2026-11-01 12:08Z" in answer.err and "2026-11-01 12:04Z" in answer.err


def test_the_history_of_a_key_is_in_the_order_of_time(run, prices):
    lines = run("history", "cl", "prices", "tea", "--json").lines
    assert [(line["_time"], line["_diff"], line["price"]) for line in lines] == [
        (NOON, 1, 4.5),
        (NOON + 240_000, -1, 4.5),
        (NOON + 240_000, 1, 5.0),
    ]
    later = run("history", "cl", "prices", "tea", "--lower", "2026-11-01 12:04Z", "--limit", "1", "--json")
    assert [line["_diff"] for line in later.lines] == [-1]
    table = run("history", "cl", "prices", "tea", "--upper", str(NOON + 1), "--columns", "price")
    assert table.out.split() == ["price", "_time", "_diff", "4.5", "2026-11-01", "12:00Z", "1"]
    assert run("history", "cl", "prices", "mug").out == "no rows\n"


def test_keys_of_the_command_line_have_the_types_of_their_columns(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    types = ["int64", "date32", "decimal128(6,2)", "binary", "bool"]
    columns = [
        word for i, kind in enumerate(types) for word in ("--column", f"k{i}:{kind}", "--key", f"k{i}")
    ]
    assert run("create", "cl", "c", *columns).code == 0
    row = {"k0": 7, "k1": "2026-11-01", "k2": "1.50", "k3": "00ff", "k4": True, "_time": 3}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    assert run("append", "cl", "c", "rows.jsonl").code == 0
    words = ["7", "2026-11-01", "1.5", "00ff", "true"]
    assert run("history", "cl", "c", *words, "--json").lines == [{**row, "_diff": 1}]
    few = run("history", "cl", "c", "7")
    assert (
        few.code == 2 and "the key columns are 'k0', 'k1', 'k2', 'k3', 'k4': give a KEY for each" in few.err
    )
    wrong = run("history", "cl", "c", "seven", *words[1:])
    assert wrong.code == 2 and "KEY 'seven' is no int64, the type of key column 'k0'" in wrong.err


def test_a_tail_gives_timestamps_on_request(run, prices):
    lines = run("tail", "cl", "prices", "--once", "--times", "timestamp").lines
    assert lines[0]["_time"] == "2026-11-01 12:04:00.000Z"
    assert lines[-1] == {"_upper": [NOON + 240_001]}


def test_days_are_dates_on_the_command_line(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run("create", "cl", "rates", "--key", "currency", "--column", "currency:string", "--time", "date")
    (tmp_path / "rates.csv").write_text("currency\nCHF\n")
    run("append", "cl", "rates", "rates.csv", "--time", "2024-02-01")
    assert "2024-02-02" in run("show", "cl", "rates").out
    answer = run("snapshot", "cl", "rates", "--as-of", "2024-02-01")
    assert "2024-02-01" in answer.out and "zone" not in answer.err
    line = run("snapshot", "cl", "rates", "--times", "timestamp", "--json").lines[0]
    assert line == {"currency": "CHF", "_time": "2024-02-01", "_diff": 1}
    assert "2024-02-01" in run("changes", "cl", "rates", "2024-01-31", "now").out
    assert "7 days" in run("retain", "cl", "rates", "7d").out
    assert "not a whole number of days" in run("retain", "cl", "rates", "36h").err
    refused = run("snapshot", "cl", "rates", "--as-of", "2024-02-01 12:00")
    assert "is not at midnight UTC" in refused.err
    assert "give a whole number, a date, now" in run("snapshot", "cl", "rates", "--as-of", "x").err
    pq.write_table(pa.table({"currency": ["USD"], "_time": [date(2024, 2, 2)]}), tmp_path / "more.parquet")
    run("append", "cl", "rates", "more.parquet")
    assert run("snapshot", "cl", "rates", "--json").lines[1]["_time"] == 19_755
