"""Real processes that append and maintain on one lake, killed with -9 at random instants."""

import collections
import subprocess
import sys
import time
from pathlib import Path

import pytest
from maintenance_child import CONFIG, ROWS, rows_of

import tidelake
from tables import SCHEMA
from tidelake.shard.upkeep.maintain import unmerged
from tiers import rounds

CHILD = Path(__file__).with_name("maintenance_child.py")


def child(lake, *arguments):
    return subprocess.Popen(
        [sys.executable, str(CHILD), str(lake), *arguments], stdout=subprocess.PIPE, text=True
    )


def killed(process):
    """End a process at once; what it had told by then."""
    process.kill()
    told, _ = process.communicate()
    # The kill may have cut the last line short.
    return told.split("\n")[:-1]


def lives(tmp_path, rng):
    """Rounds of kills: the collection, its last append, claims and bases that there were, and rounds."""
    lake = tidelake.open(tmp_path / "lake", config=CONFIG)
    c = lake.create("c", SCHEMA, key=["id"])
    acknowledged, count = -1, 0
    seen = collections.Counter()
    for _ in rounds(full=8, soak=300, least=3):
        writer, maintainer = child(tmp_path / "lake", "append", "w"), child(tmp_path / "lake", "maintain")
        # Both are at it, however long they took to start.
        first = int(writer.stdout.readline())
        assert first in (acknowledged + 1, acknowledged + 2)
        acknowledged = first
        assert maintainer.stdout.readline().startswith("merging")
        time.sleep(rng.random() * 0.3)
        in_order = [(writer, True), (maintainer, False)]
        rng.shuffle(in_order)
        for process, writes in in_order:
            told = killed(process)
            if writes:
                numbers = [int(line) for line in told]
                assert numbers == list(range(acknowledged + 1, acknowledged + 1 + len(numbers)))
                acknowledged += len(numbers)
            time.sleep(rng.random() * 0.05)
        state = c.state()
        claimed = state.claims.values()
        seen["bases claimed at a kill"] += sum(claim.base is not None for claim in claimed)
        seen["merges claimed at a kill"] += sum(claim.base is None for claim in claimed)
        seen["bases"] += len(state.bases)
        seen["slices"] += len(state.spine.slices)
        count += 1
        # An append that was under way may be in without having been told.
        assert c.state().writers["w"].sequence in (acknowledged, acknowledged + 1)
        assert unmerged(c.state().spine) <= CONFIG.runs_max + 2 * 20
    return c, c.state().writers["w"].sequence, seen, count


def contents(c):
    found = collections.Counter()
    for row in c.snapshot().read_all().to_pylist():
        found[row["id"]] += row["_diff"]
    return found


def expected(last):
    held = collections.Counter()
    for number in range(last + 1):
        for row in rows_of(number).to_pylist():
            held[row["id"]] += row["_diff"]
    return {number: count for number, count in held.items() if count}


@pytest.mark.full
@pytest.mark.grows
def test_writers_and_maintainers_that_are_killed_lose_and_double_nothing(tmp_path, rng, record_property):
    c, last, seen, count = lives(tmp_path, rng)
    assert last >= count
    assert contents(c) == expected(last)
    time.sleep(CONFIG.merge_claim_s)
    c.advance_since(c.last_time())
    assert c.maintain().complete
    state = c.state()
    live = len(expected(last))
    assert live == (last + 1) * ROWS // 2 + ROWS // 2
    assert (state.spine.totals.runs, state.spine.totals.rows) == (1, live)
    assert not state.claims and not state.chunks
    assert contents(c) == expected(last)
    assert not c.maintain().merges
    # Of many kills some hit a merge that was claimed, or a base.
    assert all(seen.values()) or count < 60
    found = ", ".join(f"{number} {name}" for name, number in sorted(seen.items()))
    record_property("figures", f"{2 * count} kills, {last + 1} appends, {found}")
