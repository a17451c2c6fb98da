"""The catalogue of metrics: what the page lists is what the code tells, and what is told is right."""

import logging
import re
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import get_args

import pyarrow as pa
import pytest

import inside
import tidelake
from threads import at_once
from tidelake.arrangement.merge.report import SpineReport
from tidelake.arrangement.overview import counters
from tidelake.config import Config
from tidelake.env import Counters, Env, Histogram
from tidelake.errors import CollectionNotFound, TidelakeWarning, UsageError
from tidelake.metrics import BOUNDS, BY_NAME, CATALOGUE
from tidelake.model.frontier import Frontier
from tidelake.state.life.holds import advance_since
from tidelake.store.layers import BlobOperation, LogOperation

REPOSITORY = Path(__file__).resolve().parent.parent
ROW = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])
# A call that tells something, and the names in it.
CALL = re.compile(r"(?:recorder\.(?:count|observe|gauge)|env(?:_here\(\))?\.failed|\b_?count)\(([^)]*)\)")
NAME = re.compile(r'"([a-z_]+(?:\.[a-z_]+)*)"')


def rows(*keys: int, time: int | None = None) -> pa.Table:
    made = {"k": pa.array(keys, pa.int64()), "v": [f"v{key}" for key in keys]}
    return pa.table(made if time is None else made | {"_time": [time] * len(keys)})


def told() -> set[str]:
    """The names in the code."""
    found: set[str] = set()
    for module in (REPOSITORY / "src" / "tidelake").rglob("*.py"):
        for call in CALL.findall(module.read_text(encoding="utf-8")):
            found |= set(NAME.findall(call))
    # Calls of other functions that are called count.
    found -= {name for name in found if "." not in name and name not in BY_NAME}
    return found


def test_every_name_in_the_code_is_in_the_catalogue() -> None:
    assert told() - set(BY_NAME) == set()


def test_every_name_of_the_catalogue_is_told(tmp_path: Path) -> None:
    operations = {*get_args(BlobOperation), *get_args(LogOperation)} - {"blob.read"}
    with tidelake.open(tmp_path / "lake") as lake:
        prices = lake.create("c", ROW, key=["k"], time="ms")
        prices.append(rows(1, time=4), upper=5)
        gauges = set(lake.measure()["c"])
        prices.lookup(pa.table({"k": [1]}))
        with prices.arrange(follow=False) as index:
            arranged = set(counters(index.report()))
        measured = {name for name, _ in lake.recorder.gauges}
    entries = {f"log.{name}.{what}" for name in ("scan", "newer") for what in ("entries", "bytes")}
    caches = {name for name in measured if name.endswith((".hits", ".misses"))}
    range_cache = {"range.cache.hits", "range.cache.misses"}
    by_code = told() | operations | gauges | arranged | entries | caches | range_cache
    assert {metric.name for metric in CATALOGUE} - by_code - {"gauges.refused"} == set()
    assert by_code & measured >= gauges


def test_names_are_unique_and_have_the_form_of_exported_ones() -> None:
    assert len(BY_NAME) == len(CATALOGUE) == len({metric.exported for metric in CATALOGUE})
    for metric in CATALOGUE:
        assert re.fullmatch(r"tidelake(_[a-z]+)+", metric.exported), metric
        assert metric.kind != "histogram" or metric.unit in BOUNDS
        assert metric.kind == "gauge" or not metric.label


def test_writes_are_counted(tmp_path: Path) -> None:
    with tidelake.open(tmp_path / "lake", config=Config(merge_budget_s=0, inline_part_bytes=0)) as lake:
        c = lake.create("c", ROW, key=["k"])
        counts = lake.recorder.counts
        before = dict(counts)
        c.append(rows(1, 2, 3))
        c.append(rows(4))
        assert counts["append"] - before.get("append", 0) == 2
        assert counts["append.rows"] == 4
        assert counts["append.bytes"] == c.state().written.appended_bytes > 0
        assert counts["commit"] >= 2
        assert counts["commit.commands"] == counts["commit"]
        assert sum(lake.recorder.histograms["commit.seconds"].counts) >= 2
        c.advance_since(1)
        report = c.merge()
        assert counts["merge"] >= 1
        assert counts["merge.rows.read"] == report.before.rows == 4
        assert counts["merge.rows.written"] == report.after.rows == 4
        assert sum(lake.recorder.histograms["merge.seconds"].counts) == counts["merge"]


