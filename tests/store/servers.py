"""Servers that tests of stores run on this machine: S3 (moto, versitygw), Azure (azurite) and PostgreSQL.

Each function is a context manager that starts a server of its own on a free port of 127.0.0.1 and stops it.
moto is a package of the tests. The programs of the others are found in `$TIDELAKE_SERVERS/bin`, where
`setup/servers.sh` installs them, or on the PATH; where they are absent, the test is skipped. A server ends
with the test run, also if that is killed. tests/conftest.py has a fixture for each.
"""

import base64
import contextlib
import datetime
import functools
import hashlib
import hmac
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tied_process import tied

HOST = "127.0.0.1"
REGION = "us-east-1"
ACCESS_KEY = "testing-access"
SECRET_KEY = "testing-secret-key"
# So long a server may do nothing before it is given up, and so long it is waited for in any case.
STARTS_WITHIN_S = 60.0
_WAITS_AT_MOST_S = 1800.0
_MOTO = """
import sys, threading
from moto.moto_server.threaded_moto_server import ThreadedMotoServer
from moto.server import MotoRequestHandler
from moto.s3.responses import S3Response
# moto looks whether there is an object, and stores it later: of puts at once, several could win.
one_at_a_time, put_object = threading.Lock(), S3Response.put_object
def put_object_alone(response):
    with one_at_a_time:
        return put_object(response)
S3Response.put_object = put_object_alone
MotoRequestHandler.protocol_version = "HTTP/1.1"
server = ThreadedMotoServer(sys.argv[1], int(sys.argv[2]), verbose=False)
server.start()
threading.Event().wait()
"""


def free_port() -> int:
    """A port of 127.0.0.1 that no process listens on. Another process may take it before it is used."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return int(listener.getsockname()[1])


def found_program(name: str) -> str | None:
    """Where a program is; None: nowhere."""
    home = os.environ.get("TIDELAKE_SERVERS") or str(
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tidelake" / "servers"
    )
    found = shutil.which(name, path=f"{home}/bin") or shutil.which(name)
    # PostgreSQL runs as a user who may not look into our home.
    return None if found is None else os.path.realpath(found)


def program(name: str) -> str:
    """Where a program is; skips the test if it is nowhere."""
    found = found_program(name)
    if found is None:
        pytest.skip(f"no {name} on this machine; setup/servers.sh installs it")
    return found


class Server:
    """A process that listens on one port. It can be stopped, killed and started again on that port.

    Args:
        command: how it is started, tied to this process; `{port}` stands for the port.
        environment: variables besides those of this process.
        folder: its working directory.
    """

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        environment: dict[str, str] | None = None,
        stop_signal: signal.Signals = signal.SIGTERM,
    ) -> None:
        self._command = command
        self._folder = folder
        self._environment = {**os.environ, **(environment or {})}
        self._stop_signal = stop_signal
        self._process: subprocess.Popen[bytes] | None = None
        self._was_started = False
        self.port = free_port()

    def start(self) -> None:
        """Start the process; return when it takes connections."""
        for _ in range(3):
            self._configure()
            command = [part.replace("{port}", str(self.port)) for part in self._command]
            with (self._folder / "server.out").open("ab") as output:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=self._environment,
                    cwd=self._folder,
                )
            if self._listens():
                self._was_started = True
                return
            self.kill()
            if not self._was_started:  # another process took the port
                self.port = free_port()
        output = (self._folder / "server.out").read_text(errors="replace")
        raise RuntimeError(f"{self._command[0]} did not start:\n{output[-4_000:]}")

    def _configure(self) -> None:
        """Write what the process reads when it starts, and has the port in it."""

    def _listens(self) -> bool:
        def connects() -> bool:
            with contextlib.suppress(OSError), socket.create_connection((HOST, self.port), 1):
                return True
            return False

        return self.wait_until(connects) and self._process.poll() is None

    def wait_until(self, done: Callable[[], bool], pause_s: float = 0.02) -> bool:
        """Wait until something is so; False if the process has ended, or does nothing for a long time.

        A busy machine makes it slow: it may take as long as the process computes or prints something.
        """
        before, deadline_s, last_s = None, 0.0, time.monotonic() + _WAITS_AT_MOST_S
        while self._process is not None and self._process.poll() is None and time.monotonic() < last_s:
            if done():
                return True
            if (now := self._progress()) != before:
                before, deadline_s = now, time.monotonic() + STARTS_WITHIN_S
            elif time.monotonic() > deadline_s:
                return False
            time.sleep(pause_s)
        return False

    def _progress(self) -> tuple[object, ...]:
        """What changes as the process goes on: how much it has printed and, on Linux, computed."""
        stat = Path(f"/proc/{self.pid}/stat")
        # After the name: user and system time, of it and of its children.
        used = stat.read_text().rpartition(")")[2].split()[11:15] if stat.exists() else []
        return (self._folder / "server.out").stat().st_size, *used

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    def stop(self) -> None:
        """Ask the process to end, and wait for that."""
        self._end(self._stop_signal)

    def kill(self) -> None:
        """End the process as `kill -9` does."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(number)
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process = None


