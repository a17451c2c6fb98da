"""`tidelake maintain`, and what `tidelake show` says of amplification."""

import contextlib
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager

import pyarrow as pa
import pytest

import inside
import tidelake
from clocks import SetClock
from tables import rows
from tidelake.cli import show
from tidelake.cli.watch import _merging
from tidelake.config import Config
from tidelake.env import Env
from tidelake.lake.catalog.catalog import Catalog
from tidelake.shard.upkeep.compactor import Workers
from tidelake.web import describe
from tied_process import tied

TIDELAKE = "from tidelake.cli.main import main; main()"
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])


@pytest.fixture
def place(tmp_path):
    """A lake with two collections of unmerged batches; a row was added and taken away again."""
    with tidelake.open(tmp_path / "lake", config=Config(merge_budget_s=0)) as lake:
        for name in ("orders", "users"):
            c = lake.create(name, SCHEMA, key=["id"])
            for n in range(6):
                c.append(rows(n))
            c.append(rows(0, _diff=[-1]))
            c.advance_since(6)
    return tmp_path / "lake"


def state(place, name):
    with tidelake.open(place) as lake:
        return lake.collection(name).state()


def contents(place, name):
    with tidelake.open(place) as lake:
        return lake.collection(name).snapshot().read_all()["id"].to_pylist()


def test_once_and_the_lists_leave_out_what_is_dropped_after_it_was_listed(run, place, monkeypatch):
    listed = Catalog.names
    with tidelake.open(place) as lake:
        first = listed(inside.catalog(lake))

    def late(catalog, known=None):
        monkeypatch.setattr(Catalog, "names", listed)
        with tidelake.open(place) as other:
            other.drop("orders")
        return first

    for command in (
        ("maintain", place, "--once"),
        ("ls", place),
        ("holds", place),
        ("retain", place, "--all", "3"),
    ):
        monkeypatch.setattr(Catalog, "names", late)
        done = run(*command, "--json")
        assert (done.code, done.err) == (0, ""), command
        assert {line["collection"] for line in json.loads(done.out)} <= {"users"}
    assert state(place, "users").spine.totals.runs == 1
    assert run("maintain", place, "orders", "--once").code == 2


def test_once_brings_all_collections_to_rest(run, place):
    done = run("maintain", place, "--once")
    assert (done.code, done.err) == (0, "")
    lines = [line.split() for line in done.out.splitlines()]
    assert [line[0] for line in lines[1:]] == ["orders", "users"]
    for name in ("orders", "users"):
        totals = state(place, name).spine.totals
        assert (totals.runs, totals.rows) == (1, 5)
        assert contents(place, name) == [1, 2, 3, 4, 5]


def test_once_with_json_has_keys_without_spaces(run, place):
    first, second = json.loads(run("maintain", place, "--once", "--json").out)
    assert all(re.fullmatch("[a-z_]+", key) for key in first)
    assert (first["collection"], second["collection"]) == ("orders", "users")
    told = {key: first[key] for key in ("complete", "runs", "updates", "space_amplification_at_most")}
    assert told == {"complete": True, "runs": 1, "updates": 5, "space_amplification_at_most": 1.0}
    assert first["merges"] >= 1 and first["updates_read"] >= 7 and first["bytes_written"] > 0
    assert first["updates_read"] > first["updates_written"] >= 5 and first["write_amplification"] > 1
    again, _ = json.loads(run("maintain", place, "--once", "--json").out)
    assert (again["merges"], again["complete"]) == (0, True)


def test_only_the_named_collections_are_maintained(run, place):
    assert run("maintain", place, "users", "--once").code == 0
    assert state(place, "users").spine.totals.runs == 1
    assert state(place, "orders").spine.totals.runs == 7


@pytest.mark.parametrize("once", [["--once"], []])
def test_an_unknown_collection_is_named_before_anything_is_done(run, place, once):
    answer = run("maintain", place, "orders", "user", *once)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err == "tidelake: no collection 'user'; the nearest names are 'users'\n"
    assert state(place, "orders").spine.totals.runs == 7


def test_an_empty_lake_has_nothing_to_maintain(run, tmp_path):
    tidelake.open(tmp_path / "lake").close()
    assert "no collections yet" in run("maintain", tmp_path / "lake", "--once").out
    assert json.loads(run("maintain", tmp_path / "lake", "--once", "--json").out) == []


