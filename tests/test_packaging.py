"""What is built for users holds all that they need."""

import subprocess
import sys
import zipfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent


def test_the_wheel_has_tidelake_and_the_module_that_spark_looks_for(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
    source = {p.relative_to(REPOSITORY / "src").as_posix() for p in (REPOSITORY / "src").rglob("*.py")}
    assert source <= names
    assert {name.partition("/")[0] for name in names if not name.startswith("tidelake-")} == {
        "pyspark_tidelake",
        "tidelake",
    }
