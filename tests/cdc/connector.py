"""Kafka Connect with a connector of Debezium: the changes of a database go to one topic.

`setup/servers.sh` copies the jars. The worker runs alone (`ConnectStandalone`), and keeps in a file how far
it is, so that it goes on after a kill.
"""

import contextlib
import json
import os
import signal
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.spark.kafka_broker import Broker, jars
from tests.store import servers
from tied_process import tied

NAME = "bank"
TOPIC = "bank"
_JVM = ("-Xmx384m", "-Xms64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
# A connector that finds no database or broker fails, and is started again.
_RESTARTS_MAX = 300
# A position is kept twice a second; on a busy machine later.
_KEPT_S = 30.0
CONVERTERS = {
    "key.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
}
# Settings for any database.
COMMON = {
    "topic.prefix": "bank",
    "provide.transaction.metadata": "true",
    "skipped.operations": "none",
    "decimal.handling.mode": "precise",
    "transforms": "one",
    "transforms.one.type": "org.apache.kafka.connect.transforms.RegexRouter",
    "transforms.one.regex": ".*",
    "transforms.one.replacement": TOPIC,
    "topic.creation.default.partitions": "1",
    "topic.creation.default.replication.factor": "1",
}
# docs/cdc.md explains each of them.
SETTINGS = {
    **COMMON,
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "plugin.name": "pgoutput",
    "slot.name": "bank",
    "publication.name": "bank",
    "schema.include.list": "public",
    "include.unknown.datatypes": "true",
    "snapshot.mode": "when_needed",
    "snapshot.locking.mode": "shared",
    "heartbeat.interval.ms": "1000",
    "heartbeat.action.query": "SELECT pg_logical_emit_message(false, 'heartbeat', '')",
}
# What is a matter of the database, and what a test has no time to wait for.
_OWN = {
    "publication.autocreate.mode": "filtered",
    "poll.interval.ms": "50",
    "retriable.restart.connector.wait.ms": "500",
    "slot.retry.delay.ms": "500",
    "slot.max.retries": "120",
}
_LOG = """
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d{ISO8601} %p %c{1}: %m%n
rootLogger.level=info
rootLogger.appenderRef.out.ref=out
logger.kafka.name=org.apache.kafka
logger.kafka.level=warn
"""


@dataclass(frozen=True)
class Source:
    """What a connector is told of its database.

    Attributes:
        jars: of the connector, as setup/servers.sh names them.
        settings: beside those of a worker; a folder of the worker's own is `{folder}` in them.
        told: what stands in a position after the first copy.
    """

    jars: str
    settings: Callable[[], dict[str, str]]
    told: bytes


def of_postgres(database: servers.PostgresServer) -> Source:
    """A PostgreSQL with the settings of docs/cdc.md."""

    def settings() -> dict[str, str]:
        own = {
            "database.hostname": servers.HOST,
            "database.port": str(database.port),
            "database.user": database.user,
            "database.dbname": "postgres",
        }
        return SETTINGS | own | _OWN

    return Source("debezium", settings, b'"lsn_commit"')


class Connector(servers.Server):
    """A worker of Kafka Connect with one connector. It keeps what it has over a stop and a kill."""

    def __init__(self, folder: Path, broker: Broker, source: Source) -> None:
        java = Path(os.environ["JAVA_HOME"]) / "bin" / "java" if "JAVA_HOME" in os.environ else "java"
        (folder / "log4j2.properties").write_text(_LOG)
        class_path = os.pathsep.join(map(str, jars(source.jars)))
        command = tied(
            *(java, *_JVM, f"-Djava.io.tmpdir={folder}"),
            f"-Dlog4j2.configurationFile={folder}/log4j2.properties",
            *("-cp", class_path, "org.apache.kafka.connect.cli.ConnectStandalone"),
            *(folder / "worker.properties", folder / "connector.properties"),
        )
        super().__init__(command, folder)
        self._broker, self._source = broker, source

    def _configure(self) -> None:
        worker = {
            "bootstrap.servers": self._broker.address,
            "listeners": f"http://{servers.HOST}:{self.port}",
            "plugin.discovery": "service_load",
            **CONVERTERS,
            "offset.storage.file.filename": str(self._folder / "offsets"),
            "offset.flush.interval.ms": "500",
        }
        told = {
            key: value.replace("{folder}", str(self._folder))
            for key, value in self._source.settings().items()
        }
        self._write("worker.properties", worker)
        self._write("connector.properties", {"name": NAME, **told})

    def kill(self) -> None:
        """End it as `kill -9` does, but not amid a write of its position, nor before it has kept one."""
        deadline_s = time.monotonic() + _KEPT_S
        while self._process is not None and self._process.poll() is None and time.monotonic() < deadline_s:
            self._process.send_signal(signal.SIGSTOP)
            time.sleep(0.02)
            position = self._folder / "offsets"
            kept = position.read_bytes() if position.exists() else b""
            # A position after the copy, and the mark at the end of a map that Java has written.
            if self._source.told in kept and kept.endswith(b"x"):
                break
            self._process.send_signal(signal.SIGCONT)
            time.sleep(0.02)
        super().kill()

    def _write(self, name: str, settings: dict[str, str]) -> None:
        (self._folder / name).write_text("".join(f"{key}={value}\n" for key, value in settings.items()))

    def wait(self) -> None:
        """Return when the connector runs and its topic is there; start it again if it has failed."""
        restarts = 0

        def runs() -> bool:
            nonlocal restarts
            state = self.state()
            if state == "FAILED" and restarts < _RESTARTS_MAX:
                restarts += 1
                self._ask(f"/connectors/{NAME}/restart?includeTasks=true&onlyFailed=true", "POST")
            return state == "RUNNING" and bool(self._ask(f"/connectors/{NAME}/topics")[NAME]["topics"])

        if not self.wait_until(runs, 0.1):
            raise RuntimeError(f"the connector is {self.state()}:\n{self.log()}")

    def state(self) -> str:
        """What the worker says of the connector's task; empty: nothing yet."""
        try:
            tasks = self._ask(f"/connectors/{NAME}/status")["tasks"]
        except (urllib.error.URLError, OSError):
            return ""
        return tasks[0]["state"] if tasks else ""

    def log(self) -> str:
        """The end of what it has printed."""
        return (self._folder / "server.out").read_text(errors="replace")[-6_000:]

    def _ask(self, path: str, method: str = "GET") -> Any:
        request = urllib.request.Request(f"http://{servers.HOST}:{self.port}{path}", method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read() or b"null")


@contextlib.contextmanager
def connector(broker: Broker, source: Source) -> Iterator[Connector]:
    """A worker that is not started yet: it copies the tables when it is first."""
    if not jars(source.jars):
        pytest.skip("no jars of Debezium on this machine; setup/servers.sh copies them")
    with servers.own_folder() as folder:
        made = Connector(folder, broker, source)
        try:
            yield made
        finally:
            made.kill()