class S3Server(Server):
    """An S3 server. `endpoint` is its own address; that of a proxy before it is handed to the methods."""

    access_key = ACCESS_KEY
    secret_key = SECRET_KEY

    @property
    def endpoint(self) -> str:
        """The address of the server."""
        return f"http://{HOST}:{self.port}"

    def new_bucket(self) -> str:
        """Make an empty bucket and return its name."""
        import boto3

        name = f"b-{uuid.uuid4().hex}"
        client = boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            region_name=REGION,
        )
        client.create_bucket(Bucket=name)
        client.close()
        return name

    def options(self, endpoint: str | None = None) -> dict[str, str]:
        """How a client of object_store reaches the server, as options."""
        return {
            "endpoint": endpoint or self.endpoint,
            "access_key_id": self.access_key,
            "secret_access_key": self.secret_key,
            "region": REGION,
            "allow_http": "true",
        }

    def environment(self, endpoint: str | None = None) -> dict[str, str]:
        """How a client reaches the server, as variables of its environment."""
        return {
            "AWS_ENDPOINT_URL": endpoint or self.endpoint,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": REGION,
            "AWS_ALLOW_HTTP": "true",
        }


@contextlib.contextmanager
def own_folder(owner: pwd.struct_passwd | None = None) -> Iterator[Path]:
    """A folder that ends with the server; in memory if that is possible."""
    memory = Path("/dev/shm")
    folder = tempfile.mkdtemp(prefix="tidelake-", dir=memory if memory.is_dir() else None)
    if owner is not None:
        os.chown(folder, owner.pw_uid, owner.pw_gid)
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def s3_server() -> Iterator[S3Server]:
    """moto: S3 in the memory of one process; stopped, it has forgotten everything. Starts in a second."""
    pytest.importorskip("moto", reason="no moto: it is one of the packages of the tests")
    with own_folder() as folder:
        server = S3Server(tied(sys.executable, "-c", _MOTO, HOST, "{port}"), folder)
        server.start()
        try:
            yield server
        finally:
            server.kill()


