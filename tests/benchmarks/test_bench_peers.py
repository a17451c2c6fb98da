"""The comparison with other tables and engines: a small slice of it, with the peers that are installed."""

import pytest

from bench.peers import __main__ as page
from bench.peers import run as comparison
from bench.peers.run import PEERS, Sizes, python_of, run
from bench.peers.workload import Truth

TINY = Sizes(rows=300, upserts=4, appends=3, rounds=1, looked_up=(1, 40), together=2)


@pytest.mark.full
def test_ours_and_an_engine_without_versions_answer_as_the_truth_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = run(TINY, ("tidelake", "sqlite"))
    ours, theirs = found["tidelake"], found["sqlite"]
    assert ours["cannot"] == {}
    assert {"old snapshot", "changes"} <= {*theirs["cannot"]} and "old snapshot" not in theirs["work"]
    assert len(ours["work"]) == 17
    assert [*ours["appends_per_s"]] == [1, 2]
    for one in (ours, theirs):
        assert one["flushes_per_append"] is None or one["flushes_per_append"] >= 1
        assert one["bytes"] > 0 < one["peak_mib"]
        assert all(0 < work["min_ms"] <= work["median_ms"] for work in one["work"].values())
    text = page.page({"machine": {"cpu": "some"}, "sizes": vars(TINY), "peers": found})
    assert "| upsert of 1 % | " in text and "*sqlite*: it keeps no versions" in text

    monkeypatch.setattr(Truth, "changes", lambda *_: [0, 0, 0, 0])
    with pytest.raises(ValueError, match="tidelake, changes: "):
        run(Sizes(rows=50, upserts=2, appends=1, rounds=1, looked_up=(), together=1), ("tidelake",))


@pytest.mark.full
def test_peers_that_are_installed_answer_as_the_truth_does() -> None:
    installed = [peer for peer in PEERS if peer not in comparison.OF_PYTHON and python_of(peer) is not None]
    if not installed:
        pytest.skip("no peer is installed: setup/peers.sh installs them, from a package registry")
    chosen = [peer for peer in ("deltalake", "duckdb", "ducklake") if peer in installed] or installed[:1]
    found = run(TINY, chosen)
    assert [*found] == chosen
    assert all("newest snapshot at rest" in one["work"] for one in found.values())
