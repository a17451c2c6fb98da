"""Clients that write to several collections at once: the bank workload. The books judge their transfers.

They transfer between accounts, write to single accounts in every way, close times, read several accounts at
one time, settle decided transactions, and take accounts out of their group, which the next transfer joins
again.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress

import pyarrow as pa

from simulation.books import Books, Contents, Transfer
from simulation.clients import FAILED, Client
from simulation.record import only_time
from tests.doubles.faults import SimulatedCrash
from tidelake.errors import (
    CollectionDropped,
    LeaseExpired,
    NotYetClosed,
    OutcomeUnknown,
    TidelakeError,
    TransactionExpired,
    UpdateBeforeLower,
    UpperMismatch,
    UsageError,
)
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.lake import Lake
from tidelake.lake.groups.transactions import Transaction

ACCOUNTS = ("account0", "account1", "account2")
SCHEMA = pa.schema([pa.field("transfer", pa.int64(), nullable=False), pa.field("amount", pa.int64())])


def teller(client: Client) -> None:
    """Transfers between accounts and reads them, in competition with other clients."""
    ways: tuple[Callable[[Client, Lake], None], ...] = (_transfer, _transfer, _transfer, _look, _look)
    while True:
        lake = client.lake()
        # If it slept while it created an account, others may have taken the account for a leftover.
        with suppress(*FAILED, LeaseExpired, CollectionDropped):
            client.draw.choice((*ways, _refresh, _tend, _leave, _deposit, _deposit, _deposit, _close))(
                client, lake
            )
        client.rest()


def _account(lake: Lake, name: str) -> Collection:
    """Open an account; create it if it does not exist."""
    # Others may have taken it for a leftover while its creator slept: then it comes back.
    return lake.create(name, SCHEMA, key=["transfer"], allow_recreate=True)


def _transfer(client: Client, lake: Lake) -> None:
    """Write to two or three accounts, with or without a given time; retry after a conflict, with pauses."""
    draw, books = client.draw, client.checker.books
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
    """Try to commit until the transfer is in, or certainly is not, or the client gives up."""
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
        except UpdateBeforeLower as error:
            client.world.note(f"< transfer {op.number}: {error!r}")
            time = only_time(error.lower)  # type: ignore[arg-type]
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
                client.checker.counts["transfers"] += 1
            return
        client.rest()


def _refresh(client: Client, lake: Lake) -> None:
    """Write as the refresh of a view does: each account in its own interval, if all are as they were."""
    draw, books = client.draw, client.checker.books
    names = draw.sample(ACCOUNTS, draw.choice((1, 2, 2, 3)))
    uppers = {name: only_time(_account(lake, name).upper) for name in names}
    amounts = [draw.randint(1, 9) for _ in names[1:]]
    op = books.begins(dict(zip(names, [-sum(amounts), *amounts], strict=True)))
    time = max(uppers.values()) + draw.choice((0, 0, 1, 4))
    transaction = lake.transaction(token=f"{op.number}" if draw.random() < 0.3 else None)
    for name, amount in op.amounts.items():
        upper = time + draw.choice((1, 1, 3))
        transaction.write(name, _rows(op, amount), time=time, lower=uppers[name], upper=upper)
    client.world.note(f"> refresh {op.number} {op.amounts} from {uppers} at {time}")
    unsure = False
    while True:
        try:
            done = transaction.commit()
        except (OutcomeUnknown, SimulatedCrash) as error:
            client.world.note(f"< refresh {op.number}: {error!r}")
            unsure = True
            if isinstance(error, SimulatedCrash) or draw.random() < 0.4:
                raise
        except TidelakeError as error:
            client.world.note(f"< refresh {op.number}: {error!r}")
            behind = isinstance(error, TransactionExpired | UpperMismatch)
            if not (behind or isinstance(error, FAILED)):
                client.judge.wrong(f"refresh {op.number} failed with {error!r}")
            if behind or draw.random() < 0.3:
                _gives_up(op, transaction, unsure=unsure)
                return
        else:
            client.world.note(f"< refresh {op.number}: {done.uppers} already={done.already}")
            op.time = time
            client.checker.counts["refreshes of accounts"] += 1
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
    """Write to one account alone, in a group or not; retry only in ways that write at most once."""
    draw, name = client.draw, client.draw.choice(ACCOUNTS)
    account = _account(lake, name)
    if draw.random() < 0.5:
        # Puts all accounts into one group, without closing any times.
        lake.seal({_account(lake, other).name: 0 for other in ACCOUNTS})
    op, way = client.checker.books.begins({name: 0}), draw.choice((*_WAYS, _WAYS[0]))
    time = only_time(account.upper) + draw.choice((0, 1, 5)) if way is _stage else None
    unsure = False
    client.world.note(f"> deposit {op.number} {name} {way.__name__} {time}")
    while True:
        try:
            op.time = way(account, op, time)
        except (OutcomeUnknown, SimulatedCrash) as error:
            client.world.note(f"< deposit {op.number}: {error!r}")
            unsure = True
            if isinstance(error, SimulatedCrash) or way is _append or draw.random() < 0.3:
                raise
        except (UpdateBeforeLower, *FAILED) as error:
            client.world.note(f"< deposit {op.number}: {error!r}")
            if way is not _stage and not isinstance(error, FAILED):
                client.judge.wrong(f"deposit {op.number} failed with {error!r}")
            if not isinstance(error, FAILED) or way is _append or draw.random() < 0.3:
                if not unsure:
                    op.barred = "it was refused"
                return
        else:
            client.world.note(f"< deposit {op.number}: {op.time}")
            client.checker.counts["writes of one account"] += 1
            client.checker.counts["writes of one account in a group"] += account.group() is not None
            return
        client.rest()


def _append(account: Collection, op: Transfer, _time: int | None) -> int | None:
    return only_time(account.append(_rows(op, 0)).lower)


def _number(account: Collection, op: Transfer, _time: int | None) -> int | None:
    done = account.writer(f"deposit {op.number}").append(_rows(op, 0), sequence=0)
    return None if done.already else only_time(done.lower)


def _upsert(account: Collection, op: Transfer, _time: int | None) -> int | None:
    done = account.upsert(_rows(op, 0))
    return None if done.already else only_time(done.lower)


def _stage(account: Collection, op: Transfer, time: int | None) -> int | None:
    account.stage(_rows(op, 0).append_column("_time", pa.array([time], pa.int64())), token=f"{op.number}")
    return time


_WAYS = (_append, _number, _upsert, _stage)


def _close(client: Client, lake: Lake) -> None:
    """Close some times of one account, or of several at once."""
    names = client.draw.sample(ACCOUNTS, client.draw.choice((1, 1, 2)))
    ends = {name: only_time(_account(lake, name).upper) + client.draw.choice((0, 1, 3)) for name in names}
    client.world.note(f"> close {ends}")
    if len(names) == 1:
        upper = _account(lake, names[0]).seal(ends[names[0]]).upper
        told = {names[0]: upper}
    else:
        try:
            told = dict(lake.seal(ends).uppers)
        except UsageError as error:
            # Others have closed further times since they were looked up.
            client.world.note(f"< close {error!r}")
            if not any(only_time(_account(lake, name).upper) > end for name, end in ends.items()):
                client.judge.wrong(f"{ends} were not sealed, and no account is closed further: {error!r}")
            client.checker.counts["seals refused"] += 1
            return
    client.world.note(f"< close {told}")
    for name, end in ends.items():
        if only_time(told[name]) < end or only_time(_account(lake, name).upper) < end:
            client.judge.wrong(f"{name} was sealed to {end}, and {told} was told")
    client.checker.counts["seals of accounts"] += 1


def _look(client: Client, lake: Lake) -> None:
    """Read several accounts one after the other, all as of the same time."""
    books, draw = client.checker.books, client.draw
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
    client.checker.counts["looks at accounts"] += 1
    books.seen(at, found, due)


def _contents(account: Collection, at: int) -> Contents:
    table = account.snapshot(at, timeout_s=0).read_all()
    rows = table.to_pylist()
    return {row["transfer"]: row["amount"] * row["_diff"] + 1000 * (row["_diff"] - 1) for row in rows}


def _tend(client: Client, lake: Lake) -> None:
    """Collect the lake, which settles decided transactions, or maintain one account."""
    if client.draw.random() < 0.5:
        lake.collect()
    else:
        _account(lake, client.draw.choice(ACCOUNTS)).maintain()


def _leave(client: Client, lake: Lake) -> None:
    """Take an account out of its group, now and then."""
    name = client.draw.choice(ACCOUNTS)
    _account(lake, name)
    client.world.note(f"> leave {name}")
    client.checker.counts["accounts that left"] += lake.leave(name)
    client.world.note(f"< leave {name}")


def check_accounts(books: Books, accounts: Sequence[Collection]) -> None:
    """Check at the end that acknowledged transfers are there, and that no transfer is there by half."""
    end = min((only_time(account.upper) for account in accounts), default=0)
    for at in sorted({0, end // 2, end - 1}) if end else ():
        books.seen(at, {one.name: _contents(one, at) for one in accounts}, books.acknowledged())
