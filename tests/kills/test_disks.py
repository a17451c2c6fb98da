"""Disks that are full, and disks that go away, under processes at work: what was acknowledged is there."""

import os
import time
from contextlib import suppress

import pytest
from crew import PATIENCE_S, Crew
from mounts import SHUTDOWN_FLAGS, ext4, holding_all_mounts, tmpfs
from test_kills import CREW

from tidelake.errors import StoreUnavailable
from tidelake.store.framed.log import FramedVersionLog
from tiers import rounds

# Enough for any number of rounds, since what is not needed is collected.
DISK = "48m"


@pytest.mark.full
@pytest.mark.grows
def test_a_full_disk_loses_nothing_and_work_goes_on_when_there_is_space(tmp_path, rng, record_property):
    place = tmp_path / "disk"
    ballast = place / "ballast"
    with tmpfs(place, DISK), Crew(place / "lake", CREW) as crew:
        for number in rounds(full=6, soak=600, least=3):
            if number % 3 == 2:  # one that met a full disk goes, and one starts on a disk that will be full
                victim = rng.choice(crew.children)
                victim.await_ready()
                crew.kill(victim)
                crew.succeed(victim)
            for child in crew.children:
                child.await_ready()
            writers = [child for child in crew.children if child.kind == "append"]
            _fill_until(
                ballast, rng.randrange(256 << 10), {child: child.count("error") + 3 for child in writers}
            )
            # A little room, which ends in the middle of something.
            os.truncate(ballast, max(0, ballast.stat().st_size - rng.randrange(128 << 10)))
            time.sleep(rng.random() * 0.1)
            ballast.unlink()
            for child in writers:
                child.await_more("in", 3)
            crew.check()
        crew.check_at_rest()
    assert len(crew.errors) >= 6 * (number + 1)
    for _, kind, retryable, message in crew.errors:
        assert kind == "OutcomeUnknown" or (retryable == "False" and "free space" in message), message
    refusals = f"disk full {number + 1} times, {len(crew.errors)} refusals"
    record_property("figures", f"{refusals}; {crew.figures()}")


def _fill_until(path, leave, errors):
    """A file that takes all the space but some, and then all, until each child has told so many errors."""
    deadline_s = time.monotonic() + PATIENCE_S
    _fill(path, leave)
    while any(child.count("error") < count for child, count in errors.items()):
        assert time.monotonic() < deadline_s, [child.told[-3:] for child in errors]
        time.sleep(0.01)
        # What was collected meanwhile.
        _fill(path, 0)


def _fill(path, leave):
    """Take all the space but some."""
    free = os.statvfs(path.parent).f_bavail * os.statvfs(path.parent).f_frsize
    with path.open("ab") as file, suppress(OSError):  # the others were quicker, and it is full as it is
        os.posix_fallocate(file.fileno(), 0, max(1, file.tell() + free - leave))


@pytest.mark.full
@pytest.mark.grows
def test_a_disk_that_goes_away_loses_nothing_that_was_acknowledged(tmp_path, rng, record_property):
    with ext4(tmp_path) as disk, Crew(disk.place / "lake", CREW) as crew:
        for number in rounds(full=6, soak=600, least=3):
            for child in crew.children:
                child.await_ready()
            time.sleep(rng.random() * 0.5)
            disk.shut_down(SHUTDOWN_FLAGS[-1 - number % 3])
            gone = list(crew.children)
            time.sleep(rng.random() * 0.05)
            crew.kill_all()
            disk.plug_in_again()
            crew.check()
            for child in gone:
                crew.succeed(child)
        crew.await_work()
        crew.check_at_rest()
    assert min(crew.acknowledged.values()) > 0
    record_property("figures", f"disk pulled out {number + 1} times; {crew.figures()}")


def test_a_disk_comes_back_while_another_process_holds_what_was_shut_down(tmp_path):
    with ext4(tmp_path) as disk, holding_all_mounts():
        (disk.place / "file").write_text("kept")
        os.sync()
        disk.shut_down(SHUTDOWN_FLAGS[-1])
        disk.plug_in_again()
        assert (disk.place / "file").read_text() == "kept"


@pytest.mark.parametrize("flag", SHUTDOWN_FLAGS)
def test_a_log_on_a_disk_that_went_away_is_not_called_damaged(tmp_path, flag):
    with ext4(tmp_path) as disk:
        writer, reader = (FramedVersionLog(str(disk.place / "log")) for _ in range(2))
        assert writer.compare_and_set("a", None, b"first")
        assert reader.head("a").data == b"first"
        # The reader has to read again.
        assert writer.compare_and_set("a", 0, b"second")
        disk.shut_down(flag)
        with pytest.raises(StoreUnavailable, match="input/output error") as refused:
            reader.head("a")
        assert refused.value.retryable
        writer.close()
        reader.close()
        disk.plug_in_again()
        assert FramedVersionLog(str(disk.place / "log")).head("a").data == b"second"
