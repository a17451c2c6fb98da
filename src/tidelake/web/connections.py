"""The connections of the page's server: how many, and how long each may take to say what it wants.

INVARIANT: a client that sends half a request, or none, keeps no other one from an answer. A client has
`REQUEST_S` to send a request. Where there is no room, the connection goes that has waited longest for one.
"""

from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S = 10.0
CONNECTIONS_MAX = 256


class PageProtocol(H11Protocol):
    """One connection. `uvicorn` makes them, all in one thread."""

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        self._since_s = 0.0
        self._deadline: Any = None

    @property
    def is_waiting(self) -> bool:
        """Whether the client has yet to send a request, or the rest of one."""
        return self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the first request, if need be in the place of another connection."""
        super().connection_made(transport)
        self._wait()
        if len(self.connections) > CONNECTIONS_MAX:
            waiting = [one for one in self.connections if isinstance(one, PageProtocol) and one.is_waiting]
            min(waiting, key=lambda one: one._since_s).end()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the deadline."""
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Begin to wait for the next request, which may be here already."""
        self._wait()
        super().on_response_complete()

    def end(self) -> None:
        """Close the connection at once."""
        # It is no longer counted, though the loop has yet to close it.
        self.connections.discard(self)
        self.transport.abort()

    def _wait(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._since_s = self.loop.time()
        self._deadline = self.loop.call_later(REQUEST_S, self._too_late)

    def _too_late(self) -> None:
        if self.is_waiting:
            self.end()
