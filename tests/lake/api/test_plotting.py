"""Pictures show what the state and the log say."""

import pyarrow as pa
import pytest

pytest.importorskip("matplotlib")

import tidelake
from tidelake import Frontier
from tidelake.config import Config
from tidelake.errors import UsageError

ROW = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64())])


def grown(lake, time="counter", start=0):
    c = lake.create("c", ROW, key=["k"], time=time)
    for n in range(12):
        c.upsert(pa.table({"k": range(40), "v": [n] * 40}), time=start + n)
    c.maintain()
    return c


def test_the_spine_is_drawn_as_it_is_stored(tmp_path):
    with tidelake.open(tmp_path / "lake", config=Config(slice_rows=100, merge_budget_s=0)) as lake:
        c = grown(lake)
        state = c.state()
        (axes,) = c.plot_spine().axes
        heights = sorted(bar.get_height() for bars in axes.containers for bar in bars)
        assert heights == sorted(member.batch.rows for member in state.spine)
        (dots,) = axes.lines
        assert len(dots.get_xdata()) == len(state.bases) > 0
        assert list(dots.get_ydata()) == [sum(run.rows for run in base.runs) for base in state.bases]


@pytest.mark.parametrize(("time", "start"), [("counter", 0), ("ms", 1_793_000_000_000)])
def test_history_is_drawn_from_the_log(tmp_path, time, start):
    with tidelake.open(tmp_path / "lake") as lake:
        c = grown(lake, time, start)
        above, below = c.plot_history().axes
        totals = list(above.lines[0].get_ydata())
        assert totals[0] == c.state().written.appended_rows == 40 + 11 * 80
        assert totals == sorted(totals, reverse=True)
        assert totals[-2:] == [40, 0]  # the first append, and the creation
        assert len(below.lines[0].get_ydata()) == 12


@pytest.mark.parametrize("time", ["counter", "ms", "tuple(2)"])
def test_an_empty_collection_is_drawn(tmp_path, time):
    with tidelake.open(tmp_path / "lake") as lake:
        c = lake.create("c", ROW, key=["k"], time=time)
        for figure in (c.plot_history(), c.plot_spine()):
            figure.savefig(tmp_path / "picture.png")


def test_without_matplotlib_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with tidelake.open(tmp_path / "lake") as lake:
        c = lake.create("c", ROW, key=["k"])
        for draw in (c.plot_history, c.plot_spine):
            with pytest.raises(UsageError, match=r"tidelake\[plot\]"):
                draw()


def test_a_notebook_shows_pictures_as_pictures_and_commits_as_a_table(tmp_path):
    with tidelake.open(tmp_path / "lake") as lake:
        c = lake.create("days", {"id": "int64 not null"}, key=["id"], time="date")
        c.append({"id": 1}, time="2026-11-01", author="<ann>")
        for figure in (c.plot_history(), c.plot_spine()):
            assert figure._repr_png_().startswith(b"\x89PNG")
        assert str(c.commits()).splitlines()[1].endswith("2026-11-02           <ann>")
        shown = c.commits()._repr_html_()
        assert "<td>2026-11-02</td>" in shown and "&lt;ann&gt;" in shown
        assert c.commits()[0].upper == Frontier.of(20759)
