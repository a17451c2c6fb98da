"""A proxy between the product and a server, which delays, loses, cuts, doubts and holds back on purpose.

`Proxy` runs in a thread of this process; `proxy_process` in a process of its own, for measurements:

    with proxy_process(server.port, rtt_s=0.02) as proxy:
        options = server.options(proxy.endpoint)

It knows three protocols:

- `"http"`: HTTP/1.1, request by request. All faults; requests and bytes are counted by kind.
- `"postgres"`: the messages of PostgreSQL. A fault falls on a query or the end of a batch; where that is
  a commit, it is counted as one.
- `"bytes"`: no faults, delays only.

Which faults are made follows from a seed, as far as the order of requests does.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import enum
import json
import random
import socket
import struct
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

from tied_process import tied

HOST = "127.0.0.1"
CHUNK = 1 << 18
LIMIT = 1 << 20


class Fault(enum.StrEnum):
    """What can happen to a request."""

    RESET_BEFORE = "reset_before"  # the connection is reset; the server never sees the request
    RESET_AFTER = "reset_after"  # the connection is reset when the request was sent on
    LOST_REPLY = "lost_reply"  # the server has answered; the connection is reset
    SILENCE = "silence"  # the server has answered; the client hears nothing until it gives up
    CUT_BODY = "cut_body"  # the answer ends in its middle
    DRIP = "drip"  # the answer comes in small pieces
    SLOW = "slow"  # the request is sent on after `Faults.slow_s`
    ERROR_BEFORE = "error_before"  # 500, 503 or 429; the server never sees the request
    ERROR_AFTER = "error_after"  # 500 or 503, although the server has carried it out
    CONFLICT = "conflict"  # 409 for a conditional put, which the server never sees
    HELD_PUT = "held_put"  # a put fails, and reaches the server `Faults.hold_s` later


HTTP_ONLY = {
    *(Fault.CUT_BODY, Fault.DRIP, Fault.ERROR_BEFORE, Fault.ERROR_AFTER, Fault.CONFLICT, Fault.HELD_PUT)
}
# All that end soon: silence costs the client its time limit.
QUICK = tuple(fault for fault in Fault if fault is not Fault.SILENCE)


@dataclasses.dataclass
class Faults:
    """How often each fault falls on a request, and how long the slow ones take.

    Attributes:
        rates: the share of requests that a fault falls on; together at most 1.
        hold_s: how long a put is held back.
        slow_s: how long a slow request waits.
        drip_s: how long an answer takes that comes in small pieces.
        only: kinds of requests that faults fall on (see `kind_of`); None: all.
    """

    rates: dict[Fault, float] = dataclasses.field(default_factory=dict)
    hold_s: float = 2.0
    slow_s: float = 0.2
    drip_s: float = 0.2
    only: tuple[str, ...] | None = None

    @classmethod
    def all_at(cls, rate: float, faults: tuple[Fault, ...] = QUICK, **more: Any) -> "Faults":
        """The same share of requests for each of several faults, together `rate`."""
        return cls(dict.fromkeys(faults, rate / len(faults)), **more)


class Proxy:
    """Listens on a free port and passes on to the server on another port of this machine.

    Attributes of it can be changed while it runs: `faults`, `rtt_s` (of connections that are made later),
    and `down`, which resets all connections as a server does that has stopped.

    Args:
        target: the port of the server.
        protocol: `"http"`, `"postgres"` or `"bytes"`.
        rtt_s: seconds of a round trip, half of them on each way. A new connection waits for one more.
        faults: which faults are made, and how often.
        seed: decides which requests they fall on.
    """

    def __init__(
        self,
        target: int,
        protocol: str = "http",
        *,
        rtt_s: float = 0.0,
        faults: Faults | None = None,
        seed: int = 0,
    ) -> None:
        self.target = target
        self.rtt_s = rtt_s
        self.faults = faults or Faults()
        self.down = False
        self.made: Counter[str] = Counter()
        self.requests: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self.port = 0
        self._random = random.Random(seed)
        self._serve = {"http": self._http, "postgres": self._postgres, "bytes": self._bytes}[protocol]
        self._protocol = protocol
        self._loop = asyncio.new_event_loop()
        self._held: dict[asyncio.Task[None], asyncio.Event] = {}
        self._open: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._started = threading.Event()

    @property
    def endpoint(self) -> str:
        """The address of the proxy."""
        return f"http://{HOST}:{self.port}"

    @property
    def faults_made(self) -> int:
        """How many faults were made."""
        return sum(self.made[fault] for fault in Fault)

    def __enter__(self) -> "Proxy":
        self._thread.start()
        if not self._started.wait(30):
            raise RuntimeError("the proxy did not start")
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    def deliver(self) -> None:
        """Send on at once what is held back; return when the server has answered all of it."""
        self._call(self._deliver())

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(
            asyncio.start_server(self._accepted, HOST, self.port, limit=LIMIT, backlog=1_000)
        )
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        self._loop.run_forever()
        server.close()

    async def _stop(self) -> None:
        await self._deliver()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _deliver(self) -> None:
        for event in self._held.values():
            event.set()
        await asyncio.gather(*self._held)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        self._open.add(task)
        client = Side(reader, writer, self.rtt_s / 2)
        server = None
        try:
            await asyncio.sleep(self.rtt_s)
            server = await self._connect()
            await self._serve(client, server)
        except (OSError, asyncio.IncompleteReadError, Cut) as gone:
            if not isinstance(gone, (Cut, asyncio.IncompleteReadError)):
                self.made["server_gone"] += 1
            client.reset()
        except asyncio.CancelledError:  # only `_stop` cancels
            client.reset()
        finally:
            self._open.discard(task)
            client.close()
            if server is not None:
                server.close()

    async def _connect(self) -> "Side":
        if self.down:
            raise Cut
        return Side(*await asyncio.open_connection(HOST, self.target, limit=LIMIT), self.rtt_s / 2)

    def _draw(self, kind: str) -> Fault | None:
        """The fault that falls on the next request, which is of this kind."""
        if self.down:
            raise Cut
        drawn = self._random.random()
        faults = self.faults
        if faults.only is not None and kind not in faults.only:
            return None
        for fault, rate in faults.rates.items():
            drawn -= rate
            if drawn < 0:
                return fault if _can_fall(fault, kind, self._protocol) else None
        return None

    # ------------------------------------------------------------------------------------------ bytes

    async def _bytes(self, client: "Side", server: "Side") -> None:
        await _until_one_ends(_pass_on(client, server), _pass_on(server, client))

    # ------------------------------------------------------------------------------------------- http

    async def _http(self, client: "Side", server: "Side") -> None:
        while True:
            request = await Message.request(client.reader)
            if request is None:
                return
            kind = kind_of(request)
            self.requests[kind] += 1
            self.bytes["sent"] += len(request.data)
            fault = self._draw(kind)
            if fault is not None:
                self.made[fault] += 1
            if server.reader.at_eof():  # it keeps idle connections for a while only
                server.close()
                server = await self._connect()
            try:
                await self._exchange(request, fault, client, server)
            finally:
                if not client.writer.is_closing() and server.writer.is_closing():
                    server.close()

    async def _exchange(
        self, request: "Message", fault: Fault | None, client: "Side", server: "Side"
    ) -> None:
        match fault:
            case Fault.RESET_BEFORE:
                raise Cut
            case Fault.ERROR_BEFORE:
                await client.send(self._error())
                return
            case Fault.CONFLICT:
                await client.send(_answer(409, "ConditionalRequestConflict"))
                return
            case Fault.HELD_PUT:
                self._hold(request)
                if self._random.random() < 0.5:
                    raise Cut
                await client.send(_answer(500, "InternalError"))
                return
            case Fault.SLOW:
                await asyncio.sleep(self.faults.slow_s)
        await server.send(request.data)
        if fault is Fault.RESET_AFTER:
            await server.flush()
            raise Cut
        answer = await Message.answer(server.reader, request.method)
        self.bytes["received"] += len(answer.data)
        match fault:
            case Fault.LOST_REPLY:
                raise Cut
            case Fault.SILENCE:
                await client.reader.read(1)  # until the client closes
                raise Cut
            case Fault.ERROR_AFTER:
                await client.send(_answer(*self._random.choice(_SERVER_ERRORS)))
            case Fault.CUT_BODY:
                await client.send(answer.data[: max(1, answer.body_at + answer.body_size // 2 - 1)])
                await client.flush()
                client.writer.close()
                raise Cut
            case Fault.DRIP:
                for piece in _pieces(answer.data, 10):
                    await client.send(piece)
                    await asyncio.sleep(self.faults.drip_s / 10)
            case _:
                await client.send(answer.data)
        if answer.is_last:
            await client.flush()
            client.writer.close()
            raise Cut

    def _error(self) -> bytes:
        status, code = self._random.choice([*_SERVER_ERRORS, (429, "TooManyRequests")])
        return _answer(status, code, retry_after=self._random.random() < 0.5)

    def _hold(self, request: "Message") -> None:
        now = asyncio.Event()
        task = self._loop.create_task(self._put_later(request, now))
        self._held[task] = now
        task.add_done_callback(self._held.pop)

    async def _put_later(self, request: "Message", now: asyncio.Event) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(now.wait(), self.faults.hold_s)
        try:
            server = Side(*await asyncio.open_connection(HOST, self.target, limit=LIMIT), 0)
            await server.send(request.data)
            answer = await Message.answer(server.reader, request.method)
            server.close()
        except (OSError, asyncio.IncompleteReadError):
            self.made["held_put: lost"] += 1
        else:
            self.made[f"held_put: {answer.status}"] += 1

    # --------------------------------------------------------------------------------------- postgres

    async def _postgres(self, client: "Side", server: "Side") -> None:
        while True:  # what comes before messages have a type
            size, code = struct.unpack("!ii", first := await client.reader.readexactly(8))
            await server.send(first + await client.reader.readexactly(size - 8))
            if code not in _ENCRYPTION:
                break
            reply = await server.reader.readexactly(1)
            await client.send(reply)
            if reply != b"N":
                raise RuntimeError("the proxy reads no encrypted connections")
        lost = Lost()
        await _until_one_ends(self._queries(client, server, lost), self._results(client, server, lost))

    async def _queries(self, client: "Side", server: "Side", lost: "Lost") -> None:
        commits = False
        while True:
            kind, message = await _message(client.reader)
            commits |= kind in b"QP" and b"commit" in message.lower()
            if kind in b"QS":
                self.requests["commit" if commits else "query"] += 1
                fault = self._draw("commit" if commits else "query")
                if fault is not None:
                    self.made[fault] += 1
                    self.made[f"{fault}: commit"] += commits
                match fault:
                    case Fault.RESET_BEFORE:
                        raise Cut
                    case Fault.SLOW:
                        await asyncio.sleep(self.faults.slow_s)
                    case Fault.LOST_REPLY | Fault.SILENCE:
                        lost.by = fault
                await server.send(message)
                if fault is Fault.RESET_AFTER:
                    await server.flush()
                    raise Cut
                commits = False
            else:
                await server.send(message)

    async def _results(self, client: "Side", server: "Side", lost: "Lost") -> None:
        while True:
            kind, message = await _message(server.reader)
            if lost.by is None:
                await client.send(message)
            elif lost.by is Fault.LOST_REPLY and kind in b"Z":
                raise Cut


class Cut(Exception):
    """The connection of the client is to be reset."""


@dataclasses.dataclass
class Lost:
    """Why the client of a connection gets no more answers."""

    by: Fault | None = None


class Side:
    """One end of a connection. What is sent arrives `delay_s` later, in order."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
        self.reader = reader
        self.writer = writer
        self._delay_s = delay_s
        self._line: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(256)
        self._sender = asyncio.get_running_loop().create_task(self._deliver()) if delay_s else None
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    async def send(self, data: bytes) -> None:
        """Send bytes to this end."""
        if self._sender is None:
            self.writer.write(data)
            await self.writer.drain()
        else:
            await self._line.put((asyncio.get_running_loop().time() + self._delay_s, data))

    async def flush(self) -> None:
        """Wait until what was sent has left."""
        if self._sender is not None:
            await self._line.join()
        with contextlib.suppress(OSError):
            await self.writer.drain()

    async def _deliver(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due_s, data = await self._line.get()
            await asyncio.sleep(due_s - loop.time())
            with contextlib.suppress(OSError):  # the reader of this end finds out
                self.writer.write(data)
                await self.writer.drain()
            self._line.task_done()

    def reset(self) -> None:
        """Close as a machine does that has lost the connection."""
        if not self.writer.is_closing():
            linger = struct.pack("ii", 1, 0)
            self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.writer.transport.abort()

    def close(self) -> None:
        """Close. What is still on its way is lost."""
        if self._sender is not None:
            self._sender.cancel()
        self.writer.close()


@dataclasses.dataclass(frozen=True)
class Message:
    """A request or an answer, whole.

    Attributes:
        start: the words of its first line.
        headers: by lower-case name.
        data: all bytes of it.
        body_at: where the body begins.
        is_last: the connection ends with it.
    """

    start: list[str]
    headers: dict[str, str]
    data: bytes
    body_at: int
    is_last: bool = False

    @property
    def method(self) -> str:
        """The method of a request."""
        return self.start[0]

    @property
    def status(self) -> str:
        """The status of an answer."""
        return self.start[1]

    @property
    def body_size(self) -> int:
        """Bytes of the body, as it is sent."""
        return len(self.data) - self.body_at

    @classmethod
    async def request(cls, reader: asyncio.StreamReader) -> "Message | None":
        """Read the next request; None if the client has closed."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as end:
            if not end.partial:
                return None
            raise
        start, headers = _parsed(head)
        return cls(start, headers, head + await _body(reader, headers, b""), len(head))

    @classmethod
    async def answer(cls, reader: asyncio.StreamReader, method: str) -> "Message":
        """Read the answer to a request of this method."""
        head = await reader.readuntil(b"\r\n\r\n")
        start, headers = _parsed(head)
        if start[1] == "100":
            return await cls.answer(reader, method)
        none = method == "HEAD" or start[1] in ("204", "304")
        body = b"" if none else await _body(reader, headers, None)
        sized = none or "content-length" in headers or "transfer-encoding" in headers
        is_last = not sized or headers.get("connection", "").lower() == "close" or start[0] == "HTTP/1.0"
        return cls(start, headers, head + body, len(head), is_last)


def kind_of(request: Message) -> str:
    """What a request to an object store does, in the words of the store."""
    query = request.start[1].partition("?")[2]
    names = {part.partition("=")[0] for part in query.split("&")}
    match request.method:
        case "GET" if names & {"list-type", "comp", "prefix"}:
            return "list"
        case "PUT" if names & {"partNumber", "blockid"}:
            return "put_part"
        case "PUT" if "if-none-match" in request.headers:
            return "put_new"
        case "PUT" if "if-match" in request.headers:
            return "put_if"
        case "POST":
            return "delete_many" if names & {"delete", "comp"} else "multipart"
        case method:
            return method.lower()


def _can_fall(fault: Fault, kind: str, protocol: str) -> bool:
    if fault is Fault.CONFLICT:
        return kind in ("put_new", "put_if")
    if fault is Fault.HELD_PUT:
        return kind in ("put", "put_new", "put_if")
    return protocol == "http" or fault not in HTTP_ONLY


def _parsed(head: bytes) -> tuple[list[str], dict[str, str]]:
    lines = head.decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines[1:] if line)
    return lines[0].split(" ", 2), {name.lower(): value.strip() for name, _, value in pairs}


async def _body(reader: asyncio.StreamReader, headers: dict[str, str], absent: bytes | None) -> bytes:
    """The body that follows headers. `absent`: what it is if nothing is said; None: all until the end."""
    if "chunked" in headers.get("transfer-encoding", "").lower():
        parts = []
        while True:
            parts.append(line := await reader.readuntil(b"\r\n"))
            size = int(line.split(b";")[0], 16)
            parts.append(await reader.readexactly(size + 2))
            if not size:
                return b"".join(parts)
    if "content-length" in headers:
        return await reader.readexactly(int(headers["content-length"]))
    return await reader.read() if absent is None else absent


_SERVER_ERRORS = ((500, "InternalError"), (503, "SlowDown"))
_ENCRYPTION = (80877103, 80877104)  # SSLRequest and GSSENCRequest


def _answer(status: int, code: str, *, retry_after: bool = False) -> bytes:
    body = f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code></Error>'.encode()
    lines = [
        f"HTTP/1.1 {status} {code}",
        "Content-Type: application/xml",
        f"Content-Length: {len(body)}",
        *(["Retry-After: 1"] if retry_after else []),
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def _pieces(data: bytes, count: int) -> Iterator[bytes]:
    size = -(-len(data) // count)
    return (data[at : at + size] for at in range(0, len(data), size))


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """The type of the next message of PostgreSQL, and all of its bytes."""
    head = await reader.readexactly(5)
    return head[:1], head + await reader.readexactly(int.from_bytes(head[1:], "big") - 4)


async def _pass_on(source: Side, sink: Side) -> None:
    while data := await source.reader.read(CHUNK):
        await sink.send(data)
    await sink.flush()


async def _until_one_ends(*work: Coroutine[Any, Any, None]) -> None:
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclasses.dataclass
class ProxyProcess:
    """A proxy in a process of its own.

    Attributes:
        port: where it listens.
        counts: once it has ended: its `made`, `requests` and `bytes`.
    """

    port: int
    counts: dict[str, dict[str, int]] = dataclasses.field(default_factory=dict)

    @property
    def endpoint(self) -> str:
        """The address of the proxy."""
        return f"http://{HOST}:{self.port}"


@contextlib.contextmanager
def proxy_process(
    target: int, protocol: str = "bytes", *, rtt_s: float = 0.0, faults: Faults | None = None, seed: int = 0
) -> Iterator[ProxyProcess]:
    """Run a proxy in a process of its own, which does not compete with the threads of this one."""
    command = tied(
        *(sys.executable, __file__, target, protocol, "--rtt-s", rtt_s, "--seed", seed),
        *("--faults", json.dumps(dataclasses.asdict(faults or Faults()))),
    )
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": str(Path(__file__).resolve().parents[1])},
    ) as process:
        proxy = ProxyProcess(int(process.stdout.readline()))
        try:
            yield proxy
        finally:
            process.stdin.close()  # tells it to end
            proxy.counts = json.loads(process.stdout.readline())


def main(wait: Callable[[], object] = sys.stdin.read) -> None:
    """Run a proxy until the standard input ends; print its port, then what it has counted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=int)
    parser.add_argument("protocol", choices=("http", "postgres", "bytes"))
    parser.add_argument("--rtt-s", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--faults", type=json.loads, default={})
    given = parser.parse_args()
    rates = {Fault(name): rate for name, rate in given.faults.pop("rates", {}).items()}
    faults = Faults(rates, **given.faults)
    with Proxy(given.target, given.protocol, rtt_s=given.rtt_s, faults=faults, seed=given.seed) as proxy:
        print(proxy.port, flush=True)
        wait()
    print(json.dumps({"made": proxy.made, "requests": proxy.requests, "bytes": proxy.bytes}), flush=True)


if __name__ == "__main__":
    main()
