"""Clients that fork collections, and use and drop the forks and their origins in any order."""

from simulation.clients import FAILED, NAME, Client
from simulation.droppers import IN_USE, drop, tidy, use
from simulation.readers import last_snapshot, snapshot
from simulation.record import only_time
from tidelake.errors import CollectionNotFound, ForkExpired, HistoryCompacted, NotYetClosed
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.lake import Lake
from tidelake.model.frontier import Frontier


def forker(client: Client) -> None:
    """Forks the large collection and small ones. Forks count as small ones, so forks are forked as well."""
    while True:
        lake = client.lake()
        client.draw.choice((_fork, _fork, _fork, use, use, _let_go, drop, tidy))(client, lake)
        client.rest()


def _fork(client: Client, lake: Lake) -> None:
    """Fork a collection as it is, or as of a time, and read the fork."""
    checker, draw = client.checker, client.draw
    source = draw.choice([NAME, *checker.names[-IN_USE:]])
    try:
        opened = lake.collection(source)
    except (*FAILED, CollectionNotFound):
        return
    judge = checker.judges[opened.id]
    asked, name = judge.asked(), f"small{len(checker.names)}"
    checker.names.append(name)
    as_of = None
    if judge.dropped is None and draw.random() < 0.6:
        since, upper = only_time(judge.state.since), only_time(judge.state.upper)
        as_of = draw.randint(max(0, since - 1), max(upper, since))
    client.world.note(f"> fork {source} as {name} as of {as_of}")
    try:
        made = lake.fork(source, name, as_of)
    except (*FAILED, CollectionNotFound, ForkExpired) as error:
        client.world.note(f"< fork {name}: {error!r}")
        return
    except (HistoryCompacted, NotYetClosed) as error:
        client.world.note(f"< fork {name}: {error!r}")
        if source not in checker.loose:
            judge.unread(asked, error)
        return
    client.world.note(f"< fork {name}")
    checker.made[name] = made.id
    checker.counts["forks"] += 1
    _check(client, name, made, as_of)


def _check(client: Client, name: str, made: Collection, as_of: int | None) -> None:
    """Check that a fork begins at the time asked for and has the contents of its origin."""
    judge = client.checker.judges[made.id]
    if as_of is not None and judge.uppers[0] != Frontier.past(as_of):
        judge.wrong(f"a fork as of {as_of} begins at {judge.uppers[0]}")
    visitor = client.visitor(name, made)
    client.draw.choice((snapshot, last_snapshot))(visitor)


def _let_go(client: Client, lake: Lake) -> None:
    """Merge a small collection: if it is a fork, all of its parts become its own."""
    names = client.checker.names[-IN_USE:]
    if not names:
        return
    try:
        opened = lake.collection(client.draw.choice(names))
        opened.merge()
        opened.maintain()
    except (*FAILED, CollectionNotFound) as error:
        client.world.note(f"< let go: {error!r}")