def test_spark_needs_once(run, place):
    answer = run("maintain", place, "--spark")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err == "tidelake: --spark needs --once: a session is started for one round\n"
    assert state(place, "orders").spine.totals.runs == 7


@contextmanager
def started(place, *options):
    """The command in a process of its own, which is gone afterwards, whatever happens."""
    command = [sys.executable, "-c", TIDELAKE, "maintain", place, "--interval", "0.05", *options]
    # It flushes by itself.
    environment = {**os.environ, "PYTHONUNBUFFERED": ""}
    with subprocess.Popen(
        tied(*command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def lines_until(process, is_last):
    """What it says, up to a line; how many looks that takes is up to the machine."""
    lines = []
    for line in process.stdout:
        lines.append(line)
        if is_last(line):
            return lines
    raise AssertionError(f"it ended: {lines} {process.stderr.read()}")


def interrupted(process):
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    return process.returncode, err.strip()


def test_an_interrupt_ends_it_cleanly(place):
    with started(place) as process:
        first, *_ = lines_until(process, lambda line: line.startswith("users: "))
        assert re.match(r"orders: \d+ merges, \d+ updates became \d+, \d+\.\d s\n", first)
        # New work is found while it runs.
        append_ids(place, range(10, 14))
        wait_for_runs(place, "users", 1)
        assert interrupted(process) == (130, "tidelake: interrupted")
    assert contents(place, "users") == [1, 2, 3, 4, 5, 10, 11, 12, 13]


def test_with_json_it_says_a_line_for_each_look(place):
    with started(place, "--json") as process:
        told = [json.loads(line) for line in lines_until(process, lambda line: '"users"' in line)]
        assert interrupted(process) == (130, "tidelake: interrupted")
    assert {line["collection"] for line in told} == {"orders", "users"}
    assert all(line["merges"] >= 1 and line["updates_read"] >= 2 for line in told)


def append_ids(place, ids):
    with tidelake.open(place, config=Config(merge_budget_s=0)) as lake:
        for n in ids:
            lake.collection("users").append(rows(n))


def wait_for_runs(place, name, runs):
    deadline_s = time.monotonic() + 60
    while state(place, name).spine.totals.runs > runs:
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def test_it_ends_when_its_output_is_not_read(place):
    with started(place) as process:
        process.stdout.readline()
        process.stdout.close()
        deadline_s = time.monotonic() + 60
        number = itertools.count(100, 4)
        # What it says next has no reader.
        while process.poll() is None and time.monotonic() < deadline_s:
            first = next(number)
            append_ids(place, range(first, first + 4))
            time.sleep(0.3)
        assert process.wait(timeout=60) == 0
        assert process.stderr.read() == ""


def test_an_error_is_told_and_does_not_end_it(place):
    with tidelake.open(place, config=Config(merge_budget_s=0, inline_part_bytes=0)) as lake:
        lake.collection("orders").append(rows(*range(50, 60)))
    (damaged,) = place.rglob("*.parquet")
    whole = damaged.read_bytes()
    damaged.chmod(0o600)
    damaged.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with started(place) as process:
        # What can be merged of the damaged collection is merged, too.
        lines_until(process, lambda line: line.startswith("users: "))
        assert process.stderr.readline().startswith("tidelake: ")
        assert interrupted(process)[0] == 130


def test_show_tells_amplification(run, place):
    shown = json.loads(run("show", place, "users", "--json").out)
    assert shown["write_amplification"] == 1.0
    # Seven runs of one row each show no bound.
    assert shown["space_amplification_at_most"] is None
    assert all(" " not in key for key in shown)
    assert all(" " not in key for batch in shown["spine"] for key in batch)
    header, line, *_ = run("show", place, "users").out.splitlines()
    assert "write amplification" in header and "space amplification at most" in header
    assert line.split()[-2:] == ["1.0", "–"]
    run("maintain", place, "users", "--once")
    shown = json.loads(run("show", place, "users", "--json").out)
    assert shown["write_amplification"] > 1 and shown["space_amplification_at_most"] == 1.0


def test_show_tells_merges_under_way(run, place):
    config = Config(merge_budget_s=0, merge_claim_rows=0)

    def stop(_tasks):
        raise KeyboardInterrupt

    with tidelake.open(place, config=config) as lake, pytest.raises(KeyboardInterrupt):
        lake.collection("users").merge(Workers(stop))
    with tidelake.open(place, read_only=True) as lake:
        users, (held,) = lake.collection("users"), lake.collection("users").state().claims.values()
        for left_ms, count in ((1, 1), (0, 0)):
            clock = SetClock(held.expires_ms - left_ms)
            assert len(show.claims(users.state(), clock.now_ms())) == count
            with tidelake.open(place, read_only=True, env=Env(clock=clock)) as there:
                found = describe.collection(there.collection("users"), {})["running"]
                assert len(found) == len(_merging(there)) == count
                gauges = there.measure(["users"])["users"]
                assert gauges["collection.merges.running"] == count
                assert gauges["collection.compact"] == 0 or not count
    (claim,) = json.loads(run("show", place, "users", "--json").out)["claims"]
    assert (claim["chunks"], claim["done"]) == (1, 0)
    assert "merges under way" in run("show", place, "users").out
    (line,) = json.loads(run("maintain", place, "users", "--once", "--json").out)
    assert line["complete"] is False


@pytest.mark.full
def test_an_append_that_had_to_merge_first_says_how_long(run, place, tmp_path):
    more = tmp_path / "more.jsonl"
    more.write_text('{"id": 1000, "v": "x"}\n')
    (quick,) = json.loads(run("append", place, "users", more, "--time", "100", "--json").out)
    assert "waited_s" not in quick
    with tidelake.open(place, config=Config(merge_budget_s=0, runs_max=10**6)) as lake:
        for n in range(150):
            lake.collection("users").append(rows(n))
    (slow,) = json.loads(run("append", place, "users", more, "--time", "1000", "--json").out)
    assert slow["waited_s"] > 0


@pytest.mark.full
@pytest.mark.spark
def test_spark_merges_all_collections_in_the_jobs_of_one_session(run, place, spark, monkeypatch):
    # The session of the tests goes on.
    monkeypatch.setattr(type(spark), "stop", lambda _: None)
    done = run("maintain", place, "--once", "--spark", "--json")
    assert [(one["collection"], one["runs"], one["complete"]) for one in json.loads(done.out)] == [
        ("orders", 1, True),
        ("users", 1, True),
    ]
    assert contents(place, "orders") == contents(place, "users") == [1, 2, 3, 4, 5]


def test_settings_of_a_lake_are_shown_and_changed(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tidelake.open("lake").close()
    (shown,) = run("settings", "lake", "--json").json
    assert shown == {
        "lease_s": 900.0,
        "garbage_age_s": 600.0,
        "upload_age_s": 86_400.0,
        "max_ahead_s": 86_400.0,
        "token_age_s": 2_592_000.0,
    }
    (changed,) = run("settings", "lake", "upload_age_s=2592000", "lease_s=60", "--json").json
    assert (changed["upload_age_s"], changed["lease_s"]) == (2_592_000.0, 60.0)
    with tidelake.open("lake") as lake:
        assert lake.settings().upload_age_s == 2_592_000.0
    for wrong in ("upload_age=5", "upload_age_s", "upload_age_s=soon", "upload_age_s=-1"):
        answer = run("settings", "lake", wrong)
        assert answer.code == 2 and "upload_age" in answer.err


def test_metrics_are_answered_while_it_goes_on(place):
    pytest.importorskip("prometheus_client")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    command = [sys.executable, "-c", TIDELAKE, "maintain", place, "--interval", "0.1", "--metrics", str(port)]
    with subprocess.Popen(tied(*command)) as running:
        text = ""
        while 'tidelake_collection_updates{collection="users"} 5.0' not in text:
            assert running.poll() is None
            time.sleep(0.05)
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer,
            ):
                text = answer.read().decode()
        assert "tidelake_merge_total" in text
        # A page of another site whose name leads here.
        elsewhere = {"Host": f"evil.example:{port}"}
        with pytest.raises(urllib.error.HTTPError, match="421"):
            urllib.request.urlopen(
                urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers=elsewhere)
            )
        running.terminate()


@pytest.mark.parametrize("address", ["", "x", "1.2.3.4:", "1:99999", "-1", "127.0.0.1:٣"])
def test_an_address_that_is_none_is_refused_by_name(run, place, address):
    done = run("maintain", place, f"--metrics={address}")
    assert done.code == 2
    assert "--metrics" in done.err


def test_metrics_of_one_round_are_refused_and_so_is_a_port_in_use(run, place):
    pytest.importorskip("prometheus_client")
    assert run("maintain", place, "--once", "--metrics", "9464").code == 2
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = run("maintain", place, "--metrics", taken.getsockname()[1])
    assert done.code == 5
    assert "choose another port" in done.err
