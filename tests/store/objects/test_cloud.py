"""Buckets of S3 when the network or the server fails, in a fork, at Ctrl-C; and what their errors tell."""

import asyncio
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator

import pytest

from tests.store.proxy import Fault, Faults, Proxy
from tests.store.servers import S3Server
from tidelake.errors import OutcomeUnknown, StoreUnavailable, TidelakeError, UsageError
from tidelake.store.objects.address import parse_address
from tidelake.store.objects.cloud import CloudBucket
from tied_process import tied

SECRET = "the-planted/secret+key"


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def options_of(endpoint: str, **more: str) -> dict[str, str]:
    return {
        "endpoint": endpoint, "region": "us-east-1", "access_key_id": "me", "secret_access_key": SECRET,
        "allow_http": "true", **more,
    }  # fmt: skip


def calls(bucket: CloudBucket) -> list[tuple[Callable[[], object], bool]]:
    """Each call of a bucket, and whether it may change something."""
    return [
        (lambda: bucket.get("a"), False),
        (lambda: bucket.get("a", 1, 2), False),
        (lambda: bucket.get_all(["a", "b"]), False),
        (lambda: bucket.get_ranges("a", [(0, 1)]), False),
        (lambda: bucket.head("a"), False),
        (lambda: list(bucket.list("")), False),
        (lambda: list(bucket.folders("x/")), False),
        (lambda: bucket.put_new("a", b"x"), True),
        (lambda: bucket.put("a", b"x"), True),
        (lambda: bucket.delete(["a"]), True),
    ]


def test_a_server_that_says_nothing_is_given_up(silent: str) -> None:
    bucket = CloudBucket(parse_address("s3://b/x"), lambda: options_of(silent), deadline_s=0.2)
    for call, has_effect in calls(bucket)[:6] + calls(bucket)[7:9]:
        with pytest.raises(OutcomeUnknown if has_effect else StoreUnavailable, match="no answer within"):
            call()


def test_a_server_that_is_not_there_has_done_nothing() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{free.getsockname()[1]}"
    bucket = CloudBucket(parse_address("s3://b/x"), lambda: options_of(endpoint))
    for call, _ in calls(bucket):
        with pytest.raises(StoreUnavailable) as caught:
            call()
        assert caught.value.retryable


@pytest.mark.parametrize(
    ("fault", "write", "read"),
    [
        (Fault.RESET_BEFORE, OutcomeUnknown, StoreUnavailable),
        (Fault.RESET_AFTER, OutcomeUnknown, StoreUnavailable),
        (Fault.LOST_REPLY, OutcomeUnknown, StoreUnavailable),
        (Fault.ERROR_AFTER, OutcomeUnknown, StoreUnavailable),
        (Fault.CUT_BODY, None, StoreUnavailable),
        (Fault.CONFLICT, None, None),
        (Fault.DRIP, None, None),
    ],
)
def test_each_fault_means_what_it_must(
    s3_server: S3Server, fault: Fault, write: type[TidelakeError] | None, read: type[TidelakeError] | None
) -> None:
    address = parse_address(f"s3://{s3_server.new_bucket()}/x")
    CloudBucket(address, s3_server.options).put("there", b"x" * 100)
    with Proxy(s3_server.port, faults=Faults({fault: 1.0})) as proxy:
        bucket = CloudBucket(address, lambda: s3_server.options(proxy.endpoint))
        if write is not None:
            with pytest.raises(write):
                bucket.put_new("new", b"x")
        elif fault is Fault.CONFLICT:
            # A refusal that says nothing of whether there is an object: here there is none.
            assert not bucket.put_new("new", b"x")
            assert CloudBucket(address, s3_server.options).head("new") is None
        if read is not None:
            with pytest.raises(read) as caught:
                bucket.get("there")
            assert caught.value.retryable  # type: ignore[attr-defined]
        elif fault is Fault.DRIP:
            assert bucket.get("there") == b"x" * 100


def test_a_call_works_inside_a_running_loop(s3_server: S3Server) -> None:
    bucket = CloudBucket(parse_address(f"s3://{s3_server.new_bucket()}"), s3_server.options)

    async def cell() -> bytes:
        bucket.put("a", b"in a notebook")
        return bucket.get("a")

    assert asyncio.run(cell()) == b"in a notebook"


