"""What all tests share: the seed, the tiers, where time goes, and real data."""

import os
import signal
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import settings

from simulation.figures import Figures
from tests.store import servers

REPOSITORY = Path(__file__).resolve().parent.parent
SEED = "TIDELAKE_TEST_SEED"

# `fast` and `full` try the same examples for the same code, so that a red run is the change's fault; `soak`
# looks for new ones, and prints how to see a failure again.
settings.register_profile("fast", deadline=None, derandomize=True, max_examples=15, print_blob=True)
settings.register_profile("full", deadline=None, derandomize=True, max_examples=100, print_blob=True)
settings.register_profile("soak", deadline=None, max_examples=1_000, print_blob=True)
settings.load_profile("fast")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="transcripts: write what comes out in the place of what is expected",
    )


def pytest_configure(config: pytest.Config) -> None:
    # Workers inherit the environment: all of them use the seed that the header shows.
    if SEED not in os.environ:
        exploring = config.getoption("--hypothesis-profile") == "soak"
        os.environ[SEED] = str(Random().getrandbits(32) if exploring else 0)


def pytest_report_header() -> str:
    return f"seed: {os.environ[SEED]} (again: {SEED}={os.environ[SEED]})"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Properties try more in each slower tier."""
    for item in items:
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker(pytest.mark.grows)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show where time went, and what tests have recorded."""
    _show_times(terminalreporter)
    _show_figures(terminalreporter)


def _show_times(terminalreporter: pytest.TerminalReporter) -> None:
    """The seconds that the tests of each folder took, set-up included, on all workers together."""
    tests: Counter[str] = Counter()
    seconds: defaultdict[str, float] = defaultdict(float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                folder = "/".join(report.nodeid.partition("::")[0].split("/")[:2])
                tests[folder] += report.when == "call"
                seconds[folder] += report.duration
    if seconds:
        terminalreporter.section("seconds by folder")
    for folder in sorted(seconds, key=seconds.__getitem__, reverse=True):
        terminalreporter.write_line(f"{seconds[folder]:8.1f} {tests[folder]:6} tests  {folder}")


def _show_figures(terminalreporter: pytest.TerminalReporter) -> None:
    """Show the figures that tests have recorded (`record_property("figures", text)`).

    Of the simulation one line a test: the totals of all its seeds.
    """
    totals: dict[str, Figures] = {}
    for report in terminalreporter.stats.get("passed", ()):
        for name, text in report.user_properties:
            if report.when != "call":
                continue
            if name == "figures":
                terminalreporter.write_line(f"{report.nodeid}: {text}")
            elif name == "simulated":
                test = report.nodeid.partition("[")[0]
                totals[test] = totals.get(test, Figures()).plus(Figures.from_json(text))
    for test, figures in totals.items():
        terminalreporter.write_line(f"{test}: {figures}")


@pytest.fixture
def rng() -> Random:
    """Random choices that the seed of the run decides."""
    return Random(int(os.environ[SEED]))


@pytest.fixture
def interruptible() -> Iterator[None]:
    """An interrupt raises KeyboardInterrupt: a run of tests in the background ignores it otherwise."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def spark() -> Iterator[object]:
    """The Spark session of this process. With TIDELAKE_SPARK_UI in the environment it has a page."""
    pytest.importorskip("pyspark")
    from tests.spark import kafka_broker, quick

    page = {"spark.ui.enabled": "true"} if os.environ.get("TIDELAKE_SPARK_UI") else {}
    session = quick.session(**page, **kafka_broker.class_path())
    yield session
    session.stop()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[servers.S3Server]:
    """moto, an S3 server of this process. A test takes a bucket of its own: `s3_server.new_bucket()`."""
    with servers.s3_server() as server:
        yield server


@pytest.fixture(scope="session")
def versitygw() -> Iterator[servers.S3Server]:
    """versitygw, an S3 server on a folder, for tests of the slow tiers."""
    with servers.versitygw() as server:
        yield server


@pytest.fixture(scope="session")
def azurite() -> Iterator[servers.AzureServer]:
    """azurite, an Azure blob server, for tests of the slow tiers."""
    with servers.azurite() as server:
        yield server


@pytest.fixture(scope="session")
def postgres() -> Iterator[servers.PostgresServer]:
    """PostgreSQL, for tests of the slow tiers. A test takes a database: `postgres.new_database()`."""
    with servers.postgres() as server:
        yield server


@pytest.fixture(scope="session")
def kafka_server() -> Iterator[object]:
    """A Kafka broker, for tests of the slow tiers. A test takes topics of its own."""
    from tests.spark import kafka_broker

    with kafka_broker.broker() as server:
        yield server


@pytest.fixture(scope="session")
def shared_folder() -> Path:
    """Where the real data sets are, if they are there."""
    return Path(os.environ.get("TIDELAKE_SHARED_DATA") or REPOSITORY.parent / "shared" / "data")


@pytest.fixture(scope="session")
def shared_data(shared_folder: Path) -> Path:
    """The folder of real data sets, which lies beside the checkout."""
    if not shared_folder.is_dir():
        pytest.skip(f"no real data at {shared_folder}; TIDELAKE_SHARED_DATA names another place")
    return shared_folder
