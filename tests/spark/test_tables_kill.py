"""An ingest of several tables whose driver is killed with -9 at any write: each event is in exactly once."""

import os
import random
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from feed import Feed, contents, told

import tidelake
from tiers import rounds

pytestmark = [pytest.mark.spark, pytest.mark.timeout(3600), pytest.mark.usefixtures("killed_jvms")]

DRIVER = Path(__file__).with_name("tables_driver.py")


@pytest.mark.full
def test_killed_anywhere(tmp_path: Path) -> None:
    feed = Feed(3)
    lake, directory, checkpoint = (tmp_path / name for name in ("lake", "in", "checkpoint"))
    directory.mkdir()
    tidelake.open(lake).close()
    chance = random.Random(3)
    kills = files = 0
    for _ in rounds(full=15, soak=1200):
        for _ in range(2):
            start = len(feed.lines)
            feed.transactions(5)
            files += 1
            path = directory / f"{files:05}.json"
            hidden = path.with_name("." + path.name)
            hidden.write_text("".join(line + "\n" for _, lines in feed.lines[start:] for line in lines))
            os.utime(hidden, (1_000_000_000 + files,) * 2)
            hidden.rename(path)
        kills += not _run(lake, directory, checkpoint, chance.randint(1, 25))
        assert _run(lake, directory, checkpoint, 0)
        opened = tidelake.open(lake)
        end = opened["shop"].upper.elements[0]
        assert {opened[name].upper for name in opened.list()} == {opened["shop"].upper}
        for (time, _), state in zip(feed.lines, feed.states, strict=True):
            for table, rows in state.items():
                if time < end:
                    found = contents(opened[f"shop.public.{table}"], time)
                    assert found == {key: told(row) for key, row in rows.items()}, (time, table)
        opened.close()
    assert kills, "no driver was killed before it was done"


def _run(lake: Path, directory: Path, checkpoint: Path, call: int) -> bool:
    """Whether a driver came to its end, instead of being killed."""
    command = [sys.executable, str(DRIVER), str(lake), str(directory), str(checkpoint), str(call)]
    with (lake.parent / "stderr.txt").open("a") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, start_new_session=True)
        try:
            out, _ = process.communicate(timeout=600)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode in (0, -signal.SIGKILL), (lake.parent / "stderr.txt").read_text()[-3000:]
    return out.strip().endswith(b"done")
