"""Listens for the page, until it is interrupted."""

import secrets
import socket
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp

from tidelake.errors import StoreUnavailable, UsageError
from tidelake.exporters.loopback import is_loopback
from tidelake.lake.api.lake import Lake
from tidelake.web.app import application
from tidelake.web.connections import PageProtocol
from tidelake.web.guard import TOKEN_MIN


def token_for(host: str, given: str | None, *, may_show: bool) -> tuple[str | None, bool]:
    """The token that an address needs, and whether it was made here and must be shown."""
    if given is not None:
        if len(given) < TOKEN_MIN or not given.isprintable() or not given.isascii() or " " in given:
            raise UsageError(
                f"the token must have at least {TOKEN_MIN} letters, digits and signs, without spaces"
            )
        return given, False
    if is_loopback(host):
        return None, False
    if not may_show:
        raise UsageError(f"{host} is reached from other machines, so a token is needed: give --token-file")
    return secrets.token_urlsafe(24), True


def serve(
    lake: Lake, version: str, host: str, port: int, *, token: str | None, ready: Callable[[str], None]
) -> None:
    """Answer requests until the process is interrupted."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, port))
        except OSError as error:
            raise StoreUnavailable(
                f"cannot listen at {host}:{port}: {error}; choose another port", False
            ) from error
        listening.listen(128)
        shown = f"[{host}]" if ":" in host else host
        ready(f"http://{shown}:{listening.getsockname()[1]}/")
        server_of(application(lake, version, token)).run(sockets=[listening])


def server_of(app: ASGIApp) -> uvicorn.Server:
    """The server of an application; `run` answers requests until it is interrupted."""
    return uvicorn.Server(
        uvicorn.Config(
            app,
            # No log of requests: they name collections and keys.
            access_log=False,
            log_level="warning",
            server_header=False,
            ws="none",
            http=PageProtocol,
            # The guard judges by the peer of the connection, and not by what a header says of it.
            proxy_headers=False,
            timeout_graceful_shutdown=2,
        )
    )
