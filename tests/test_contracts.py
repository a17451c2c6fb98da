"""Each contract on imports in pyproject.toml can be broken: a rule that cannot fail protects nothing."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
BREAKS = {
    "layers": [
        ("model/violation.py", "import tidelake.lake"),
        ("data/violation.py", "from tidelake import store"),
        ("spark/violation.py", "import tidelake.testing"),
        ("lake/api/violation.py", "import tidelake.exporters.prometheus"),
        ("lake/api/violation.py", "import tidelake.views.plan"),
        ("spark/violation.py", "import tidelake.web.app"),
        ("shard/violation.py", "def f() -> None:\n    import tidelake.lake"),
        ("violation.py", ""),
    ],
    "state": [
        ("state/violation.py", ""),
        ("state/spine/violation.py", "import tidelake.state.core.state"),
        ("state/group/violation.py", "import tidelake.state.upkeep.slices"),
    ],
    "data": [("data/violation.py", ""), ("data/kernel/violation.py", "import tidelake.data.keys.keyset")],
    "shard": [
        ("shard/violation.py", ""),
        ("shard/runs/violation.py", "import tidelake.shard.upkeep.maintain"),
        ("shard/reading/violation.py", "import tidelake.shard.writing.append"),
        ("shard/upkeep/violation.py", "import tidelake.shard.reading.query"),
    ],
    "engine": [("shard/engine/violation.py", "")],
    "cdc": [("cdc/violation.py", ""), ("cdc/core/violation.py", "import tidelake.cdc.parse.parser")],
    "feeds": [("feeds/violation.py", "")],
    "arrangement": [
        ("arrangement/violation.py", ""),
        ("arrangement/batch/violation.py", "import tidelake.arrangement.read.view"),
    ],
    "lake": [("lake/violation.py", ""), ("lake/catalog/violation.py", "import tidelake.lake.groups.attempt")],
    "arrangement-core": [("arrangement/read/violation.py", "import tidelake.shard.engine.shard")],
    "spark": [
        ("spark/violation.py", ""),
        ("spark/envelopes/violation.py", "import tidelake.spark.writing.append"),
        ("spark/reading/violation.py", "import tidelake.spark.envelopes.debezium"),
        ("spark/jobs/violation.py", "import tidelake.spark.source"),
    ],
    "cycles": [
        ("lake/violation.py", "import tidelake.lake.opposite"),
        ("lake/opposite.py", "import tidelake.lake.violation"),
    ],
    "front-door": [("shard/violation.py", "from tidelake import open")],
    "pure": [
        ("state/violation.py", "import pyarrow"),
        ("state/violation.py", "import time"),
        ("model/violation.py", "import os.path"),
    ],
    "store": [("store/violation.py", "import pyarrow.parquet")],
    "data-pure": [("data/violation.py", "from threading import Lock")],
    "spark-door": [
        ("lake/violation.py", "from pyspark.sql import DataFrame"),
        ("testing/violation.py", "import pandas as pd"),
        ("cdc/parse/violation.py", "import pyspark"),
    ],
}


def lint(folder: Path, contract: str) -> subprocess.CompletedProcess[str]:
    """Check one contract on a copy of the source."""
    program = Path(sys.executable).parent / "lint-imports"
    command = [program, "--no-logo", "--no-cache", "--contract", contract]
    environment = os.environ | {"PYTHONPATH": str(folder / "src")}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The source and settings in a folder of their own."""
    shutil.copytree(REPOSITORY / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    return tmp_path


def test_every_contract_is_tried() -> None:
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    assert [c["id"] for c in settings["tool"]["importlinter"]["contracts"]] == list(BREAKS)


@pytest.mark.promise("Imports go down, without cycles; every contract notices what breaks it")
@pytest.mark.full
@pytest.mark.parametrize("contract", BREAKS)
def test_the_contract_notices_what_breaks_it(contract: str, copy: Path) -> None:
    assert "violation" not in lint(copy, contract).stdout
    # Both halves of a cycle make one violation; the others are tried one at a time.
    attempts = [BREAKS[contract]] if contract == "cycles" else [[b] for b in BREAKS[contract]]
    for files in attempts:
        for name, code in files:
            (copy / "src/tidelake" / name).write_text(f'"""A violation."""\n\n{code}\n')
        result = lint(copy, contract)
        assert result.returncode == 1, f"{files}: {result.stdout}{result.stderr}"
        assert "violation" in result.stdout, result.stdout
        for name, _ in files:
            (copy / "src/tidelake" / name).unlink()
