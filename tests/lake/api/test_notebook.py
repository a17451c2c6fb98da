"""Long work shows its progress in a notebook, and nothing elsewhere."""

import sys
from types import ModuleType, SimpleNamespace

import pyarrow as pa
import pytest

import tidelake
from clocks import MovedClock
from tidelake.config import Config
from tidelake.env import Env
from tidelake.lake.api.notebook import bar


class FastClock(MovedClock):
    """A clock by which everything takes two seconds."""

    def monotonic_s(self):
        self.ms += 2_000
        return super().monotonic_s()


class Shown(list[str]):
    """Stands for IPython's display: what is in the output of the cell, and all that was."""

    def __init__(self) -> None:
        self.displays = 0

    def display(self, html: str, display_id: bool) -> "Shown":
        self.displays += 1
        self.append(html)
        return self

    def update(self, html: str) -> None:
        self.append(html)


@pytest.fixture
def shown(monkeypatch):
    found = Shown()
    ipython, display = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=object())
    display.HTML, display.display = str, found.display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return found


def test_a_bar_appears_after_a_second_moves_now_and_then_and_goes(shown):
    clock = MovedClock()
    with bar("fsck: bytes", clock) as tell:
        tell("a", 1_000, 5_000)
        assert not shown
        clock.ms += 1_000
        tell("<b>", 2_000, 5_000)
        tell("a", 3_000, 5_000)  # too soon after the last one
        clock.ms += 200
        tell("a", 4_000, 5_000)
    assert shown == [
        '<div><progress value="3000" max="10000"></progress> fsck: bytes: &lt;b&gt; 3,000 of 10,000</div>',
        '<div><progress value="6000" max="10000"></progress> fsck: bytes: a 6,000 of 10,000</div>',
        "",
    ]
    assert shown.displays == 1


def test_short_work_shows_nothing_and_failed_work_leaves_nothing(shown):
    clock = MovedClock()
    with bar("copy", clock) as tell:
        tell("a", 1, 1)
    assert not shown

    def broken():
        with bar("copy", clock) as tell:
            clock.ms += 1_000
            tell("a", 0, 0)
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        broken()
    assert shown == ["<div><progress></progress> copy: a</div>", ""]


@pytest.mark.parametrize("shell", [None, object()])
def test_outside_of_a_notebook_nothing_is_shown(shown, monkeypatch, shell):
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: shell)
    with bar("copy", MovedClock()) as tell:
        assert tell is None
    monkeypatch.delitem(sys.modules, "IPython")
    with bar("copy", MovedClock()) as tell:
        assert tell is None
    assert "IPython" not in sys.modules


def test_checks_copies_and_merges_show_it(shown, tmp_path):
    config = Config(merge_budget_s=0)
    with tidelake.open(tmp_path / "lake", config=config, env=Env(clock=FastClock())) as lake:
        c = lake.create("c<", {"id": int}, key=["id"])
        for start in (0, 5_000):
            c.append(pa.table({"id": range(start, start + 5_000)}))
        for call, text in (
            (c.maintain, "c&lt;: merging 10,000 updates of 2 runs"),
            (c.merge, "merging"),
            (lake.fsck, "fsck: bytes: c&lt; "),
            (lambda: lake.copy(tmp_path / "copy"), "copy: bytes: c&lt; "),
        ):
            if call == c.merge:
                c.append(pa.table({"id": range(10_000, 20_000)}))
            shown.clear()
            call()
            assert any(text in one for one in shown), call
            assert shown[-1] == ""
            shown.clear()
        told = []
        lake.fsck(progress=lambda *one: told.append(one))
        assert told
        assert not shown
