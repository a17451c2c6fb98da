"""Clients that maintain a collection: they merge, run upkeep, let history go, and delete garbage."""

from simulation.clients import FAILED, Client
from simulation.record import only_time
from simulation.writers import append_now
from tidelake.errors import UsageError
from tidelake.lake.api.readers import CollectionCriticalHold


def maintainer(client: Client) -> None:
    """Merges what is due, everything, or as much as a time limit allows."""
    while True:
        collection = client.collection()
        client.world.note("> maintain")
        try:
            if client.draw.random() < 0.15:
                collection.merge()
            else:
                seconds = client.draw.choice((None, None, 0.05, 1.0))
                collection.maintain(thorough=client.draw.random() < 0.4, seconds=seconds)
        except FAILED as error:
            client.world.note(f"< maintain: {error!r}")
        client.rest()


def upkeep(client: Client) -> None:
    """Appends while a worker of its process maintains the lake."""
    while True:
        try:
            worker = client.lake().upkeep(interval_s=client.draw.choice((0.05, 1.0)))
        except FAILED:
            client.rest()
            continue
        with worker:
            for _ in range(client.draw.randint(1, 8)):
                append_now(client)
                client.rest()
        if worker.last_error is not None and not isinstance(worker.last_error, FAILED):
            client.judge.wrong(f"upkeep failed with {worker.last_error!r}")


def owner(client: Client) -> None:
    """Lets history go, step by step."""
    while True:
        client.process.sleep(client.draw.choice((0.5, 2.0, 20.0)))
        since, upper = only_time(client.judge.state.since), only_time(client.judge.state.upper)
        if upper <= since + 1:
            continue
        wanted = client.draw.randint(since, upper - 1)
        try:
            client.collection().advance_since(wanted)
        except FAILED as error:
            client.world.note(f"< advance_since {wanted}: {error!r}")


def collector(client: Client) -> None:
    """Deletes garbage; it may stall between any two calls."""
    while True:
        collection = client.collection()
        client.world.note("> collect")
        try:
            report = collection.collect(thorough=client.draw.random() < 0.5)
            client.judge.counts["blobs collected"] += report.blobs
            client.judge.counts["leaked blobs removed"] += report.leaked
            client.judge.counts["log entries removed"] += report.entries
        except FAILED as error:
            client.world.note(f"< collect: {error!r}")
        client.rest()


def critical(client: Client) -> None:
    """Keeps history by a critical hold that others move too: who set the token last may move it next."""
    while True:
        collection, asked = client.collection(), client.judge.asked()
        token = f"{client.process.name} {client.draw.randrange(2**32)}"
        try:
            hold = collection.critical_hold("pipeline", token)
            while client.draw.random() < 0.8:
                client.rest()
                _move(client, hold, token)
            if client.draw.random() < 0.2:
                hold.drop()
            collection.retain(client.draw.choice((None, None, 5, 50)))
        except FAILED as error:
            client.world.note(f"< critical: {error!r}")
        except UsageError as error:
            # Allowed only if another client dropped the hold after this one had opened it.
            if all(client.judge.critical[asked.entries - 1 :]):
                client.judge.wrong(f"a critical hold that is there was refused: {error!r}")
        client.rest()


def _move(client: Client, hold: CollectionCriticalHold, token: str) -> None:
    """Move the hold. A move that is answered as done keeps history until the next move."""
    since = max(only_time(hold.since), client.known_upper() - client.draw.randint(1, 5))
    client.world.note(f"> move the critical hold to {since} as {token}")
    before = client.judge.asked()
    moved = hold.compare_and_downgrade_since(hold.token, (token, since))
    if moved.done:
        client.judge.moved(before, token, since)