WAITING = """
import sys
from tidelake.store.objects.address import parse_address
from tidelake.store.objects.cloud import CloudBucket
options = dict(endpoint=sys.argv[1], region="x", access_key_id="a", secret_access_key="b", allow_http="true")
bucket = CloudBucket(parse_address("s3://b/x"), lambda: options, deadline_s=600)
print("waits", flush=True)
try:
    bucket.get("a")
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_a_call_that_waits_ends_at_ctrl_c() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
        with subprocess.Popen(
            tied(sys.executable, "-c", WAITING, endpoint), stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "waits\n"
            server.accept()[0].recv(1)  # the request is under way
            process.send_signal(signal.SIGINT)
            assert process.stdout.read() == "interrupted\n"
            assert process.wait() == 0


FORKING = """
import json, os, sys
from tidelake.store.objects.address import parse_address
from tidelake.store.objects.cloud import CloudBucket
address, options = parse_address(sys.argv[1]), json.loads(sys.argv[2])
bucket = CloudBucket(address, lambda: options)
bucket.put("0", b"x")
for depth in range(1, 4):
    if child := os.fork():
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    assert bucket.get(str(depth - 1)) == b"x"
    CloudBucket(address, lambda: options).put(str(depth), b"x")
    assert bucket.put_new(str(depth), b"y") is False
"""


def test_of_many_reads_only_those_that_fail_are_repeated(s3_server: S3Server) -> None:
    url = f"s3://{s3_server.new_bucket()}/many"
    keys = [f"{number}" for number in range(40)]
    direct = CloudBucket(parse_address(url), s3_server.options)
    for key in keys:
        direct.put(key, key.encode())
    faults = Faults.all_at(0.2, (Fault.RESET_BEFORE, Fault.ERROR_BEFORE))
    with Proxy(s3_server.port, faults=faults, seed=7) as proxy:
        bucket = CloudBucket(parse_address(url), lambda: s3_server.options(proxy.endpoint))
        assert bucket.get_all(keys) == [key.encode() for key in keys]
        assert proxy.faults_made >= 3
        assert proxy.requests["get"] == len(keys) + proxy.faults_made


def test_a_fork_and_its_forks_have_stores_of_their_own(s3_server: S3Server) -> None:
    url = f"s3://{s3_server.new_bucket()}/forks"
    done = subprocess.run(
        tied(sys.executable, "-c", FORKING, url, json.dumps(s3_server.options())),
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    bucket = CloudBucket(parse_address(url), s3_server.options)
    assert bucket.get_all(["0", "1", "2", "3"]) == [b"x"] * 4


def test_a_fork_of_this_process_has_its_own(s3_server: S3Server) -> None:
    bucket = CloudBucket(parse_address(f"s3://{s3_server.new_bucket()}"), s3_server.options)
    bucket.put("a", b"parent")
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if bucket.get("a") == b"parent" else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert bucket.get("a") == b"parent"


def test_no_error_tells_a_secret(s3_server: S3Server, silent: str) -> None:
    token = "a-session/token+secret"
    wrong = options_of(s3_server.endpoint, session_token=token, user_agent="x")
    asked = [
        CloudBucket(parse_address("s3://no-such-bucket"), lambda: wrong),
        CloudBucket(parse_address("s3://b"), lambda: options_of("http://127.0.0.1:1", session_token=token)),
        CloudBucket(parse_address("s3://b"), lambda: options_of(silent, session_token=token), deadline_s=0.1),
        CloudBucket(parse_address("s3://b"), lambda: options_of(f"http://me:{SECRET}@127.0.0.1:1/?k={token}")),
        CloudBucket(parse_address("s3://b"), lambda: {**wrong, "no_such_option": SECRET}),
        CloudBucket(parse_address("s3://b"), lambda: {**wrong, "checksum_algorithm": SECRET}),
        CloudBucket(
            parse_address("az://c"),
            lambda: {
                "account_name": "me", "sas_key": f"sig={token}&se=1", "endpoint": "http://127.0.0.1:1/me",
                "allow_http": "true",
            },
        ),
        CloudBucket(parse_address("az://c"), lambda: {"account_name": "me", "account_key": SECRET}),
        CloudBucket(parse_address("gs://b"), lambda: {"service_account_key": f'["{SECRET}"]'}),
    ]  # fmt: skip
    for bucket in asked:
        for call in (lambda b=bucket: b.get("a"), lambda b=bucket: b.put_new("a", b"x")):
            with pytest.raises((StoreUnavailable, OutcomeUnknown, UsageError)) as caught:
                call()
            told = "".join(traceback.format_exception(caught.value))
            told += repr(bucket) + repr(caught.value) + repr(pickle.dumps(caught.value))
            for secret in (SECRET, token, "sig="):
                assert secret not in told, told
            assert caught.value.__context__ is None
            assert caught.value.__cause__ is None


def test_a_bucket_does_not_leave_its_process() -> None:
    bucket = CloudBucket(parse_address("s3://b"), lambda: options_of("http://127.0.0.1:1"))
    with pytest.raises(UsageError, match="belongs to its process"):
        pickle.dumps(bucket)


def test_a_closed_bucket_says_so(s3_server: S3Server) -> None:
    bucket = CloudBucket(parse_address(f"s3://{s3_server.new_bucket()}"), s3_server.options)
    bucket.put("a", b"x")
    bucket.close()
    bucket.close()
    with pytest.raises(UsageError, match="closed"):
        bucket.get("a")
