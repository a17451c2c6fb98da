"""`tidelake serve`: where it listens, and which token it takes."""

import subprocess
import sys
import urllib.error
import urllib.request

import pyarrow as pa
import pytest

pytest.importorskip("uvicorn")

import tidelake
from tidelake.errors import UsageError
from tidelake.web.serve import is_loopback, token_for
from tied_process import tied

COMMAND = "from tidelake.cli.main import main; main()"
TOKEN = "0123456789-abcdef"


@pytest.fixture
def place(tmp_path):
    with tidelake.open(tmp_path / "lake") as lake:
        lake.create("c", pa.schema([pa.field("k", pa.int64(), nullable=False)]), key=["k"])
    return tmp_path / "lake"


def test_it_answers_and_ends_without_a_trace(place):
    command = [sys.executable, "-c", COMMAND, "serve", place, "--port", "0"]
    with subprocess.Popen(
        tied(*command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        address = running.stdout.readline().split()[-1]
        with urllib.request.urlopen(f"{address}api/lake") as answer:
            assert b'"collections":1' in answer.read()
        running.terminate()
        _, err = running.communicate(timeout=60)
    assert "Traceback" not in err


def test_the_token_of_a_file_is_needed_and_is_in_no_output(place, tmp_path):
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    command = [sys.executable, "-c", COMMAND, "serve", place, "--port", "0", "--host", "0.0.0.0"]
    command += ["--token-file", tmp_path / "token"]
    with subprocess.Popen(
        tied(*command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        first = running.stdout.readline()
        port = first.rstrip("/\n").rpartition(":")[2]
        url = f"http://127.0.0.1:{port}/api/lake"
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(url)
        wanted = urllib.request.Request(url, headers={"Authorization": f"Bearer {TOKEN}"})
        with urllib.request.urlopen(wanted) as answer:
            assert answer.status == 200
        running.terminate()
        out, err = running.communicate(timeout=60)
    assert TOKEN not in first + out + err


def test_an_address_of_other_machines_needs_a_token():
    with pytest.raises(UsageError, match="--token-file"):
        token_for("0.0.0.0", None, may_show=False)
    made, shown = token_for("10.1.2.3", None, may_show=True)
    assert shown
    assert len(made) >= 32
    assert token_for("::", TOKEN, may_show=False) == (TOKEN, False)
    assert token_for("127.0.0.1", None, may_show=False) == (None, False)
    assert token_for("127.0.0.1", TOKEN, may_show=False) == (TOKEN, False)


@pytest.mark.parametrize(
    "token", ["", "short", "x" * 15, "with a space in the middle", "ü" * 20, "a\nb" * 10]
)
def test_a_weak_token_is_refused(token):
    with pytest.raises(UsageError, match="at least 16"):
        token_for("0.0.0.0", token, may_show=True)


def test_which_addresses_only_this_machine_reaches():
    assert all(map(is_loopback, ["localhost", "127.0.0.1", "127.9.9.9", "::1"]))
    assert not any(
        map(is_loopback, ["", "0.0.0.0", "::", "10.0.0.1", "lake.example", "localhost.evil.example"])
    )
