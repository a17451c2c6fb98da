"""Other versions of PySpark: paths of the matrix are the truth, or refused by the name of the version."""

import os
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from matrix_driver import PATHS

from tests.spark.versions import seen

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

# Of each kind of work one path, and what the version lacks.
SLICES = {
    "3.5": ("helper append", "helper changes", "ingest", "helper upsert", "stream sink", "format snapshot"),
    "4.1": ("helper append", "format snapshot", "format write", "stream read, started again", "stream write"),
}


def skip_without(version: str) -> None:
    if seen.python_of(version) is None:
        pytest.skip(f"no environment with PySpark {version}: run setup/sparks.sh {version}")


@pytest.mark.full
@pytest.mark.parametrize("version", SLICES)
def test_a_slice_of_the_paths_is_what_the_page_says(version: str, tmp_path: Path) -> None:
    skip_without(version)
    found = seen.seen_on(version, tmp_path, SLICES[version])
    said = seen.written()[seen.release_of(version)]
    assert found == {path: said[path] for path in SLICES[version]}


@pytest.mark.soak
@pytest.mark.parametrize("version", seen.VERSIONS)
def test_every_path_is_what_the_page_says(version: str, tmp_path: Path) -> None:
    skip_without(version)
    found = seen.seen_on(version, tmp_path) | {seen.PROBE: seen.probed_on(version)}
    said = seen.written()[seen.release_of(version)]
    # What was not tried when the page was written has to be right all the same.
    assert {path: found[path] for path in found if said.get(path)} == {p: c for p, c in said.items() if c}


def test_the_page_has_no_row_that_is_not_run() -> None:
    table = seen.written()
    assert {release.rpartition(".")[0] for release in table} == {*seen.VERSIONS}
    for column in table.values():
        assert set(column) <= {*PATHS, seen.PROBE}
        assert set(column.values()) <= {"", "yes", "right", "wrong", "from 4.0", "from 4.1", "from 4.2"}


def test_a_column_is_written_in_place_of_an_older_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{seen._BEGIN}\n{seen._END}\nafter\n", encoding="utf-8")
    monkeypatch.setattr(seen, "PAGE", page)
    seen.write("4.0.4", {"ingest": "yes"})
    seen.write("3.5.9", {"ingest": "yes", "format write": "from 4.0"})
    seen.write("4.0.5", {"format write": "yes"})
    seen.write("4.0.5", {"helper append": "yes"})
    assert seen.written() == {
        "3.5.9": {"helper append": "", "ingest": "yes", "format write": "from 4.0"},
        "4.0.5": {"helper append": "yes", "ingest": "", "format write": "yes"},
    }
    assert page.read_text(encoding="utf-8").startswith("before\n")
    assert page.read_text(encoding="utf-8").endswith("after\n")


def test_the_environment_of_a_version_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDELAKE_SPARKS", str(tmp_path))
    assert seen.python_of("4.1") is None
    for release in ("4.1-4.1.4", "4.1-4.1.5.new"):
        (tmp_path / release / "bin").mkdir(parents=True)
        (tmp_path / release / "bin" / "python").symlink_to(os.devnull)
    assert seen.python_of("4.1") == tmp_path / "4.1-4.1.4" / "bin" / "python"
