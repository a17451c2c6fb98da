"""The servers that tests of stores run: they start, keep what they promise to keep, and decide races."""

import contextlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import obstore
import psycopg
import pytest
from obstore.exceptions import AlreadyExistsError
from obstore.store import AzureStore, S3Store

from tests.store import servers

SCRIPT = Path(__file__).parents[2] / "setup" / "servers.sh"


def winners(store, key):
    """How many of several racing puts of a new object say that they made it."""

    def put(number):
        with contextlib.suppress(AlreadyExistsError):
            obstore.put(store, key, b"%d" % number, mode="create")
            return number
        return None

    with ThreadPoolExecutor(8) as threads:
        won = [number for number in threads.map(put, range(8)) if number is not None]
    assert obstore.get(store, key).bytes().to_bytes() in [b"%d" % number for number in won]
    return len(won)


def races(store, rounds):
    return {winners(store, f"folder/{number}") for number in range(rounds)}


def test_moto_decides_races(s3_server):
    store = S3Store(s3_server.new_bucket(), config=s3_server.options())
    assert races(store, 10) == {1}


@pytest.mark.full
def test_versitygw_decides_races_and_keeps_what_it_has(versitygw):
    store = S3Store(versitygw.new_bucket(), config=versitygw.options())
    assert races(store, 50) == {1}
    versitygw.kill()
    versitygw.start()
    assert len(obstore.list(store).collect()) == 50


@pytest.mark.full
def test_azurite_decides_races(azurite):
    store = AzureStore(azurite.new_container(), config=azurite.options())
    assert races(store, 50) == {1}


@pytest.mark.full
def test_postgresql_keeps_what_it_has(postgres):
    url = postgres.url(postgres.new_database())
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE numbers AS SELECT 7 AS number")
    postgres.kill()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url, connect_timeout=5)
    postgres.start()
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT number FROM numbers").fetchall() == [(7,)]


def test_a_program_that_is_nowhere_skips_the_test_and_says_what_installs_it(monkeypatch, tmp_path):
    monkeypatch.setenv("TIDELAKE_SERVERS", str(tmp_path))
    with pytest.raises(pytest.skip.Exception, match=r"no such-server .*setup/servers\.sh"):
        servers.program("such-server")


def test_a_server_that_does_not_start_says_why(tmp_path):
    command = [sys.executable, "-c", "raise SystemExit('no more disk')"]
    with pytest.raises(RuntimeError, match="no more disk"):
        servers.Server(command, tmp_path).start()


@pytest.mark.skipif(sys.platform != "linux", reason="the programs of Linux, where Linux has them")
def test_what_cannot_be_installed_is_said_and_fails_nothing(tmp_path):
    """Without programs that install anything, and on a disk that takes no folder."""
    bare = tmp_path / "programs"
    bare.mkdir()
    for name in (
        "bash",
        "dirname",
        "readlink",
        "mkdir",
        "flock",
        "ls",
        "tail",
        "sort",
        "id",
        "ln",
        "basename",
    ):
        (bare / name).symlink_to(Path("/usr/bin") / name)
    environment = {"PATH": str(bare), "HOME": str(tmp_path)}

    def said(**more):
        done = subprocess.run(
            ["/usr/bin/bash", SCRIPT], env=environment | more, capture_output=True, text=True, check=True
        )
        return done.stderr

    for name in ("versitygw", "azurite"):
        assert f"could not install {name}, so its tests are skipped" in said()
    assert "cannot be made" in said(TIDELAKE_SERVERS=os.devnull + "/servers")
