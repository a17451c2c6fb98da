"""Clients that stage updates at open times, close times, and drain staged updates of closed times."""

from functools import partial

from simulation.clients import FAILED, Client, table_of
from simulation.record import AppendCall
from tidelake.errors import TidelakeError
from tidelake.lake.api.writer import Writer
from tidelake.model.frontier import Frontier
from tidelake.shard.upkeep.drainer import Drainer

# Updates are staged at times less than this far after the upper.
_AHEAD = 12


def stager(client: Client) -> None:
    """Stages a few rows at times that may be open, with or without a named writer, and reads staged rows."""
    opened: Writer | None = None
    while True:
        if opened is None and client.draw.random() < 0.3:
            opened = _opened(client)
        if opened is not None and not _stage_numbered(client, opened):
            opened = None
        if client.draw.random() < 0.7:
            _stage(client)
        if client.draw.random() < 0.3:
            _look(client)
        client.rest()


def _op(client: Client, what: str, number: tuple[str, int, int] | None = None) -> AppendCall:
    lower = client.known_upper()
    rows = client.rows(range(lower, lower + client.draw.randint(1, _AHEAD)))
    return AppendCall(client.label(what), rows, writer=number, staged=True)


def _stage(client: Client) -> None:
    collection, op = client.collection(), _op(client, "stage")
    client.offer_stage(op, lambda: collection.stage(table_of(op.rows)))


def _opened(client: Client) -> Writer | None:
    try:
        opened = client.collection().writer("s")
    except FAILED:
        return None
    client.judge.writer_opened("s", opened.epoch, opened.last_sequence)
    return opened


def _stage_numbered(client: Client, opened: Writer) -> bool:
    """Stage under the next number, repeatedly while the outcome is unknown; whether the writer may go on."""
    number = 0 if opened.last_sequence is None else opened.last_sequence + 1
    op = _op(client, f"numbered stage {opened.epoch}.{number}", ("s", opened.epoch, number))

    def call() -> bool:
        return opened.stage(table_of(op.rows), sequence=number)

    while (result := client.offer_stage(op, call)) == "unknown" and client.draw.random() < 0.7:
        client.rest()
    return result == "in"


def _look(client: Client) -> None:
    """Read a snapshot with staged updates at a time that may be open."""
    collection = client.collection()
    time = max(0, client.known_upper() + client.draw.randint(-2, _AHEAD))
    client.read(
        f"staged snapshot {time}",
        lambda: collection.snapshot(time, staged=True).read_all(),
        lambda asked, answer: client.judge.staged(asked, time, answer),
    )


def sealer(client: Client) -> None:
    """Closes times: mostly moves the upper a little."""
    while True:
        collection = client.collection()
        upper = max(0, client.known_upper() + client.draw.choice((-1, 0, 1, 1, 2, 3, 5)))
        op = AppendCall(client.label("seal"), [], Frontier.of(upper))
        client.offer(op, partial(collection.seal, upper))
        client.rest()


def drainer(client: Client) -> None:
    """Moves staged updates of closed times into the spine, in competition with all other drains."""
    while True:
        collection = client.collection()
        try:
            collection.state()
            Drainer(collection._shard).run(client.draw.choice((None, None, 0, 5)))
        except TidelakeError as error:
            client.world.note(f"drain: {error!r}")
            if not isinstance(error, FAILED) and not client.judge.dropped:
                raise
        client.rest()
