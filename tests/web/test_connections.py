"""Connections that send half a request, or none, keep no other from an answer."""

import http.client
import socket
import threading
import time
from contextlib import ExitStack, contextmanager

import pytest

pytest.importorskip("uvicorn")

import tidelake
from tidelake.web import connections
from tidelake.web.app import application
from tidelake.web.serve import server_of

TOKEN = "0123456789-abcdef"
HALF = (
    b"",
    b"GET / HT",
    b"GET /api/lake HTTP/1.1\r\nHost: localhost\r\nX: ",
    b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4000\r\n\r\ntoken=",
)


@contextmanager
def serving(token=None):
    """A server of a lake, and its port."""
    with tidelake.open("memory://connections") as lake, socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(128)
        server = server_of(application(lake, "1", token))
        running = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        running.start()
        try:
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            running.join()


def asked(port, headers, path="/api/lake"):
    with ExitStack() as opened:
        to = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        opened.callback(to.close)
        to.request("GET", path, headers=headers)
        return to.getresponse().status


def half_sent(port, data):
    to = socket.create_connection(("127.0.0.1", port), timeout=60)
    to.sendall(data)
    return to


def is_closed(to):
    try:
        return to.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.promise(
    "Connections that send half a request, or none, keep no other client from an answer; streams of "
    "events are counted when they begin",
    rule="`web/connections.py`, `_Stream` in `web/api.py`",
    also=[
        "::test_a_request_that_takes_too_long_is_given_up",
        "web/test_api.py::test_streams_are_counted_when_they_begin",
    ],
)
def test_half_sent_requests_give_way_to_a_whole_one(monkeypatch):
    monkeypatch.setattr(connections, "CONNECTIONS_MAX", 8)
    monkeypatch.setattr(connections, "REQUEST_S", 3600.0)
    with serving(TOKEN) as port, ExitStack() as opened:
        waiting = [opened.enter_context(half_sent(port, HALF[n % 4])) for n in range(40)]
        for _ in range(3):
            assert asked(port, {"Authorization": f"Bearer {TOKEN}"}) == 200
            assert asked(port, {}) == 401
        assert all(map(is_closed, waiting[:32]))
        # A stream of events waits for no request, and stays.
        stream = opened.enter_context(half_sent(port, b""))
        request = f"GET /api/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
        stream.sendall(request.encode())
        while b"data: " not in stream.recv(1 << 16):
            pass
        waiting = [opened.enter_context(half_sent(port, b"")) for _ in range(20)]
        assert all(map(is_closed, waiting[:12]))
        stream.setblocking(False)
        with pytest.raises(BlockingIOError):
            stream.recv(1)


@pytest.mark.parametrize("data", HALF)
def test_a_request_that_takes_too_long_is_given_up(monkeypatch, data):
    monkeypatch.setattr(connections, "REQUEST_S", 0.2)
    with serving(TOKEN) as port, half_sent(port, data) as to:
        to.setblocking(False)
        # It goes on to send a little, and so is never silent.
        while True:
            try:
                if data:
                    to.send(b"a")
                if not to.recv(1 << 16):
                    break
            except BlockingIOError:
                time.sleep(0.01)
            except (BrokenPipeError, ConnectionResetError):
                break


def test_the_version_of_http_that_hides_a_proxy_needs_a_token():
    with serving() as port:
        assert asked(port, {"Host": "localhost"}) == 200
        assert asked(port, {"Host": "localhost", "X-Forwarded-For": "127.0.0.1"}) == 421
        with half_sent(port, b"GET /api/lake HTTP/1.0\r\nHost: localhost\r\n\r\n") as to:
            assert to.recv(1 << 16).startswith(b"HTTP/1.1 421 ")
