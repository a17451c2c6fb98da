"""Clients that write: every kind of append, by named writers and without a writer."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial

from simulation.clients import FAILED, Client, table_of
from simulation.record import AppendCall
from tidelake.env import Stop
from tidelake.errors import CollectionDropped
from tidelake.lake.api.writer import Writer
from tidelake.model.frontier import Frontier
from tidelake.state.write.write import Appended

# Appends without a named writer: each is tried once.


def append_now(client: Client) -> None:
    """Append a few rows at a time that the commit picks."""
    collection, rows = client.collection(), client.rows(None)
    client.offer(AppendCall(client.label("append"), rows), lambda: collection.append(table_of(rows)))


def _append_timed(client: Client) -> None:
    collection, lower = client.collection(), client.known_upper()
    upper = lower + client.draw.randint(1, 3)
    rows = client.rows(range(lower, upper))
    op = AppendCall(client.label("timed"), rows, Frontier.of(upper))
    client.offer(op, lambda: collection.append(table_of(rows), upper=upper))


def compare_and_append(client: Client) -> None:
    """Append at the newest upper that is known, or at an older one."""
    collection, lower = client.collection(), client.known_upper()
    upper = lower + client.draw.randint(1, 3)
    rows = client.rows(range(lower, upper))
    op = AppendCall(client.label("exactly"), rows, Frontier.of(upper))
    client.offer(op, lambda: collection.compare_and_append(table_of(rows), lower, upper))


def _append_up_to(client: Client) -> None:
    collection, known = client.collection(), client.known_upper()
    lower, upper = max(0, known - client.draw.randint(0, 3)), known + client.draw.randint(1, 3)
    rows = client.rows(range(lower, upper))
    op = AppendCall(client.label("up to"), rows, Frontier.of(upper))
    client.offer(op, lambda: collection.append(table_of(rows), lower=lower, upper=upper))


def _append_built(client: Client) -> None:
    collection, lower = client.collection(), client.known_upper()
    upper = lower + client.draw.randint(1, 3)
    rows = client.rows(range(lower, upper))
    try:
        builder = collection.builder(lower)
        builder.add(table_of(rows))
        batch = builder.finish(Frontier.of(upper))
    except (*FAILED, CollectionDropped):
        return
    op = AppendCall(client.label("built"), rows, Frontier.of(upper))
    result = client.offer(
        op, lambda: collection.distributed.append_batches([batch], lower=lower, upper=upper)
    )
    if result == "refused":
        with suppress(*FAILED):
            batch.delete()


def appender(client: Client) -> None:
    """Appends in every way that needs no named writer."""
    ways = (append_now, append_now, _append_timed, compare_and_append, _append_up_to, _append_built)
    while True:
        client.draw.choice(ways)(client)
        client.rest()


def crowd(client: Client) -> None:
    """Several threads of one process append at once, through one handle or several of one lake."""
    while True:
        try:
            handles = [client.collection(), client.lake().collection(client.name)]
        except FAILED:
            client.rest()
            continue
        mates = [client.mate(client.draw.choice(handles)) for _ in range(client.draw.randint(1, 5))]
        spawned = [client.process.spawn(f"mate{n}", partial(_hurry, mate)) for n, mate in enumerate(mates)]
        _hurry(client.mate(handles[0]))
        for one in spawned:
            one.stop()
        client.rest()


def _hurry(mate: Client, _stop: Stop | None = None) -> None:
    """Append with hardly a pause: at a commit time, at given times, at an exact upper, or under a number."""
    ways: tuple[Callable[[Client], object], ...] = (append_now, append_now, _append_timed, compare_and_append)
    for _ in range(mate.draw.randint(1, 6)):
        if mate.draw.random() < 0.2:
            _append_as_writer(mate)
        else:
            mate.draw.choice(ways)(mate)
        mate.process.sleep(mate.draw.choice((0.0, 0.0, 0.001, 0.01)))


# Named writers: the outcome of an append can be learned later.


def writer(client: Client) -> None:
    """Opens one of two writer names, which others open too, and appends until it is fenced or gives up."""
    while True:
        name = client.draw.choice(("a", "b"))
        try:
            opened = client.collection().writer(name)
        except FAILED:
            client.rest()
            continue
        client.judge.writer_opened(name, opened.epoch, opened.last_sequence)
        for _ in range(client.draw.randint(1, 20)):
            if not _append_numbered(client, opened):
                break
            client.rest()


def _append_as_writer(client: Client) -> None:
    """Open a writer, which fences others of its name, and append under one number."""
    name = client.draw.choice(("a", "b"))
    try:
        opened = client.collection().writer(name)
    except FAILED:
        return
    client.judge.writer_opened(name, opened.epoch, opened.last_sequence)
    _append_numbered(client, opened)


def _append_numbered(client: Client, opened: Writer) -> bool:
    """Append under the next number, repeatedly while the outcome is unknown; whether the writer may go on."""
    number = 0 if opened.last_sequence is None else opened.last_sequence + 1
    lower = client.known_upper()
    upper = lower + client.draw.randint(1, 2)
    exact = client.draw.random() < 0.5
    rows = client.rows(range(lower, upper) if exact else None)
    op = AppendCall(
        f"{client.label('numbered')} {opened.name}.{opened.epoch}.{number}",
        rows,
        Frontier.of(upper) if exact else None,
        (opened.name, opened.epoch, number),
    )

    def call() -> Appended:
        if exact:
            return opened.compare_and_append(table_of(rows), lower, upper, sequence=number)
        return opened.append(table_of(rows), sequence=number)

    while (result := client.offer(op, call)) == "unknown" and client.draw.random() < 0.7:
        client.rest()
    # An unknown outcome is learned by the next client that opens the name. A refusal after an unknown outcome
    # may mean that the writer is fenced.
    return result == "in" or (result == "refused" and not op.unsure)
