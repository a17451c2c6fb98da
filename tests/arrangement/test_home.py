"""Folders of batch files: they go with their last user, and what a process that was killed left goes too."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from tidelake.arrangement.home import Home

CHILD = """
import sys, time
from tidelake.arrangement.home import Home
home = Home(sys.argv[1], "child")
open(home.path + "/rows", "w").close()
print("ready", flush=True)
time.sleep(600)
"""


def folders(path):
    return sorted(name.removeprefix("tidelake-arrangement-") for name in os.listdir(path))


def test_a_folder_goes_with_its_last_user(tmp_path):
    home = Home(tmp_path / "below", "a")
    Path(home.path, "rows").touch()
    home.acquire()

    home.release()
    assert folders(tmp_path / "below") == ["a"]
    home.release()
    assert folders(tmp_path / "below") == []


def test_what_is_in_use_stays_and_what_a_killed_process_left_goes(tmp_path):
    mine = Home(tmp_path, "mine")
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        assert child.stdout.readline() == b"ready\n"
        Home(tmp_path, "while").release()
        assert folders(tmp_path) == ["child", "mine"]
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()

    after = Home(tmp_path, "after")
    assert folders(tmp_path) == ["after", "mine"]
    after.release()
    mine.release()


def test_strangers_are_left_alone(tmp_path):
    (tmp_path / "tidelake-else").mkdir()
    (tmp_path / "tidelake-arrangement-no-lock").mkdir()
    Home(tmp_path, "a").release()
    assert sorted(os.listdir(tmp_path)) == ["tidelake-arrangement-no-lock", "tidelake-else"]