def test_a_commit_that_another_process_was_before_is_a_conflict(tmp_path: Path) -> None:
    with tidelake.open(tmp_path / "lake") as one, tidelake.open(tmp_path / "lake") as other:
        mine = one.create("c", ROW, key=["k"])
        theirs = other.collection("c")
        mine.append(rows(1))
        assert one.recorder.counts["commit.conflict"] == 0
        appends = one.recorder.counts["append"]
        theirs.append(rows(2))
        # As it was known here; the methods of a collection look at the newest state first.
        inside.shard(mine).run(partial(advance_since, since=Frontier.of(1)))
        assert one.recorder.counts["commit.conflict"] == 1
        assert one.recorder.counts["append"] == appends


def test_gauges_are_those_of_the_newest_state_whichever_process_wrote(tmp_path: Path) -> None:
    with tidelake.open(tmp_path / "lake") as lake, tidelake.open(tmp_path / "lake") as other:
        lake.create("c", ROW, key=["k"])
        other.collection("c").append(rows(1, 2, time=6), upper=7)
        with lake.collection("c").reader("report"):
            found = lake.measure()["c"]
        assert found["collection.updates"] == 2
        assert found["collection.history.times"] == 7
        assert found["collection.holds"] == 1
        assert found["collection.hold.age.s"] >= 0
        assert found["collection.compact"] == 1
        assert "collection.behind.s" not in found
        assert {name for name, label in lake.recorder.gauges if label == "c"} == set(found)


def test_how_far_a_clock_is_behind(tmp_path: Path) -> None:
    class At:
        def now_ms(self) -> int:
            return 1_000_000

        def monotonic_s(self) -> float:
            return 0.0

        def sleep(self, seconds: float) -> None:
            raise AssertionError

    with tidelake.open(tmp_path / "lake", env=Env(clock=At())) as lake:
        for unit, upper in (("ms", 900_000), ("us", 900_000_000)):
            lake.create(unit, ROW, key=["k"], time=unit).append(rows(1, time=0), upper=upper)
        lake.create("date", ROW, key=["k"], time="date")
        assert [found["collection.behind.s"] for found in lake.measure().values()] == [1000.0, 100.0, 100.0]


def test_upkeep_measures_and_forgets_what_was_dropped(tmp_path: Path) -> None:
    with tidelake.open(tmp_path / "lake") as lake:
        lake.create("c", ROW, key=["k"]).append(rows(1))
        with lake.upkeep(interval_s=0.01):
            _until(lambda: ("collection.updates", "c") in lake.recorder.gauges)
            lake.drop("c")
            _until(lambda: not any(label == "c" for _, label in lake.recorder.gauges))


def test_a_damaged_collection_is_left_out_of_the_others(tmp_path: Path) -> None:
    with tidelake.open(tmp_path / "lake") as lake:
        lake.create("sound", ROW, key=["k"]).append(rows(1))
        damaged = lake.create("damaged", ROW, key=["k"])
        damaged.append(rows(1))
        log = tmp_path / "lake" / "log" / damaged.id / "log"
    log.write_bytes(b"x" * log.stat().st_size)
    with tidelake.open(tmp_path / "lake") as lake:
        for names in (None, ["damaged", "sound"]):
            with pytest.warns(TidelakeWarning, match="'damaged' cannot be measured"):
                assert set(lake.measure(names)) == {"sound"}
        with pytest.raises(CollectionNotFound, match="'nope'"):
            lake.measure(["nope"])


def _until(done: object) -> None:
    pause = threading.Event()
    for _ in range(6_000):
        if done():  # type: ignore[operator]
            return
        pause.wait(0.01)
    raise AssertionError("it never came")


def test_counts_of_many_threads_add_up() -> None:
    recorder = Counters()

    def work(_: int) -> None:
        for _ in range(2_000):
            recorder.count("append")
            recorder.observe("commit.seconds", 0.02)

    at_once(work, range(8))
    assert recorder.counts["append"] == 16_000
    assert sum(recorder.histograms["commit.seconds"].counts) == 16_000
    assert recorder.histograms["commit.seconds"].total == pytest.approx(320)


def test_a_histogram_puts_values_into_their_buckets() -> None:
    held = Histogram((1.0, 2.0), (0, 0, 0))
    for value in (0.5, 1.0, 1.5, 2.5):
        held = held.plus(value)
    # A bucket contains its upper end, as in Prometheus.
    assert held.counts == (2, 1, 1)
    assert held.total == 5.5


