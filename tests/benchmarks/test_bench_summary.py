import re
from pathlib import Path

import pytest

from bench import __main__ as command
from bench.floors import judged

FOUND = {
    "rows": 10,
    "kernels": {
        "a R=2": {"merge_to_copy": 1.5, "rows": 7},
        "a R=64": {"merge_to_copy": 0.5, "rows": 7},
        "R=8": {"merge_to_copy": 0.7},
        "process": {"peak_mib": 300.0},
    },
    "appends": {"upserts": {"appends": 3, "latency_ms": [1.0, 2.0], "runs_over_history": [1.0, 2.0]}},
    "growth": {
        **{f"{n:,} commits, directory": {"append_ms": 2.0, "open_ms": 5.0} for n in (1_000, 10_000)},
        **{f"{n} collections": {"create_ms": 5.0 + n} for n in (1, 10)},
        **{f"{n} runs": {"snapshot_ms": 2.0 * n} for n in (1, 2)},
        **{f"{n:,} rows": {"append_us_row": 0.9} for n in (1_000_000, 3_000_000)},
    },
    "updates": {
        "appends": {"updates": 9, "space_over_history": [1.0, 1.5]},
        "merges": {"worker_peak_rss_mib": 200.0},
    },
}


@pytest.mark.full
def test_figures_have_the_same_bytes_for_the_same_numbers(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="draws the figures: install the group bench")
    from bench.plots import FIGURES, draw

    for folder in ("one", "two"):
        assert draw(FOUND, tmp_path / folder) == [f"{name}.svg" for name in FIGURES]
    for name in FIGURES:
        one, two = ((tmp_path / folder / f"{name}.svg").read_bytes() for folder in ("one", "two"))
        assert one == two
        assert len(one) < 64 * 1024


@pytest.mark.full
def test_the_summary_stands_between_its_marks(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="draws the figures: install the group bench")
    pytest.importorskip("duckdb", reason="its version is part of the summary: install the group bench")
    page = tmp_path / "page.md"
    page.write_text("\n".join(["before", *command.MARKS, "after", ""]))
    for _ in range(2):
        command.write_summary(FOUND, page, tmp_path / "figures")
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert re.findall("## (.*)", text) == ["Kernels", "Appends", "Updates", "Growth", "Figures"]
    assert "(figures/append-runs.svg)" in text
    command.write_summary(
        {"rows": 10, "kernels": {"R=2": {"merge_to_copy": 7.25}}}, page, tmp_path / "figures"
    )
    assert re.findall("## (.*)", page.read_text()) == ["Kernels", "Appends", "Updates", "Growth", "Figures"]
    after = page.read_text().partition("## Appends")[2]
    assert after == text.partition("## Appends")[2]
    assert "| R=2 | 7.25 |" in page.read_text()
    assert "peak mib" not in page.read_text().partition("## Appends")[0]


def test_bounds_are_judged_where_there_is_a_number() -> None:
    assert list(judged({"spark": {"compacted": {"rows": 1}}, "kernels": {}})) == []
    found = {
        "spark": {"compacted": {"helper_to_plain": 0.8, "format_to_plain": 0.49}},
        "spark_writes": {"micro-batch": {"helper_over_empty_ms": 100.0, "format_over_noop_ms": 101.0}},
    }
    assert [(bound["value"], bound["kept"]) for bound in judged(found)] == [
        (0.8, True),
        (0.49, False),
        (100.0, True),
        (101.0, False),
    ]
