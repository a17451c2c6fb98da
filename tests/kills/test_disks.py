"""Disks that are full, and disks that go away, under processes at work: what was acknowledged is there."""

import os
import time
from contextlib import suppress

import pytest
from crew import Crew
from mounts import SHUTDOWN_FLAGS, Disk, tmpfs
from test_kills import CREW

ROUND_MIB = 12  # what the work of a round may leave behind


def full(tmp_path, rng, rounds):
    place = tmp_path / "disk"
    with tmpfs(place, f"{rounds * ROUND_MIB}m"):
        crew = Crew(place / "lake", CREW)
        try:
            for number in range(rounds):
                if (
                    number % 3 == 2
                ):  # half of the time a process goes that met a full disk, or one starts on it
                    victim = rng.choice(crew.children)
                    victim.await_ready()
                    crew.kill(victim)
                    crew.succeed(victim)
                for child in crew.children:
                    child.await_ready()
                writers = [child for child in crew.children if child.kind == "append"]
                _fill(place / "ballast", leave=rng.randrange(0, 256) * 1024)
                for child in writers:
                    child.await_more("error", 3)
                # Nobody is at rest on a full disk: some of the tries begin while room comes and goes.
                os.truncate(
                    place / "ballast", max(0, (place / "ballast").stat().st_size - rng.randrange(1 << 17))
                )
                time.sleep(rng.random() * 0.1)
                (place / "ballast").unlink()
                for child in writers:
                    child.await_more("in", 3)
                crew.check()
        finally:
            (place / "ballast").unlink(missing_ok=True)
            crew.kill_all()
        crew.check_at_rest()
    assert len(crew.errors) >= 6 * rounds
    for _, kind, retryable, message in crew.errors:
        assert kind == "OutcomeUnknown" or (retryable == "False" and "free space" in message), message
    return f"disk full {rounds} times, {len(crew.errors)} refusals; {crew.figures()}"


def _fill(path, leave):
    """A file that takes all the space but some."""
    free = os.statvfs(path.parent).f_bavail * os.statvfs(path.parent).f_frsize
    with path.open("wb") as file, suppress(OSError):  # the others were quicker, and it is full as it is
        os.posix_fallocate(file.fileno(), 0, max(1, free - leave))


def test_a_full_disk_loses_nothing_and_work_goes_on_when_there_is_space(tmp_path, rng, record_property):
    record_property("figures", full(tmp_path, rng, 3))


@pytest.mark.full
def test_a_disk_that_is_full_again_and_again_loses_nothing(tmp_path, rng, record_property):
    record_property("figures", full(tmp_path, rng, 10))


def pulled(tmp_path, rng, rounds):
    disk = Disk(tmp_path)
    try:
        crew = Crew(disk.place / "lake", CREW)
        try:
            for number in range(rounds):
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
            for child in crew.children:
                child.await_ready()
        finally:
            crew.kill_all()
        crew.check_at_rest()
    finally:
        disk.remove()
    assert min(crew.acknowledged.values()) > 0
    return f"disk pulled out {rounds} times; {crew.figures()}"


def test_a_disk_that_goes_away_loses_nothing_that_was_acknowledged(tmp_path, rng, record_property):
    record_property("figures", pulled(tmp_path, rng, 3))


@pytest.mark.full
def test_a_disk_that_goes_away_often_loses_nothing_that_was_acknowledged(tmp_path, rng, record_property):
    record_property("figures", pulled(tmp_path, rng, 10))