def test_gauges_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelake.env._GAUGES_MAX", 2)
    recorder = Counters()
    for label in ("a", "b", "c"):
        recorder.gauge("collection.updates", 1, label)
    recorder.gauge("collection.updates", 2, "a")
    assert recorder.gauges == {("collection.updates", "a"): 2, ("collection.updates", "b"): 1}
    assert recorder.counts["gauges.refused"] == 1
    recorder.gauge("collection.updates", None, "b")
    recorder.gauge("collection.updates", 3, "c")
    assert recorder.gauges["collection.updates", "c"] == 3


def test_prometheus_reads_what_was_counted(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    from prometheus_client.parser import text_string_to_metric_families

    from tidelake.exporters import prometheus

    name = 'a"b\\c\n<script>'.replace("\n", " ")
    with tidelake.open(tmp_path / "lake") as lake:
        lake.create(name, ROW, key=["k"]).append(rows(1, 2))
        lake.measure()
        text = prometheus.text(lake.recorder).decode()
        histogram = lake.recorder.histograms["commit.seconds"]
        counts = dict(lake.recorder.counts)
    families = {family.name: family for family in text_string_to_metric_families(text)}
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in families.values()
        for sample in family.samples
    }
    assert samples["tidelake_append_rows_total",] == 2
    assert samples["tidelake_collection_updates", name] == 2
    assert samples["tidelake_commit_seconds_bucket", "+Inf"] == sum(histogram.counts)
    assert samples["tidelake_commit_seconds_bucket", "300.0"] == sum(histogram.counts[:-1])
    for counted, count in counts.items():
        assert samples[f"{BY_NAME[counted].exported}_total",] == count


def test_a_recorder_without_counts_is_no_source_for_prometheus() -> None:
    pytest.importorskip("prometheus_client")
    from tidelake.exporters import prometheus

    class Silent:
        def count(self, name: str, amount: int = 1) -> None: ...

        def observe(self, name: str, value: float) -> None: ...

        def gauge(self, name: str, value: float | None, label: str = "") -> None: ...

    with pytest.raises(UsageError, match="Counters"):
        prometheus.text(Silent())


def test_opentelemetry_gets_the_same(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    from tidelake.exporters.opentelemetry import OpenTelemetryRecorder

    reader = InMemoryMetricReader()
    recorder = OpenTelemetryRecorder(MeterProvider([reader]))
    with tidelake.open(tmp_path / "lake", recorder=recorder) as lake:
        lake.create("c", ROW, key=["k"]).append(rows(1, 2))
        lake.measure()
        lake.measure()
    found = {}
    for resource in reader.get_metrics_data().resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in metric.data.data_points:
                    found[metric.name, *(point.attributes or {}).values()] = point
    assert found["tidelake.append_rows",].value == 2 == recorder.counts["append.rows"]
    assert found["tidelake.collection_updates", "c"].value == 2
    assert found["tidelake.commit_seconds",].count == sum(recorder.histograms["commit.seconds"].counts)
    # A total that the caches keep is not added twice.
    assert found["tidelake.lookup_filter_misses",].value == recorder.gauges["lookup.filter.misses", ""]


def test_failures_are_logged_and_quiet_by_default(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    env = Env()
    with caplog.at_level(logging.WARNING, "tidelake"):
        try:
            raise UsageError("it broke")
        except UsageError:
            env.failed("renewer.failed")
    assert [record.getMessage() for record in caplog.records] == ["renewer.failed: it broke"]
    assert isinstance(env.recorder, Counters)
    assert env.recorder.counts["renewer.failed"] == 1
    code = "from tidelake.env import Env, LOG; Env().failed('renewer.failed'); LOG.error('loud')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == done.stdout == ""


def test_the_report_of_an_arrangement_sets_its_levels(tmp_path: Path) -> None:
    with tidelake.open(tmp_path / "lake") as lake:
        c = lake.create("c", ROW, key=["k"])
        c.append(rows(1, 2, 3))
        with c.arrange(follow=False) as index:
            report: SpineReport = index.report()
        levels = {
            label: value
            for (name, label), value in lake.recorder.gauges.items()
            if name == "arrangement.level.updates"
        }
        assert levels == {
            str(level.level): level.rows_in_memory + level.rows_on_disk for level in report.levels
        }
        assert sum(levels.values()) == 3
