"""Where a PostgreSQL server is, and how to reach it.

Owns the address that a user gives, its secrets, and what errors may say of it. Must not know any statement.

INVARIANT: no `repr`, error or pickle of these values holds a password.
"""

from collections.abc import Mapping
from typing import Any, NoReturn
from urllib.parse import quote

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import Conninfo

from tidelake.errors import UsageError

CONNECT_S = 5
SILENCE_S = 15.0
"""A server that says nothing for so long is taken to be gone; longer than `STATEMENT_S`."""
STATEMENT_S = 10
"""The server ends a statement that takes longer."""

# What libpq is told unless the address says otherwise.
_DEFAULTS: Mapping[str, Any] = {
    "connect_timeout": CONNECT_S,
    "tcp_user_timeout": 10_000,
    "keepalives_idle": 30,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "target_session_attrs": "primary",
    "fallback_application_name": "tidelake",
}
_SECRETS = ("password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key")
_SHOWN = ("service", "host", "hostaddr", "port", "dbname")


class Address:
    """The address of a database: `postgresql://user@host:port/database?...`, and what libpq adds to it.

    Libpq takes what is missing from its environment variables, its password file and its service file.
    """

    def __init__(self, url: str) -> None:
        """Check an address; nothing is contacted."""
        parsed = _parsed(url)
        if parsed is None:
            raise UsageError(
                "the address of the log cannot be read (it is not shown, since it may hold a password): "
                "give postgresql://user@host:port/database, with special characters as %XX"
            )
        self._given = parsed
        libpq = {one.keyword.decode(): (one.val or b"").decode() for one in Conninfo.get_defaults()}
        self._shown = {name: str(parsed.get(name) or libpq.get(name, "")) for name in _SHOWN}
        found = [str(values[name]) for values in (parsed, libpq) for name in _SECRETS if values.get(name)]
        # The longest first: a secret may contain another one.
        forms = {form for secret in found for form in (secret, quote(secret), quote(secret, safe=""))}
        self._hidden = sorted(forms, key=len, reverse=True)

    @property
    def parameters(self) -> dict[str, Any]:
        """What a connection is opened with. Holds secrets."""
        # Not of the environment: with another one, texts come as bytes, or not at all.
        return {**_DEFAULTS, **self._given, "client_encoding": "UTF8"}

    def redacted(self, text: str) -> str:
        """A message of the driver in one line, without secrets."""
        for secret in self._hidden:
            text = text.replace(secret, "***")
        return " ".join(text.split())

    def __str__(self) -> str:
        """Host, port and database: enough to find the server, and no secret."""
        shown = self._shown
        host = shown["host"] or shown["hostaddr"]
        where = f"{host}:{shown['port']}" if shown["port"] else host
        service = f"?service={shown['service']}" if shown["service"] else ""
        return self.redacted(f"postgresql://{where}/{shown['dbname']}{service}")

    def __repr__(self) -> str:
        return f"Address({str(self)!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("the address of a log may hold a password: it does not leave its process")


def _parsed(url: str) -> dict[str, Any] | None:
    # The error of the driver may repeat the address, so it must not become the context of ours.
    if not url.startswith(("postgresql://", "postgres://")):
        return None
    try:
        return conninfo_to_dict(url)
    except (psycopg.Error, ValueError):
        return None
