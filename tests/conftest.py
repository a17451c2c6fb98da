"""What all tests share: the seed, Hypothesis profiles, and real data."""

import os
from pathlib import Path
from random import Random

import pytest
from hypothesis import settings

from tidelake.testing.simulation.figures import Figures

REPOSITORY = Path(__file__).resolve().parent.parent
SEED = "TIDELAKE_TEST_SEED"

# `ci` tries the same examples for the same code, so that a red run is the change's fault; `explore`
# looks for new ones, and prints how to see a failure again.
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("explore", deadline=None, max_examples=2_000, print_blob=True)
settings.load_profile("ci")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="transcripts: write what comes out in the place of what is expected",
    )


def pytest_configure(config: pytest.Config) -> None:
    # Workers inherit the environment: all of them use the seed that the header shows.
    if SEED not in os.environ:
        exploring = config.getoption("--hypothesis-profile") == "explore"
        os.environ[SEED] = str(Random().getrandbits(32) if exploring else 0)


def pytest_report_header() -> str:
    return f"seed: {os.environ[SEED]} (again: {SEED}={os.environ[SEED]})"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
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


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data sets, which lies beside the checkout."""
    folder = Path(os.environ.get("TIDELAKE_SHARED_DATA") or REPOSITORY.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}; TIDELAKE_SHARED_DATA names another place")
    return folder
