"""How much Python a tiny write takes: calls are counted, never times."""

import pytest

from bench.calls import median, writes

# What has been reached. A write that takes fewer calls lowers its number here.
MOST = {"append": (590, 28, 66), "upsert": (1_500, 30, 90)}


@pytest.mark.parametrize("kind", ["append", pytest.param("upsert", marks=pytest.mark.full)])
def test_a_write_of_ten_rows_takes_no_more_calls_than_before(kind: str) -> None:
    found = median(writes(kind))
    calls, deep, modules = MOST[kind]
    assert found.count <= calls, found.functions.most_common(20)
    assert found.deep <= deep and found.modules <= modules, (found.deep, found.modules)
