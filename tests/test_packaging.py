"""What is built for users holds all that they need."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

from tidelake.errors import to_install

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
    assert not [name for name in names if "demo" in name]


PUBLISHED = re.compile(r"""pip install[^\n`]*[ "']tidelake(?:\[|["'`\s]|$)""")


def test_no_page_and_no_error_names_a_package_that_no_index_has() -> None:
    """Until Tidelake is published, whoever took the name there would be installed."""
    texts = [path for folder in ("src", "docs", "setup") for path in (REPOSITORY / folder).rglob("*")]
    texts += [REPOSITORY / name for name in ("README.md", "Makefile", "ARCHITECTURE.md")]
    read = [path for path in texts if path.suffix in (".py", ".md", ".sh", ".service", "") and path.is_file()]
    assert not [path for path in read if PUBLISHED.search(path.read_text(encoding="utf-8"))]
    assert all(map(PUBLISHED.search, ['pip install -q "tidelake[web]"', "`pip install tidelake`"]))
    assert not PUBLISHED.search(to_install("web"))
    assert "'.[web]' in a checkout" in to_install("web")
