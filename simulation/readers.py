"""Clients that read: snapshots, changes, updates and the live tail, with and without a hold."""

from contextlib import closing

import pyarrow as pa

from simulation.clients import FAILED, Client
from simulation.record import only_time
from tidelake.errors import HistoryCompacted, LeaseExpired, TidelakeError
from tidelake.lake.api.readers import CollectionReader
from tidelake.model.frontier import Frontier

# The share of reads that pause between batches.
_SLOW = 0.4


def reader(client: Client) -> None:
    """Asks for snapshots, changes and updates, at times that are readable, compacted, or still open."""
    while True:
        client.draw.choice((snapshot, snapshot, last_snapshot, _changes, _updates))(client)
        client.rest()


def _asked_time(client: Client) -> int:
    since, upper = only_time(client.judge.state.since), only_time(client.judge.state.upper)
    return client.draw.randint(max(0, since - 1), max(upper, since))


def snapshot(client: Client) -> None:
    """Read at a time that is readable, compacted, or still open."""
    collection, time = client.collection(), _asked_time(client)
    client.read(
        f"snapshot {time}",
        lambda: slowly(client, collection.snapshot(time)),
        lambda asked, answer: client.judge.snapshot(asked, time, answer),
    )


def last_snapshot(client: Client) -> None:
    """Read at the last closed time."""
    collection = client.collection()
    client.read(
        "last snapshot",
        lambda: slowly(client, collection.snapshot()),
        lambda asked, answer: client.judge.snapshot(asked, None, answer),
    )


def _changes(client: Client) -> None:
    collection = client.collection()
    after, through = sorted((_asked_time(client), _asked_time(client)))
    client.read(
        f"changes {after} {through}",
        lambda: slowly(client, collection.changes(after, through)),
        lambda _, answer: client.judge.changes(after, through, answer),
    )


def _updates(client: Client) -> None:
    collection = client.collection()
    lower, upper = sorted((_asked_time(client), _asked_time(client)))
    client.read(
        f"updates {lower} {upper}",
        lambda: slowly(client, collection.updates(lower, upper)),
        lambda _, answer: client.judge.updates(Frontier.of(lower), Frontier.of(upper), answer),
    )


def listener(client: Client) -> None:
    """Follows the collection and must get every time once, in order; resumes where it was after a failure."""
    at: int | None = None
    while True:
        at = _follow(client, _asked_time(client) if at is None else at)
        client.rest()


def _follow(client: Client, at: int) -> int | None:
    """Listen for some steps. Returns the last time that was delivered; None if it cannot go on from there."""
    collection, asked = client.collection(), client.judge.asked()
    left = client.draw.randint(1, 12)
    client.world.note(f"> listen {at}")
    try:
        with closing(collection.listen(at, timeout_s=client.draw.choice((0.0, 1.0, 20.0)))) as steps:  # type: ignore[type-var]
            for step in steps:
                if step.lower != Frontier.past(at):
                    client.judge.wrong(f"a listener at {at} was given a step from {step.lower}")
                answer = slowly(client, step.updates)
                client.judge.updates(step.lower, step.upper, answer)
                at = only_time(step.upper) - 1
                client.judge.counts["steps listened to"] += 1
                client.world.note(f"< listened through {at}")
                left -= 1
                if not left:
                    break
    except LeaseExpired:
        return at
    except TidelakeError as error:
        client.world.note(f"< listen: {error!r}")
        client.judge.unread(asked, error)
        return at if isinstance(error, FAILED) else None
    return at


def holder(client: Client) -> None:
    """Takes a hold for a while, again and again."""
    while True:
        hold_once(client)
        client.rest()


def hold_once(client: Client) -> None:
    """Take a hold and read at its `since`, which must work as long as the lease lasts."""
    collection, asked = client.collection(), client.judge.asked()
    try:
        with collection.reader("holder") as held:
            client.judge.counts["holds"] += 1
            for _ in range(client.draw.randint(1, 5)):
                client.rest()
                _read_held(client, held)
    except TidelakeError as error:
        client.world.note(f"< hold: {error!r}")
        client.judge.unread(asked, error)


def _read_held(client: Client, held: CollectionReader) -> None:
    """Read at the `since` of a hold, which must work as long as the state has the hold."""
    since, asked = only_time(held.since), client.judge.asked()
    if client.judge.uppers[-1].less_equal(since):
        return
    client.world.note(f"> held snapshot {since}")
    try:
        answer = slowly(client, held.snapshot(since, timeout_s=0))
    except HistoryCompacted as error:
        client.judge.wrong(f"a hold at {since} was read, but history is gone: {error!r}")
    client.judge.snapshot(asked, since, answer)


def slowly(client: Client, stream: pa.RecordBatchReader) -> pa.Table:
    """All rows of a stream, sometimes with long pauses between batches. The stream takes no hold itself."""
    is_slow = client.draw.random() < _SLOW
    pauses_s = client.draw.choice(((0.5, 3.0), (3.0, 30.0)))
    batches = []
    while True:
        if is_slow:
            client.process.sleep(client.draw.choice(pauses_s))
        try:
            batches.append(stream.read_next_batch())
        except StopIteration:
            break
    return pa.Table.from_batches(batches, stream.schema)
