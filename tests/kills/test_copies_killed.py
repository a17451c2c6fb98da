"""Copies by processes that are killed, and onto a disk that is full."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest
from copied_lakes import TINY, assert_same, compared, filled, grown
from mounts import tmpfs

import tidelake
from tables import SCHEMA
from tidelake.errors import StoreUnavailable
from tiers import rounds

CHILD = Path(__file__).with_name("copying_child.py")


@pytest.mark.promise(
    "Killed processes, a full disk, and stores of other kinds change nothing of that",
    also=["kills/test_copies_killed.py", "lake/admin/test_copies_far.py", "kills/test_kills.py"],
)
@pytest.mark.full
@pytest.mark.grows
def test_runs_that_are_killed_at_any_instant_are_gone_on_from(tmp_path, rng):
    with tidelake.open(tmp_path / "lake", config=TINY) as lake:
        filled(lake)
        seen, whole_s = [], 0.0
        for number in rounds(full=15, soak=300, least=8):
            grown(lake, 5000 + number * 400)
            command = [sys.executable, CHILD, tmp_path / "lake", tmp_path / "copy"]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
                assert child.stdout.readline() == "ready\n"
                began_s = time.monotonic()
                if number % 4:
                    time.sleep(rng.random() * 1.5 * whole_s)
                else:
                    assert child.stdout.readline() == "done\n"
                    whole_s = time.monotonic() - began_s
                child.kill()
            with tidelake.open(tmp_path / "copy") as target:
                for name in target.list():
                    copy = target.collection(name)
                    seen.append(copy.upper)
                    last = copy.upper.elements[0] - 1
                    assert copy.snapshot(last).read_all() == lake.collection(name).snapshot(last).read_all()
        with tidelake.open(tmp_path / "copy") as target:
            lake.copy(target)
            for name in target.list():
                # A run that was killed right before its commit has left a rollup that no state names.
                target.collection(name).collect(thorough=True)
            compared(target, lake)
        assert len({*seen}) > 1


@pytest.mark.full
def test_a_full_disk_stops_a_copy_and_the_next_run_goes_on(tmp_path):
    noise = pa.table({"id": range(40_000), "v": [os.urandom(40).hex() for _ in range(40_000)]})
    with tidelake.open(tmp_path / "lake") as lake, tmpfs(tmp_path / "disk", "6m"):
        lake.create("c", SCHEMA, key=["id"])
        for _ in range(4):
            lake.collection("c").append(noise)
        ballast = tmp_path / "disk" / "ballast"
        ballast.write_bytes(bytes(4 << 20))
        place = tmp_path / "disk" / "copy"
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="free space"):
                lake.copy(place)
            with tidelake.open(place) as target:
                assert target.list() == []
        ballast.unlink()
        lake.collection("c").advance_since(3)
        lake.collection("c").merge()
        lake.copy(place)
        with tidelake.open(place) as target:
            assert_same(target.collection("c"), lake.collection("c"))
            assert target.fsck().left == ()
