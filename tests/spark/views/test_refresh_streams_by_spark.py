"""Views of Spark's SQL are exact amid the refresh functions of TPC-H, at scale 1."""

from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("duckdb")

from refresh_streams import SCALE_1, VIEWS, Shop

import tidelake
from tidelake import spark as ts


@pytest.mark.soak
@pytest.mark.promise(
    "Views of Spark's SQL are exact after each of the refresh functions of TPC-H at scale 1",
    rule="`views/rules.py`",
)
def test_views_of_sparks_sql_are_exact_after_each_refresh_function(
    spark: Any, tmp_path: Path, rng: Random
) -> None:
    with tidelake.open(tmp_path / "lake") as lake:
        shop = Shop(lake, rng.getrandbits(32), SCALE_1)
        for name, sql in VIEWS.items():
            ts.view(spark, lake, name, sql)
        for change in (shop.come, shop.go, shop.correct):
            change(SCALE_1 // 1_000)
            ts.refresh(spark, lake)
            for name in VIEWS:
                found = ts.verify(spark, lake, name)
                assert found.equal, f"after {change.__name__}: {name}: {found}"
