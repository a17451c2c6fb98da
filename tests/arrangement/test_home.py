"""Folders of batch files: they go with their last user, and what a process that was killed left goes too."""

import os
import shutil
import signal
import subprocess
import sys
import threading
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


def test_a_folder_that_others_removed_is_gone_without_a_word(tmp_path):
    home = Home(tmp_path, "a")
    shutil.rmtree(home.path)
    home.release()


def test_files_may_go_while_their_folder_is_removed(tmp_path):
    for i in range(60):
        home = Home(tmp_path, str(i))
        paths = [Path(home.path, str(n)) for n in range(300)]
        for path in paths:
            path.touch()
        found = [Path(home.path, name) for name in os.listdir(home.path)]
        others = [
            threading.Thread(target=lambda part=part: [path.unlink(missing_ok=True) for path in part])
            for part in (found[::-1], found[150:])
        ]
        for other in others:
            other.start()
        home.release()
        for other in others:
            other.join()
    assert folders(tmp_path) == []
