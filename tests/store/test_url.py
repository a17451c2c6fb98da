"""References, the marker, and who may open what."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from tidelake.config import Config
from tidelake.env import Counters, Env
from tidelake.errors import (
    BlobExists,
    CorruptionError,
    FormatTooNew,
    FormatTooOld,
    NotALake,
    StoreUnavailable,
    UsageError,
)
from tidelake.store.protocols import Entry
from tidelake.store.url import Stores, normalize_url, open_stores


def opened(url: str | Path, *, create: bool = False) -> Stores:
    return open_stores(url, Config(retry_deadline_s=0.0), Env(), create=create)


def test_a_created_lake_is_opened_again(tmp_path: Path) -> None:
    root = tmp_path / "deep" / "lake"
    first = opened(root, create=True)
    first.blobs.put("a", b"x")
    assert first.log.compare_and_set("k", None, b"y")
    first.close()
    marker = json.loads((root / "tidelake.json").read_bytes())
    assert marker["lake_format"] == 1
    assert len(marker["lake"]) == 32
    for url in (str(root), root, root.as_uri()):
        for create in (False, True):
            again = opened(url, create=create)
            assert again.blobs.get("a") == b"x"
            assert again.log.head("k") == Entry(0, b"y")
            again.close()
    assert json.loads((root / "tidelake.json").read_bytes()) == marker
    assert sorted(os.listdir(root)) == ["blobs", "log", "tidelake.json", "~tmp"]
    assert os.listdir(root / "~tmp") == []


def test_a_lake_is_not_invented(tmp_path: Path) -> None:
    with pytest.raises(NotALake, match=r"no directory .*missing"):
        opened(tmp_path / "missing")
    assert not (tmp_path / "missing").exists()
    with pytest.raises(NotALake, match="is empty: create"):
        opened(tmp_path)
    (tmp_path / "file").write_bytes(b"precious")
    for create in (False, True):
        with pytest.raises(NotALake, match="choose an empty directory"):
            opened(tmp_path, create=create)
        with pytest.raises(NotALake, match=r"file.* is a file, not a directory"):
            opened(tmp_path / "file", create=create)
    with pytest.raises(NotALake, match="is a file"):
        opened(tmp_path / "file" / "below", create=True)
    assert os.listdir(tmp_path) == ["file"]


def test_a_crash_while_creating_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "~tmp").mkdir()
    (tmp_path / "~tmp" / "4711-0").write_bytes(b'{"form')
    opened(tmp_path, create=True).close()
    assert os.listdir(tmp_path / "~tmp") == []
    opened(tmp_path).close()


@pytest.mark.parametrize(
    "data", [b"", b"{", b"\xff", b"[]", b"{}", b'{"lake_format": 1}', b'{"lake_format": "1", "lake": "x"}',
             b'{"lake_format": true, "lake": "x"}', b'{"lake_format": 0, "lake": "x"}',
             b'{"lake_format": 1, "lake": 3}', b'{"lake_format": 1, "lake": "x"}',
             b'{"lake_format": 1, "lake": "x", "log": "elsewhere"}']
)  # fmt: skip
def test_a_damaged_marker_is_corruption(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "tidelake.json").write_bytes(data)
    with pytest.raises(CorruptionError, match=r"tidelake\.json"):
        opened(tmp_path, create=True)


def test_a_newer_marker_is_too_new(tmp_path: Path) -> None:
    (tmp_path / "tidelake.json").write_bytes(b'{"lake_format": 2, "lakes": ["who knows"]}')
    with pytest.raises(FormatTooNew, match="format 2"):
        opened(tmp_path)


@pytest.mark.parametrize(
    "data", [b'{"format": 1, "lake": "x"}', b'{"format": 2, "lake": "x", "log": "postgres"}',
             b'{"tidelake": 1, "lake": "x", "log": "files"}', b'{"tidelake": 99, "lake": "x"}'])  # fmt: skip
def test_a_lake_of_an_unreleased_version_is_told_how_to_carry_its_data_over(
    tmp_path: Path, data: bytes
) -> None:
    (tmp_path / "tidelake.json").write_bytes(data)
    with pytest.raises(FormatTooOld, match=r"unreleased version.*tidelake snapshot.*append.*to a new lake"):
        opened(tmp_path, create=True)
    assert os.listdir(tmp_path) == ["tidelake.json"]


def test_eight_at_once_create_one_lake(tmp_path: Path) -> None:
    barrier = Barrier(8)

    def create(round_: int) -> str:
        barrier.wait()
        root = tmp_path / f"{round_}" / "lake"
        opened(root, create=True).close()
        return json.loads((root / "tidelake.json").read_bytes())["lake"]

    with ThreadPoolExecutor(8) as threads:
        for round_ in range(5):
            assert len(set(threads.map(create, [round_] * 8))) == 1


@pytest.mark.promise(
    "A lake is created once, and never in a directory with other files",
    rule="`store/url.py`",
    also=["::test_a_lake_is_not_invented"],
)
def test_four_processes_at_once_create_one_lake(tmp_path: Path) -> None:
    code = (
        "import sys; from tidelake.config import Config; from tidelake.env import Env\n"
        "from tidelake.store.url import open_stores\n"
        "sys.stdin.readline()\n"
        "stores = open_stores(sys.argv[1], Config(), Env(), create=True)\n"
        "assert stores.log.compare_and_set('k/' + sys.argv[2], None, b'x')\n"
    )
    root = tmp_path / "lake"
    children = [
        subprocess.Popen([sys.executable, "-c", code, str(root), f"{n}"], stdin=subprocess.PIPE)
        for n in range(4)
    ]
    for child in children:
        child.stdin.write(b"go\n")  # type: ignore[union-attr]
        child.stdin.flush()  # type: ignore[union-attr]
    for child in children:
        child.communicate(timeout=30)
        assert child.returncode == 0
    assert list(opened(root).log.keys()) == ["k/0", "k/1", "k/2", "k/3"]


def test_a_memory_lake_is_shared_by_its_name() -> None:
    with pytest.raises(NotALake, match="memory://missing"):
        opened("memory://missing")
    first = opened("memory://test-shared", create=True)
    first.blobs.put("a", b"x")
    first.close()
    second = opened("memory://test-shared")
    with pytest.raises(BlobExists):
        second.blobs.put("a", b"y")
    assert list(opened("memory://test-other", create=True).blobs.list()) == []


@pytest.mark.promise(
    "Objects that cross processes name a place and ids, and hold no live handle",
    rule="`shard/engine/spec.py`, `normalize_url`",
    also=[
        "shard/writing/test_batches.py::test_a_spec_is_enough_to_take_a_batch",
        "shard/writing/test_batches.py::test_bytes_are_a_checked_record_of_one_shard",
    ],
)
def test_a_reference_is_absolute_and_stable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    url = normalize_url("a lake/../b ?#%41é")
    assert url == f"file://{tmp_path}/b%20%3F%23%2541%C3%A9"
    assert normalize_url(url) == url
    assert normalize_url(tmp_path / "x/") == normalize_url(f"file://localhost{tmp_path}/x")
    assert normalize_url("memory://a/b") == "memory://a/b"
    stores = opened(url, create=True)
    stores.close()
    assert (tmp_path / "b ?#%41é" / "tidelake.json").exists()


@pytest.mark.parametrize(
    ("url", "reason"),
    [("http://bucket/x", "http:// is no place of a lake"), ("postgres://h/db", "postgres:// is no place"),
     ("s3://", "bad url"), ("s3://key:secret@bucket/x", "takes no name or key"),
     ("gs://b/a//c", "may be empty"), ("s3://bucket/x?region=eu", "takes no '.'"),
     ("abfss://c/x", "abfss://container@account"), ("s3://b/x#options", "after # it takes"),
     ("s3://b--x-s3/x", "in no order"), ("az://c/a/../b", "no segment"),
     ("file://host/x", "absolute"), ("file://", "absolute"), ("file:///x?y", "absolute"),
     ("", "bad path"), ("memory://", "bad name"), ("memory://../x", "bad name"), ("a\0b", "bad path")],
)  # fmt: skip
def test_another_reference_is_refused(url: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        opened(url, create=True)


def test_attempts_are_counted_below_the_retries(tmp_path: Path) -> None:
    counters = Counters()
    stores = open_stores(tmp_path, Config(), Env(recorder=counters), create=True)
    stores.blobs.put("a", b"xyz")
    assert counters.counts["blob.put"] == 2
    assert counters.counts["blob.put.bytes"] > 3
    stores.close()


def test_without_permission_a_lake_is_only_read_and_else_the_path_is_named() -> None:
    parent = Path(tempfile.mkdtemp())
    opened(parent / "lake", create=True).close()
    (parent / "closed").mkdir()
    for path in (parent / "lake", parent / "closed"):
        path.chmod(0o555)
    parent.chmod(0o755)
    pid = os.fork()
    if pid == 0:
        try:
            if os.geteuid() == 0:  # root may do anything: be another user
                os.setgid(65534)
                os.setuid(65534)
            _check_refusals(parent)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    status = os.waitpid(pid, 0)[1]
    for path in (parent / "lake", parent / "closed"):
        path.chmod(0o755)
    shutil.rmtree(parent)
    assert status == 0


def _check_refusals(parent: Path) -> None:
    assert opened(parent / "lake", create=False).read_only
    for path, create in ((parent / "closed", True), (parent / "closed" / "new", True)):
        try:
            opened(path, create=create)
        except StoreUnavailable as error:
            assert str(path) in str(error)  # noqa: PT017 - in a forked child
            assert not error.retryable  # noqa: PT017
        else:
            raise AssertionError(f"{path} could be opened")
