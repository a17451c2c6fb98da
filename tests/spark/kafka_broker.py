"""A Kafka broker for tests, and what makes and fills its topics.

`setup/servers.sh` copies the jars of the broker, and those by which Spark reads it. The client runs in the
JVM of the test's Spark session, whose class path has them (`class_path`).
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.store import servers
from tied_process import tied

_JVM = ("-Xmx256m", "-Xms64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
_SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "auto.create.topics.enable": "false",
    "log.cleaner.enable": "false",
    # Tests choose the times of messages.
    "log.retention.ms": "-1",
    # After a kill it is let in again when its session has ended.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "num.network.threads": "1",
    "num.io.threads": "2",
}


def jars(name: str) -> list[Path]:
    """The jars of the newest version of `name` that setup/servers.sh has copied; none if it has not."""
    home = os.environ.get("TIDELAKE_SERVERS") or str(
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tidelake" / "servers"
    )
    folders = sorted(one for one in Path(home).glob(f"{name}-[0-9]*") if one.suffix != ".new")
    return sorted(folders[-1].glob("*.jar")) if folders else []


def class_path() -> dict[str, str]:
    """Settings by which a session on this machine reads Kafka; none if the jars are not there."""
    found = jars("spark-kafka")
    return {"spark.driver.extraClassPath": os.pathsep.join(map(str, found))} if found else {}


class Broker(servers.Server):
    """A broker on a folder. It keeps what it has over a stop and a kill."""

    @property
    def address(self) -> str:
        """What clients are given."""
        return f"{servers.HOST}:{self.port}"


@contextlib.contextmanager
def broker() -> Iterator[Broker]:
    """A broker that is its own controller."""
    found = jars("kafka")
    if not found or not jars("spark-kafka"):
        pytest.skip("no jars of Kafka on this machine; setup/servers.sh copies them")
    java = Path(os.environ["JAVA_HOME"]) / "bin" / "java" if "JAVA_HOME" in os.environ else "java"
    with servers.own_folder() as folder:
        controller = servers.free_port()
        data = folder / "data"
        data.mkdir()
        (data / "meta.properties").write_text("version=1\ncluster.id=dGlkZWxha2UtdGVzdHMtMQ\nnode.id=1\n")
        settings = _SETTINGS | {
            "controller.quorum.voters": f"1@{servers.HOST}:{controller}",
            "log.dirs": str(data),
        }
        text = "".join(f"{name}={value}\n" for name, value in settings.items())
        (folder / "server.properties").write_text(text)
        own, other = f"{servers.HOST}:{{port}}", f"{servers.HOST}:{controller}"
        server = Broker(
            tied(
                *(java, *_JVM, f"-Djava.io.tmpdir={folder}"),
                *("-cp", os.pathsep.join(map(str, found)), "kafka.Kafka", folder / "server.properties"),
                *("--override", f"listeners=PLAINTEXT://{own},CONTROLLER://{other}"),
                *("--override", f"advertised.listeners=PLAINTEXT://{own}"),
            ),
            folder,
        )
        server.start()
        try:
            yield server
        finally:
            server.kill()


class Topics:
    """Makes and fills topics of a broker, by the JVM of a session."""

    def __init__(self, spark: Any, server: Broker) -> None:
        self.spark, self.server = spark, server
        self._jvm = spark._jvm
        self._clients = self._jvm.org.apache.kafka.clients
        settings = self._jvm.java.util.HashMap()
        settings.put("bootstrap.servers", server.address)
        self._admin = self._clients.admin.AdminClient.create(settings)
        nothing = "org.apache.kafka.common.serialization.ByteArraySerializer"
        settings = self._jvm.java.util.HashMap(settings)
        settings.put("key.serializer", nothing)
        settings.put("value.serializer", nothing)
        self._producer = self._clients.producer.KafkaProducer(settings)

    def close(self) -> None:
        """End the clients."""
        self._producer.close()
        self._admin.close()

    def make(self, name: str, partitions: int = 1) -> None:
        """Make an empty topic."""
        optional = self._jvm.java.util.Optional
        topic = self._clients.admin.NewTopic(name, optional.of(partitions), optional.empty())
        self._admin.createTopics(self._list(topic)).all().get()

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        partition: int = 0,
        stamp_ms: int = 1_700_000_000_000,
        headers: Mapping[str, bytes] | None = None,
    ) -> None:
        """Send a message; `flush` says when it is there."""
        record = self._clients.producer.ProducerRecord(topic, partition, stamp_ms, key, value)
        for name, content in (headers or {}).items():
            record.headers().add(name, content)
        self._producer.send(record)

    def flush(self) -> None:
        """Wait until all messages are in the broker."""
        self._producer.flush()

    def stream(self, topics: str, **options: Any) -> Any:
        """A stream of topics, from their beginning."""
        reader = self.spark.readStream.format("kafka").option("kafka.bootstrap.servers", self.server.address)
        given = {"subscribe": topics, "startingOffsets": "earliest", **options}
        return reader.options(**given).load()

    def _list(self, *items: Any) -> Any:
        found = self._jvm.java.util.ArrayList()
        for item in items:
            found.add(item)
        return found
