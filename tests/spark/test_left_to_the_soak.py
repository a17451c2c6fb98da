"""The list of tests that only the soak runs names tests that are there."""

import ast
from fnmatch import filter as matching
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from tests.spark.conftest import LEFT_TO_THE_SOAK

CASES = sorted({(file, test) for cases in LEFT_TO_THE_SOAK.values() for file, test, _ in cases})


@pytest.mark.parametrize(("file", "test"), CASES)
def test_what_is_left_to_the_soak_is_there(file: str, test: str) -> None:
    (path,) = Path(__file__).parent.rglob(file)
    module = ast.parse(path.read_text(encoding="utf-8"))
    assert matching([one.name for one in module.body if isinstance(one, ast.FunctionDef)], test)
