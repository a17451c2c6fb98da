"""Clients that write to several collections at once: accounts, whose transfers are judged by the books.

They transfer, read several accounts at one time, write down what was decided, and take accounts out of their
group, which the next transfer brings back.
"""

from collections.abc import Callable
from contextlib import suppress

import pyarrow as pa

from tidelake.errors import (
    CollectionDropped,
    CollectionInGroup,
    LeaseExpired,
    NotYetClosed,
    OutcomeUnknown,
    TidelakeError,
    TransactionExpired,
    UpperMismatch,
)
from tidelake.lake.collection import Collection
from tidelake.lake.lake import Lake
from tidelake.lake.transactions import Transaction
from tidelake.testing.faults import SimulatedCrash
from tidelake.testing.simulation.books import Books, Contents, Transfer
from tidelake.testing.simulation.clients import FAILED, Client
from tidelake.testing.simulation.record import only_time

ACCOUNTS = ("account0", "account1", "account2")
SCHEMA = pa.schema([pa.field("transfer", pa.int64(), nullable=False), pa.field("amount", pa.int64())])


def teller(client: Client) -> None:
    """Transfers between accounts and looks at them, among others who do the same."""
    ways: tuple[Callable[[Client, Lake], None], ...] = (_transfer, _transfer, _transfer, _look, _look)
    while True:
        lake = client.lake()
        # Whoever slept while it made an account is told that it was taken for a leftover.
        with suppress(*FAILED, LeaseExpired, CollectionDropped):
            client.draw.choice((*ways, _tend, _leave, _deposit))(client, lake)
        client.rest()


def _account(lake: Lake, name: str) -> Collection:
    """Open an account, and make it if nobody has."""
    return lake.create(name, SCHEMA, key=["transfer"])


def _transfer(client: Client, lake: Lake) -> None:
    """Write to two or three accounts: at a time or not, again after a conflict, with pauses between."""
    draw, books = client.draw, client.court.books
    names = draw.sample(ACCOUNTS, draw.choice((1, 2, 2, 2, 3)))
    for name in names:
        _account(lake, name)
    amounts = [draw.randint(1, 9) for _ in names[1:]]
    op = books.begins(dict(zip(names, [-sum(amounts), *amounts], strict=True)))
    time = draw.choice((None, None, None, 0, op.number, op.number // 2))
    transaction = lake.transaction(time=time, token=f"{op.number}" if draw.random() < 0.3 else None)
    for name, amount in op.amounts.items():
        transaction.write(name, _rows(op, amount))
    client.world.note(f"> transfer {op.number} {op.amounts} time={time}")
    _offer(client, op, transaction)


def _offer(client: Client, op: Transfer, transaction: Transaction) -> None:
    """Try it until it is in or certainly not, or the client is tired of it."""
    time: int | None = None
    unsure = False
    while True:
        try:
            done = transaction.commit(time)
        except (OutcomeUnknown, SimulatedCrash) as error:
            client.world.note(f"< transfer {op.number}: {error!r}")
            unsure = True
            if isinstance(error, SimulatedCrash) or client.draw.random() < 0.4:
                raise
        except UpperMismatch as error:
            client.world.note(f"< transfer {op.number}: {error!r}")
            time = only_time(error.current)  # type: ignore[arg-type]
            if client.draw.random() < 0.3:
                _gives_up(op, transaction, unsure=unsure)
                return
        except TidelakeError as error:
            client.world.note(f"< transfer {op.number}: {error!r}")
            if not isinstance(error, (*FAILED, TransactionExpired)):
                client.judge.wrong(f"transfer {op.number} failed with {error!r}")
            if isinstance(error, TransactionExpired) or client.draw.random() < 0.3:
                _gives_up(op, transaction, unsure=unsure)
                return
        else:
            client.world.note(f"< transfer {op.number}: {done.upper} already={done.already}")
            if not done.already:
                op.time = only_time(done.upper) - 1
                client.court.counts["transfers"] += 1
            return
        client.rest()


def _gives_up(op: Transfer, transaction: Transaction, *, unsure: bool) -> None:
    if not unsure:
        op.barred = "it was refused"
    with suppress(TidelakeError):
        transaction.abort()


def _rows(op: Transfer, amount: int) -> pa.Table:
    return pa.table({"transfer": [op.number], "amount": [amount]}, SCHEMA)


def _deposit(client: Client, lake: Lake) -> None:
    """Write to one account alone, which is refused if it is in a group."""
    name = client.draw.choice(ACCOUNTS)
    account = _account(lake, name)
    op = client.court.books.begins({name: 0})
    client.world.note(f"> deposit {op.number} {name}")
    try:
        done = account.append(_rows(op, 0))
    except (CollectionInGroup, *FAILED) as error:
        client.world.note(f"< deposit {op.number}: {error!r}")
        if not isinstance(error, OutcomeUnknown):
            op.barred = "it was refused"
        return
    op.time = only_time(done.lower)
    client.world.note(f"< deposit {op.number}: {done.lower}")
    client.court.counts["deposits"] += 1


def _look(client: Client, lake: Lake) -> None:
    """Read some accounts at one time, one after the other."""
    books, draw = client.court.books, client.draw
    names = draw.sample(ACCOUNTS, draw.choice((2, 3)))
    accounts = {name: _account(lake, name) for name in names}
    due = books.acknowledged()
    last = min(only_time(account.upper) for account in accounts.values()) - 1
    if last < 0:
        return
    at = max(0, last - draw.choice((0, 0, 0, 1, 5)))
    client.world.note(f"> look at {names} at {at}")
    found = {}
    for name, account in accounts.items():
        try:
            found[name] = _contents(account, at)
        except NotYetClosed as error:
            client.judge.wrong(f"{at} was closed in {name}, and is not any more: {error!r}")
        client.process.sleep(draw.choice((0.0, 0.0, 0.01)))
    client.court.counts["looks at accounts"] += 1
    books.seen(at, found, due)


def _contents(account: Collection, at: int) -> Contents:
    table = account.snapshot(at, timeout_s=0).read_all()
    rows = table.to_pylist()
    return {row["transfer"]: row["amount"] * row["_diff"] + 1000 * (row["_diff"] - 1) for row in rows}


def _tend(client: Client, lake: Lake) -> None:
    """Write down what was decided, or maintain one account."""
    if client.draw.random() < 0.5:
        lake.collect()
    else:
        _account(lake, client.draw.choice(ACCOUNTS)).maintain()


def _leave(client: Client, lake: Lake) -> None:
    """Take an account out of its group, now and then."""
    name = client.draw.choice(ACCOUNTS)
    _account(lake, name)
    client.world.note(f"> leave {name}")
    client.court.counts["accounts that left"] += lake.leave(name)
    client.world.note(f"< leave {name}")


def check_accounts(books: Books, lake: Lake) -> None:
    """When all are gone: everything acknowledged is there, and of each transfer all or nothing."""
    names = [name for name in lake.list() if name in ACCOUNTS]
    uppers = {name: only_time(lake.collection(name).upper) for name in names}
    if not names or min(uppers.values()) < 1:
        return
    for at in sorted({0, min(uppers.values()) // 2, min(uppers.values()) - 1}):
        books.seen(at, {name: _contents(lake.collection(name), at) for name in names}, books.acknowledged())
