"""Clients that create, use, rename and drop small collections, and finish drops that others began."""

from collections.abc import Callable

from simulation.clients import FAILED, SCHEMA, Client
from simulation.readers import hold_once, last_snapshot, snapshot
from simulation.record import Drop
from simulation.writers import append_now, compare_and_append
from tidelake.errors import CollectionDropped, CollectionInUse, CollectionNotFound, TidelakeError
from tidelake.lake.api.lake import Lake

# Number of small collections in use at a time: so few that several clients meet in one.
IN_USE = 3


def dropper(client: Client) -> None:
    """Creates, uses, renames and drops small collections, which other droppers use as well."""
    while True:
        lake = client.lake()
        client.draw.choice((_make, use, use, use, drop, tidy, _rename))(client, lake)
        client.rest()


def _make(client: Client, lake: Lake) -> None:
    checker = client.checker
    name = f"small{len(checker.names)}"
    checker.names.append(name)
    client.world.note(f"> create {name}")
    try:
        made = lake.create(name, SCHEMA, key=["k"])
    except (*FAILED, CollectionDropped) as error:
        # If it slept between two steps, or its clock is off, others may take the collection for a leftover.
        client.world.note(f"< create {name}: {error!r}")
        return
    checker.made[name] = made.id
    checker.counts["collections made"] += 1


def use(client: Client, lake: Lake) -> None:
    """Open a small collection, and use it for a while, even after another client has dropped it."""
    names = client.checker.names[-IN_USE:]
    if not names:
        return
    name = client.draw.choice(names)
    client.world.note(f"> open {name}")
    gone, made = client.checker.gone(), name in client.checker.made
    try:
        opened = lake.collection(name)
    except CollectionNotFound as error:
        client.checker.not_found(name, error, made=made)
        return
    except FAILED:
        return
    if opened.id in gone:
        client.judge.wrong(f"{name} was opened after its drop")
    visitor = client.visitor(name, opened)
    ways: tuple[Callable[[Client], None], ...] = (
        append_now,
        append_now,
        compare_and_append,
        snapshot,
        last_snapshot,
        hold_once,
        _look_after,
    )
    for _ in range(client.draw.randint(1, 5)):
        client.draw.choice(ways)(visitor)
        client.rest()


def _look_after(visitor: Client) -> None:
    """Maintain or collect. Has no effect once the collection is dropped."""
    collection = visitor.collection()
    try:
        visitor.draw.choice((collection.maintain, collection.collect))()
    except FAILED as error:
        visitor.world.note(f"< look after {visitor.name}: {error!r}")


def drop(client: Client, lake: Lake) -> None:
    """Drop a small collection, with force or without."""
    checker, draw = client.checker, client.draw
    if not checker.names:
        return
    name, force = draw.choice(checker.names[-IN_USE:]), draw.random() < 0.4
    client.world.note(f"> drop {name} force={force}")
    checker.drops.add(name)
    made, asked, strand = name in checker.made, checker.holds_since(name), client.world.scheduler.current
    strand.about = Drop(force)
    try:
        lake.drop(name, force=force)
    except CollectionInUse as error:
        client.world.note(f"< drop {name}: {error!r}")
        checker.in_use(name, asked, force, error)
    except CollectionNotFound as error:
        checker.not_found(name, error, made=made)
    except FAILED as error:
        client.world.note(f"< drop {name}: {error!r}")
    else:
        client.world.note(f"< drop {name}")
        checker.was_dropped(name)
    finally:
        strand.about = None


def _rename(client: Client, lake: Lake) -> None:
    """Give a small collection a new name, or swap the names of two."""
    checker, draw = client.checker, client.draw
    if not checker.names:
        return
    old, is_swap = draw.choice(checker.names[-IN_USE:]), draw.random() < 0.5
    new = draw.choice(checker.names[-IN_USE:]) if is_swap else f"small{len(checker.names)}"
    if not is_swap:
        checker.names.append(new)
    client.world.note(f"> rename {old} {new} swap={is_swap}")
    # Other clients may rename them as well, so the judge cannot tell where these names lead.
    checker.loose |= {old, new}
    try:
        if is_swap:
            lake.swap(old, new)
        else:
            lake.rename(old, new)
    except (*FAILED, CollectionNotFound) as error:
        client.world.note(f"< rename {old} {new}: {error!r}")
        return
    client.world.note(f"< rename {old} {new}")
    checker.counts["collections renamed"] += 1


def tidy(client: Client, lake: Lake) -> None:
    """Finish drops of others, and check the list of names."""
    checker = client.checker
    gone, made = {name for name in checker.names if checker.dropped(name)}, set(checker.made)
    try:
        removed = lake.collect()
        checker.counts["shards removed"] += removed.shards
        listed = set(lake.list())
    except FAILED as error:
        client.world.note(f"< collect the lake: {error!r}")
        return
    except TidelakeError as error:
        client.judge.wrong(f"collecting the lake failed with {error!r}")
    checker.listed(listed, made, gone)
