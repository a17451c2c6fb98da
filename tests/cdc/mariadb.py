"""A MariaDB server for tests, and Debezium's connector of MySQL, which reads it too."""

import contextlib
import pwd
import subprocess
from collections.abc import Iterator

from tests.cdc.connector import COMMON, Source
from tests.store import servers
from tied_process import tied

DATABASE = "shop"
_SETTINGS = {
    **COMMON,
    "connector.class": "io.debezium.connector.mysql.MySqlConnector",
    "database.user": "tidelake",
    "database.ssl.mode": "disabled",
    "database.server.id": "77",
    "database.include.list": DATABASE,
    "snapshot.mode": "initial",
    "schema.history.internal": "io.debezium.storage.file.history.FileSchemaHistory",
    "schema.history.internal.file.filename": "{folder}/history",
    "poll.interval.ms": "50",
    "errors.max.retries": "-1",
    "retriable.restart.connector.wait.ms": "500",
}
_CLIENT = ("--batch", "--raw", "--skip-column-names", "--default-character-set=utf8mb4")


class MariaServer(servers.Server):
    """A server without passwords, with a binlog of rows. It keeps what it has over a stop and a kill."""

    def run(self, script: str, *, check: bool = True) -> list[str] | None:
        """Run statements in a session of their own; the lines of their results. None if one has failed."""
        client = (servers.program("mariadb"), "--no-defaults", *_CLIENT, f"--host={servers.HOST}")
        done = subprocess.run(
            [*client, f"--port={self.port}", "--user=tidelake", "--database=mysql"],
            input=script,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode and check:
            raise RuntimeError(f"{script[:200]}: {done.stderr}")
        return None if done.returncode else done.stdout.splitlines()

    def start(self) -> None:
        """Start the server; return when it answers."""
        super().start()
        if not self.wait_until(lambda: self.run("SELECT 1", check=False) is not None, 0.05):
            raise RuntimeError(
                f"MariaDB does not answer:\n{(self._folder / 'server.out').read_text()[-4_000:]}"
            )


@contextlib.contextmanager
def mariadb() -> Iterator[MariaServer]:
    """MariaDB with a fresh folder. It flushes nothing: what was committed outlives its processes only."""
    install, path = servers.program("mariadb-install-db"), servers.program("mariadbd")
    user = next((one for one in pwd.getpwall() if one.pw_name == "mysql"), None)
    with servers.own_folder(user) as folder:
        as_user = [] if user is None else [f"--user={user.pw_name}"]
        made = [install, "--no-defaults", *as_user, f"--datadir={folder / 'data'}", "--skip-test-db"]
        subprocess.run([*made, "--auth-root-authentication-method=normal"], check=True, capture_output=True)
        (folder / "init.sql").write_text(
            "CREATE USER IF NOT EXISTS tidelake@'%';\nGRANT ALL ON *.* TO tidelake@'%';\n"
        )
        server = MariaServer(
            tied(
                *(path, "--no-defaults", *as_user, f"--datadir={folder / 'data'}", "--port={port}"),
                *(
                    f"--bind-address={servers.HOST}",
                    f"--socket={folder / 's'}",
                    f"--init-file={folder}/init.sql",
                ),
                *("--log-bin=binlog", "--server-id=1", "--binlog-format=ROW", "--binlog-row-image=FULL"),
                # The connector asks newer versions of MySQL for what MariaDB does not know.
                *(
                    "--version=5.7.10-log",
                    "--character-set-server=utf8mb4",
                    "--skip-name-resolve",
                    "--innodb-flush-log-at-trx-commit=2",
                ),
            ),
            folder,
        )
        server.start()
        try:
            yield server
        finally:
            server.kill()


def of_mariadb(database: MariaServer) -> Source:
    """A database of MariaDB."""
    told = {"database.hostname": servers.HOST}
    return Source(
        "debezium-mysql", lambda: _SETTINGS | told | {"database.port": str(database.port)}, b'"pos"'
    )
