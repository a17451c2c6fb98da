"""A database, Debezium, Kafka and a driver of Spark, each a process that can be killed and started again."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

import psycopg

import tidelake
from tests.cdc.connector import TOPIC, Connector, Source, connector, of_postgres
from tests.spark.kafka_broker import Broker, broker
from tests.store.servers import Server, own_folder, postgres
from tied_process import tied

PARTS = ("driver", "kafka", "connector", "postgresql")
Say: TypeAlias = Callable[[str], None]
_DRIVER = Path(__file__).with_name("cdc_driver.py")
_WITHIN_S = 600.0


class Driver:
    """The process that follows the topic into the lake."""

    def __init__(self, place: Path, server: Broker) -> None:
        self.place, self._broker = place, server
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def ended(self) -> bool:
        """Whether it is not running."""
        return self._process is None or self._process.poll() is not None

    def start(self) -> None:
        """Start it; it is not waited for."""
        repository = _DRIVER.parents[2]
        paths = [str(repository), *(str(repository / "tests" / name) for name in ("", "spark"))]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "JDK_JAVA_OPTIONS": f"-Djava.io.tmpdir={self.place}",
            "TMPDIR": str(self.place),
        }
        arguments = (self._broker.address, TOPIC, self.place / "lake", self.place / "checkpoint")
        command = tied(sys.executable, _DRIVER, *arguments)
        with (self.place / "driver.out").open("ab") as out:
            self._process = subprocess.Popen(
                command,
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )

    def kill(self) -> None:
        """End it and all that it has started, as `kill -9` does."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def told(self) -> str:
        """What it has printed."""
        path = self.place / "driver.out"
        return path.read_text(errors="replace") if path.exists() else ""


@dataclass
class Pipeline:
    """All four. Started in the order of the data: a topic is there before the driver asks for it."""

    database: Any
    broker: Broker
    connector: Connector
    driver: Driver
    lake: Any

    def start(self) -> None:
        """Start the connector, which copies the tables, and the driver."""
        self.connector.start()
        self.connector.wait()
        self.driver.start()

    def follow(self, upto: int) -> None:
        """Wait until all times up to one are closed in the lake.

        Raises:
            RuntimeError: nothing is closed for a long time, or the driver has stopped with an error.
        """
        before, deadline_s = (-1, 0), 0.0
        while True:
            upper = self.lake["bank"].upper.elements[0] if "bank" in self.lake else 0
            if upper > upto:
                return
            # Before the first time it prints, and a busy machine makes it slow.
            if (now := (upper, len(self.driver.told()))) != before:
                before = now
                deadline_s = time.monotonic() + _WITHIN_S
            if self.driver.ended or time.monotonic() > deadline_s:
                raise RuntimeError(
                    f"the group is at {upper}, and not past {upto}: the driver says\n"
                    f"{self.driver.told()[-6_000:]}\nand the connector says\n{self.connector.log()}"
                )
            time.sleep(0.1)

    def kill_amid(self, part: str, bank: Any, random: Random, say: Say = lambda text: None) -> None:
        """Kill a part while the database changes and all others run, start it again; follow to a barrier."""
        bank.start()
        time.sleep(random.uniform(0.3, 2))
        say(f"kill -9 {part}")
        self._part(part).kill()
        time.sleep(random.uniform(0, 1))
        say(f"start {part} again")
        self._part(part).start()
        if part != "driver":
            self.connector.wait()
        time.sleep(random.uniform(0, 1))
        barrier = bank.barrier()
        say(f"barrier at {barrier.lsn}")
        self.follow(barrier.lsn)

    def lose_slot(self) -> None:
        """Let the database forget how far the connector was, and start the connector again."""
        self.connector.kill()
        drop = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active"
        with psycopg.connect(self.database.url(), autocommit=True) as connection:
            # It is active until PostgreSQL notices that the connector is gone.
            while connection.execute("SELECT 1 FROM pg_replication_slots").fetchone():
                connection.execute(drop)
                time.sleep(0.1)
        self.connector.start()
        self.connector.wait()

    def wait_for_the_end(self) -> str:
        """What the driver has printed when it has stopped by itself."""
        deadline_s = time.monotonic() + _WITHIN_S
        while not self.driver.ended and time.monotonic() < deadline_s:
            time.sleep(0.1)
        assert self.driver.ended, self.driver.told()
        return self.driver.told()

    def _part(self, name: str) -> Any:
        parts = {"driver": self.driver, "kafka": self.broker, "connector": self.connector}
        return parts.get(name, self.database)


@contextlib.contextmanager
def pipeline(
    database: Callable[[], contextlib.AbstractContextManager[Server]] = partial(
        postgres, wal_level="logical"
    ),
    source: Callable[[Any], Source] = of_postgres,
) -> Iterator[Pipeline]:
    """A database and a broker that run, a connector and a driver that do not. The lake ends with them."""
    with (
        database() as followed,
        broker() as server,
        connector(server, source(followed)) as worker,
        # JVMs put sockets there, whose paths must be short.
        own_folder() as place,
        tidelake.open(place / "lake") as lake,
    ):
        driver = Driver(place, server)
        try:
            yield Pipeline(followed, server, worker, driver, lake)
        finally:
            driver.kill()