@contextlib.contextmanager
def versitygw() -> Iterator[S3Server]:
    """versitygw: S3 on a folder. It keeps what it has over a stop and a kill."""
    path = program("versitygw")
    with own_folder() as folder:
        (folder / "buckets").mkdir()
        server = S3Server(
            tied(
                *(path, "--quiet", "--keep-alive", "--port", f"{HOST}:{{port}}"),
                *("posix", folder / "buckets"),
            ),
            folder,
            {"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY},
        )
        server.start()
        try:
            yield server
        finally:
            server.kill()


class AzureServer(Server):
    """An Azure blob server with one account."""

    account = "testing"
    key = base64.b64encode(b"key of the tests").decode()

    @property
    def endpoint(self) -> str:
        """The address of the account."""
        return f"http://{HOST}:{self.port}/{self.account}"

    def new_container(self) -> str:
        """Make an empty container and return its name."""
        name = f"c-{uuid.uuid4().hex}"
        now = datetime.datetime.now(datetime.UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
        headers = f"x-ms-date:{now}\nx-ms-version:2021-12-02"
        path = f"/{self.account}/{self.account}/{name}"
        signed = f"PUT{chr(10) * 12}{headers}\n{path}\nrestype:container"
        key = base64.b64decode(self.key)
        signature = base64.b64encode(hmac.digest(key, signed.encode(), hashlib.sha256)).decode()
        request = urllib.request.Request(
            f"{self.endpoint}/{name}?restype=container",
            method="PUT",
            data=b"",
            headers={
                "x-ms-date": now,
                "x-ms-version": "2021-12-02",
                "Authorization": f"SharedKey {self.account}:{signature}",
                "Content-Type": "",
            },
        )
        with urllib.request.urlopen(request, timeout=30):
            return name

    def options(self, endpoint: str | None = None) -> dict[str, str]:
        """How a client of object_store reaches the account, as options."""
        return {
            "endpoint": f"{endpoint}/{self.account}" if endpoint else self.endpoint,
            "account_name": self.account,
            "account_key": self.key,
            "allow_http": "true",
        }


@contextlib.contextmanager
def azurite() -> Iterator[AzureServer]:
    """azurite: Azure blobs in the memory of one process; stopped, it has forgotten everything."""
    path = program("azurite-blob")
    with own_folder() as folder:
        server = AzureServer(
            tied(
                *(path, "--blobHost", HOST, "--blobPort", "{port}", "--inMemoryPersistence"),
                *("--silent", "--disableTelemetry", "--skipApiVersionCheck"),
            ),
            folder,
            {"AZURITE_ACCOUNTS": f"{AzureServer.account}:{AzureServer.key}"},
        )
        server.start()
        try:
            yield server
        finally:
            server.kill()


class PostgresServer(Server):
    """A PostgreSQL server without passwords. It keeps what it has over a stop and a kill."""

    user = "tidelake"

    def url(self, database: str = "postgres", port: int | None = None) -> str:
        """How a client reaches a database; `port` is that of a proxy."""
        return f"postgresql://{self.user}@{HOST}:{port or self.port}/{urllib.parse.quote(database)}"

    def new_database(self) -> str:
        """Make an empty database and return its name."""
        import psycopg

        name = f"d{uuid.uuid4().hex}"
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}" TEMPLATE template0 STRATEGY file_copy')
        return name

    def start(self) -> None:
        """Start the server; return when it answers."""
        import psycopg

        super().start()

        def answers() -> bool:
            with contextlib.suppress(psycopg.OperationalError):  # it is starting up
                psycopg.connect(self.url(), connect_timeout=5).close()
                return True
            return False

        if not self.wait_until(answers):
            raise RuntimeError(
                f"PostgreSQL does not answer:\n{(self._folder / 'server.out').read_text()[-4_000:]}"
            )

    def kill(self) -> None:
        """End all processes of the server at once, as a crash of the machine does."""
        if self._process is not None and self._process.poll() is None:
            # A stopped one starts no further children, which would keep its memory from the next server.
            os.kill(self.pid, signal.SIGSTOP)
            children = Path(f"/proc/{self.pid}/task/{self.pid}/children")
            pids = [int(text) for text in children.read_text().split()] if children.exists() else []
            super().kill()
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                while _runs(pid):
                    time.sleep(0.001)


def _runs(pid: int) -> bool:
    """Whether a process has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@contextlib.contextmanager
def postgres(**own: str) -> Iterator[PostgresServer]:
    """PostgreSQL with a fresh cluster. As root it runs as another user: it refuses to run as root.

    It flushes nothing: what was committed outlives its processes, but not the machine.

    Args:
        own: settings besides the usual ones.
    """
    pytest.importorskip("psycopg", reason="no psycopg: tidelake[postgres] brings it")
    path, initdb = program("postgres"), program("initdb")
    user, as_user = None, tied
    if os.geteuid() == 0:
        user = _another_user()
        as_user = functools.partial(_as_user, program("setpriv"), user)
    with own_folder(user) as folder:
        made = subprocess.run(
            as_user(
                *(initdb, "--pgdata", folder / "data", "--username", PostgresServer.user, "--auth", "trust"),
                *("--no-sync", "--encoding", "UTF8", "--locale", "C", "--no-instructions"),
            ),
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode:
            raise RuntimeError(f"initdb failed:\n{made.stdout}{made.stderr}")
        settings = {
            "listen_addresses": HOST,
            "port": "{port}",
            "unix_socket_directories": "",
            "fsync": "off",
            "max_connections": "200",
            "shared_buffers": "32MB",
            **own,
        }
        arguments = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        # SIGINT ends sessions that are open; SIGTERM would wait for them.
        server = PostgresServer(
            as_user(path, "-D", folder / "data", *arguments), folder, stop_signal=signal.SIGINT
        )
        server.start()
        try:
            yield server
        finally:
            server.stop()


def _another_user() -> pwd.struct_passwd:
    users = {user.pw_name: user for user in pwd.getpwall()}
    return users.get("postgres") or users["nobody"]


def _as_user(setpriv: str, user: pwd.struct_passwd, *command: str | Path) -> list[str]:
    """A command that runs as another user and ends with this process, which `tied` cannot do."""
    ids = (f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups")
    return [setpriv, *ids, "--pdeathsig", "KILL", *map(str, command)]
