"""Users' calls that once came out wrong: each script asserts what is right, and runs in a process of its own.

The scripts lie in the folder `cases` beside the real data.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

_CASES = (
    Path(os.environ.get("TIDELAKE_SHARED_DATA") or REPOSITORY.parent / "shared" / "data").parent / "cases"
)
# Where an error is right as well, by what the script says.
_RIGHT_ERRORS = {
    "sql_case_columns": "UsageError: DuckDB takes columns 'Code' and 'code' for one",
    "cdc_incremental_snapshot": "use old_rows='stored'",
    "cdc_readded_column": "IncompatibleSchema",
    "cdc_table_collision": "would both go to collection",
}
# They damage files of another layout. `lake/admin/test_fsck.py` and `kills/test_killed_at_every_change.py`
# do the same to the files of today.
_OF_ANOTHER_LAYOUT = {"group_fsck", "repair_killed"}
_FOUND = sorted(one for one in _CASES.glob("[a-z]*.py") if one.stem not in _OF_ANOTHER_LAYOUT)
_SCRIPTS: list[Path | None] = [*_FOUND] or [None]


def _marks(script: Path | None) -> list[pytest.MarkDecorator]:
    if script is None:
        return [pytest.mark.skip(f"no scripts in {_CASES}, beside TIDELAKE_SHARED_DATA")]
    return [pytest.mark.spark] if "local_session" in script.read_text(encoding="utf-8") else []


@pytest.mark.full
@pytest.mark.parametrize(
    "script", [pytest.param(s, id=s.stem if s else "none", marks=_marks(s)) for s in _SCRIPTS]
)
def test_a_call_that_once_came_out_wrong_is_right(script: Path, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-I", str(script)],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    right = _RIGHT_ERRORS.get(script.stem)
    assert ran.returncode == 0 or (right and right in ran.stderr), ran.stdout[-1000:] + ran.stderr[-3000:]
