"""Views are exact amid the refresh functions of TPC-H: see `refresh_streams.py`."""

from pathlib import Path
from random import Random

import pytest

pytest.importorskip("duckdb")

from refresh_streams import SCALE_1, VIEWS, Shop

import tidelake


@pytest.mark.promise(
    "Views of the questions of TPC-H are exact after each of its refresh functions, and after corrections",
    rule="`views/rules.py`",
)
@pytest.mark.parametrize(
    "orders",
    [pytest.param(120, marks=pytest.mark.full), pytest.param(SCALE_1, marks=pytest.mark.soak)],
)
def test_views_are_exact_after_each_refresh_function(tmp_path: Path, rng: Random, orders: int) -> None:
    with tidelake.open(tmp_path / "lake") as lake:
        shop = Shop(lake, rng.getrandbits(32), orders)
        for name, sql in VIEWS.items():
            lake.view(name, sql)
        for change in (shop.come, shop.go, shop.correct, shop.go):
            change(max(12, orders // 1_000))
            lake.refresh()
            for name in VIEWS:
                found = lake.verify(name)
                assert found.equal, f"after {change.__name__}: {name}: {found}"
