"""What the page for operators names is there: extras, exit codes, metrics, units and the container file."""

import configparser
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest
import yaml

from tidelake import errors
from tidelake.cli.main import _EXIT_CODES, cli
from tidelake.metrics import CATALOGUE

REPOSITORY = Path(__file__).resolve().parent.parent
PAGE = (REPOSITORY / "docs" / "operations.md").read_text(encoding="utf-8")
EXAMPLES = REPOSITORY / "docs" / "examples"
UNITS = sorted(EXAMPLES.glob("*.service"))


def rows(heading: str) -> list[list[str]]:
    """The cells of the table below a heading, without its head."""
    part = re.split(r"\n#+ ", PAGE.split(f"# {heading}\n", 1)[1], maxsplit=1)[0]
    lines = [line for line in part.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def checked(words: list[str]) -> None:
    """Parse the words after `tidelake` as the command line does, without carrying them out."""
    command = cli.commands[words[0]]
    with click.Context(command) as context:
        command.parse_args(context, list(words[1:]))


def test_the_table_of_extras_has_every_extra() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = [cells[0].strip("`") for cells in rows("Extras")]
    assert named == ["–", *project["optional-dependencies"]]


def test_every_exit_code_that_maintenance_may_end_with_is_explained() -> None:
    codes = {int(cells[0]) for cells in rows("From cron or Airflow")}
    assert codes == {0, 1, *(code for _, code in _EXIT_CODES)}


def test_every_metric_of_an_alert_is_in_the_catalogue() -> None:
    suffixes = {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_sum", "_count"]}
    known = {metric.exported + suffix for metric in CATALOGUE for suffix in suffixes[metric.kind]}
    (group,) = yaml.safe_load((EXAMPLES / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]:
        named = re.findall(r"\btidelake_\w+", rule["expr"])
        assert named and known.issuperset(named), rule["alert"]
        for command in re.findall(r"\btidelake (\w+)", rule["annotations"]["description"]):
            assert command in cli.commands
    assert len({rule["alert"] for rule in group["rules"]}) > 10


def test_every_error_that_is_explained_exists() -> None:
    for cells in rows("At each error"):
        for name in re.findall(r"`(\w+)`", cells[0]):
            assert issubclass(getattr(errors, name), Exception), name


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
class TestUnits:
    def test_its_command_is_one_of_ours(self, unit: Path) -> None:
        parsed = configparser.ConfigParser(interpolation=None)
        parsed.optionxform = str  # type: ignore[assignment, method-assign]
        parsed.read_string(unit.read_text(encoding="utf-8"))
        program, *words = shlex.split(parsed["Service"]["ExecStart"])
        assert program.endswith("/tidelake")
        checked(words)
        # A merge ends when the process is told to, as it does in a terminal.
        assert parsed["Service"]["KillSignal"] == "SIGINT"
        assert parsed["Service"]["NoNewPrivileges"] == "yes"

    @pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze")
    def test_systemd_takes_it(self, unit: Path, tmp_path: Path) -> None:
        text = unit.read_text(encoding="utf-8")
        copy = tmp_path / unit.name
        copy.write_text(text.replace("/opt/tidelake/bin/tidelake", sys.executable), encoding="utf-8")
        done = subprocess.run(
            ["systemd-analyze", "verify", copy], capture_output=True, text=True, timeout=60, check=False
        )
        if "Failed to" in done.stderr and "manager" in done.stderr:
            pytest.skip(done.stderr)
        assert (done.returncode, done.stderr) == (0, "")


def test_the_container_file_makes_what_the_page_says() -> None:
    text = (EXAMPLES / "Containerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line.split(None, 1) for line in text.splitlines() if line and not line.startswith("#")]
    kinds = [kind for kind, _ in lines]
    assert kinds[0] == "FROM"
    assert set(kinds) <= {"FROM", "RUN", "USER", "ENV", "EXPOSE", "STOPSIGNAL", "ENTRYPOINT", "CMD"}
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (extras,) = re.findall(r"tidelake\[([\w,]+)\]", text)
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    # It runs as a user without rights.
    assert kinds.index("USER") > kinds.index("RUN")
    assert dict(lines)["USER"] not in ("0", "root")


def test_commands_of_blocks_that_are_not_run_are_ours() -> None:
    found = re.findall(r"^podman run .* tidelake (\w.*)$", PAGE, re.MULTILINE)
    assert len(found) == 2
    for line in found:
        checked(shlex.split(line))
