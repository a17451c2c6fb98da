"""Folders of batch files: they go with their last user, and what a process that was killed left goes too."""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from tidelake.arrangement.checkpoint.home import Home

CHILD = """
import sys, time
from tidelake.arrangement.checkpoint.home import Home
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


@pytest.mark.promise(
    "A folder of batches belongs to one user; files of others in the temporary directory block no "
    "user and are left alone; what a killed process left of one goes with the next, at whatever "
    "step it was",
    rule="`arrangement/checkpoint/home.py`",
    also=[
        "::test_whatever_has_the_name_of_a_folder_blocks_nothing_and_is_left_alone",
        "::test_another_user_blocks_no_one_and_loses_nothing",
    ],
)
@pytest.mark.parametrize("call", ["open", "fcntl.flock", "os.rename"])
def test_a_folder_whose_process_was_killed_before_it_had_its_name_goes(tmp_path, call):
    code = f"""
import os, sys
from tidelake.arrangement.checkpoint.home import Home
def killed(event, args):
    if event == {call!r} and (event != "open" or "tidelake-new-" in str(args[0])):
        os._exit(9)
os.makedirs(sys.argv[1])
sys.addaudithook(killed)
Home(sys.argv[1], "killed")
"""
    root = tmp_path / "root"
    assert subprocess.run([sys.executable, "-c", code, str(root)], check=False).returncode == 9
    assert [name.startswith("tidelake-new-") for name in os.listdir(root)] == [True]
    Home(root, "a").release()
    assert os.listdir(root) == []


@pytest.mark.full
@pytest.mark.promise(
    "What a query has spilled goes with it, or with the first query of a later process if its own was killed",
    rule="`Home.for_spills`",
)
def test_what_a_killed_query_has_spilled_goes_with_the_first_query_of_a_later_process(tmp_path):
    code = """
import os, sys, tempfile
import pyarrow as pa
import tidelake
from tidelake.views.database import Database
lake = tidelake.open(sys.argv[1])
if "a" not in lake:
    lake.create("a", {"id": "int64"}, key=["id"]).append(pa.table({"id": [1]}))
rows = iter(lake.sql("SELECT * FROM a"))
with Database() as database:
    database.connection
    print(len(os.listdir(tempfile.gettempdir())), flush=True)
    if sys.argv[2] == "dies":
        os._exit(9)
"""
    root = tmp_path / "root"
    root.mkdir()
    for end in ("dies", "lives"):
        command = [sys.executable, "-c", code, str(tmp_path / "lake"), end]
        done = subprocess.run(
            command, check=False, capture_output=True, env={**os.environ, "TMPDIR": str(root)}
        )
        assert done.stdout == b"2\n", done.stderr
        assert len(os.listdir(root)) == (2 if end == "dies" else 0)


def test_a_folder_that_is_being_made_may_be_taken_for_a_leftover(tmp_path, monkeypatch):
    lock, swept = fcntl.flock, []

    def late(descriptor, operation):
        if not swept:
            swept.append(True)
            Home(tmp_path, "other").release()
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    home = Home(tmp_path, "mine")
    assert folders(tmp_path) == ["mine"]
    home.release()
    assert folders(tmp_path) == []


def test_strangers_are_left_alone(tmp_path):
    names = ["tidelake-arrangement-no-lock", "tidelake-else", "tidelake-new-locked", "tidelake-new-mine"]
    for name in names:
        (tmp_path / name).mkdir()
    (tmp_path / "tidelake-new-mine" / "rows").touch()
    (tmp_path / "tidelake-new-locked" / "lock").touch()
    with (tmp_path / "tidelake-new-locked" / "lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        Home(tmp_path, "a").release()
    assert sorted(os.listdir(tmp_path)) == names


def test_whatever_has_the_name_of_a_folder_blocks_nothing_and_is_left_alone(tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "lock").touch()
    shared = tmp_path / "shared"
    (shared / "tidelake-arrangement-a" / "lock").mkdir(parents=True)
    (shared / "tidelake-arrangement-b").symlink_to(precious)
    (shared / "tidelake-arrangement-c").mkdir()
    (shared / "tidelake-arrangement-c" / "lock").symlink_to(precious / "lock")
    (shared / "tidelake-arrangement-d").mkdir()
    os.mkfifo(shared / "tidelake-arrangement-d" / "lock")
    (shared / "tidelake-arrangement-e").touch()
    before = folders(shared)

    home = Home(shared, "mine")
    assert Path(home.path).stat().st_mode & 0o777 == 0o700
    assert folders(shared) == sorted([*before, "mine"]) and list(precious.iterdir()) == [precious / "lock"]
    home.release()
    assert folders(shared) == before


def as_nobody(call):
    """Call something in a process of another user."""
    child = os.fork()
    if not child:
        status = 1
        with suppress(BaseException):
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            call()
            status = 0
        os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_blocks_no_one_and_loses_nothing(shared_folder):
    def squats():
        os.makedirs(shared_folder / "tidelake-arrangement-x" / "lock")
        # As what a process of theirs that was killed left, which is theirs to remove.
        os.mkdir(shared_folder / "tidelake-arrangement-y", 0o777)
        (shared_folder / "tidelake-arrangement-y" / "lock").touch()

    as_nobody(squats)
    home = Home(shared_folder, "mine")
    assert folders(shared_folder) == ["mine", "x", "y"]

    def arranges():
        Home(shared_folder, "theirs").release()

    shutil.rmtree(shared_folder / "tidelake-arrangement-x")
    as_nobody(arranges)
    assert folders(shared_folder) == ["mine"]
    home.release()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_folder_that_cannot_be_listed_is_as_good(shared_folder):
    shared_folder.chmod(0o1733)
    as_nobody(lambda: Home(shared_folder, "theirs").release())


@pytest.fixture
def shared_folder():
    """As `/tmp`, with no folder above it that is closed to other users."""
    path = Path(tempfile.mkdtemp(prefix="tidelake-shared-"))
    path.chmod(0o1777)
    yield path
    shutil.rmtree(path)


def test_a_folder_that_others_removed_is_gone_without_a_word(tmp_path):
    home = Home(tmp_path, "a")
    shutil.rmtree(home.path)
    home.release()


@pytest.mark.full
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
