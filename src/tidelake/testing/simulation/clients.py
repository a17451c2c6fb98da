"""The clients: processes that use a lake as its users do, for ever, and tell the judge what they were told.

Owns what is asked for. Must not know what the answer should be, nor of the faults: a client knows only the
errors that it is given.
"""

import random
from collections.abc import Callable
from contextlib import closing, suppress

import pyarrow as pa

from tidelake.errors import HistoryCompacted, LeaseExpired, OutcomeUnknown, StoreUnavailable, TidelakeError
from tidelake.lake.collection import Collection
from tidelake.lake.lake import Lake
from tidelake.lake.readers import CollectionReader
from tidelake.lake.writer import Writer
from tidelake.model.frontier import Frontier
from tidelake.state.append import Appended
from tidelake.testing import tables
from tidelake.testing.faults import SimulatedCrash
from tidelake.testing.oracle import Row
from tidelake.testing.simulation.judge import DOMAIN, Append, Asked, Judge, only_time
from tidelake.testing.simulation.process import SimulatedProcess
from tidelake.testing.simulation.world import World

NAME = "c"
SCHEMA = pa.schema([pa.field("k", pa.int64()), pa.field("v", pa.string())])
_FAILED = (StoreUnavailable, OutcomeUnknown)


class Client:
    """One process at work.

    Attributes:
        process: of this client.
        judge: who is told.
        draw: its random choices.
    """

    def __init__(self, world: World, judge: Judge, process: SimulatedProcess, draw: random.Random) -> None:
        self.world, self.judge, self.process, self.draw = world, judge, process, draw
        self._lake: Lake | None = None
        self._collection: Collection | None = None

    def collection(self) -> Collection:
        """The collection, opened by this process; again now and then."""
        while self._collection is None or self.draw.random() < 0.02:
            try:
                self._lake = self.process.lake()
                self._collection = self._lake.collection(NAME)
            except _FAILED:
                self.rest()
        return self._collection

    def lake(self) -> Lake:
        """The lake of `collection`."""
        self.collection()
        if self._lake is None:
            raise AssertionError("a collection without a lake")
        return self._lake

    def rest(self) -> None:
        """Sleep: mostly for a moment, at times for long."""
        self.process.sleep(self.draw.choice((0.001, 0.01, 0.1, 0.1, 1.0, 10.0)))

    def rows(self, times: range | None) -> list[tuple[Row, int | None, int]]:
        """Up to ten updates, one of which no other append has; without times if None is given."""
        unique = 1000 + len(self.judge.appends)
        found: list[tuple[Row, int | None, int]] = [((unique, self.process.name), self._time(times), 1)]
        for _ in range(self.draw.randrange(self.draw.choice((1, 3, 10)))):
            row = (self.draw.choice((None, 0, 1, 2, 3)), self.draw.choice((None, "", "a", "bc")))
            found.append((row, self._time(times), 1 if times is None else self.draw.choice((1, 1, -1, 2))))
        return found

    def _time(self, times: range | None) -> int | None:
        return None if times is None else self.draw.choice(times)

    def known_upper(self) -> int:
        """An upper that somebody told this client of: the newest, mostly."""
        uppers = self.judge.uppers
        back = self.draw.choice((0, 0, 0, 0, 1, 3))
        return only_time(uppers[max(0, len(uppers) - 1 - back)])

    def offer(self, op: Append, call: Callable[[], Appended]) -> str:
        """Try an append once: `"in"`, `"refused"` or `"unknown"`."""
        judge, strand = self.judge, self.world.baton.current
        if not op.unsure:
            judge.begins(op)
        asked = judge.asked()
        strand.about = op
        self.world.note(f"> {op.label}")
        try:
            answer = call()
        except (OutcomeUnknown, SimulatedCrash) as error:
            judge.unsure(op)
            self.world.note(f"< {op.label}: {type(error).__name__}")
            if isinstance(error, SimulatedCrash):
                raise
            return "unknown"
        except TidelakeError as error:
            self.world.note(f"< {op.label}: {error!r}")
            judge.refused(op, asked, error)
            return "refused"
        finally:
            strand.about = None
        self.world.note(f"< {op.label}: [{answer.lower}, {answer.upper}) already={answer.already}")
        judge.acknowledged(op, asked, answer)
        return "in"

    def label(self, what: str) -> str:
        """A name for an append."""
        return f"{what} #{len(self.judge.appends)} of {self.process.name}"

    def read(self, what: str, ask: Callable[[], pa.Table], judged: Callable[[Asked, pa.Table], None]) -> None:
        """Read once, and have the answer judged."""
        asked = self.judge.asked()
        self.world.note(f"> {what}")
        try:
            answer = ask()
        except TidelakeError as error:
            self.world.note(f"< {what}: {error!r}")
            self.judge.unread(asked, error)
            return
        self.world.note(f"< {what}: {answer.num_rows} rows")
        judged(asked, answer)


def _table(rows: list[tuple[Row, int | None, int]]) -> pa.Table:
    if any(time is None for _, time, _ in rows):
        table = tables.table([(row, 0, diff) for row, _, diff in rows], DOMAIN, SCHEMA)
        return table.drop_columns([*DOMAIN.columns, "_diff"])
    return tables.table([(row, time or 0, diff) for row, time, diff in rows], DOMAIN, SCHEMA)


# Appends without a name: each is tried once.


def _append_now(client: Client) -> None:
    collection, rows = client.collection(), client.rows(None)
    client.offer(Append(client.label("append"), rows), lambda: collection.append(_table(rows)))


def _append_timed(client: Client) -> None:
    collection, lower = client.collection(), client.known_upper()
    upper = lower + client.draw.randint(1, 3)
    rows = client.rows(range(lower, upper))
    op = Append(client.label("timed"), rows, Frontier.of(upper))
    client.offer(op, lambda: collection.append(_table(rows), upper=upper))


def _compare_and_append(client: Client) -> None:
    collection, lower = client.collection(), client.known_upper()
    upper = lower + client.draw.randint(1, 3)
    rows = client.rows(range(lower, upper))
    op = Append(client.label("exactly"), rows, Frontier.of(upper))
    client.offer(op, lambda: collection.compare_and_append(_table(rows), lower, upper))


def _append_up_to(client: Client) -> None:
    collection, known = client.collection(), client.known_upper()
    lower, upper = max(0, known - client.draw.randint(0, 3)), known + client.draw.randint(1, 3)
    rows = client.rows(range(lower, upper))
    op = Append(client.label("up to"), rows, Frontier.of(upper))
    client.offer(op, lambda: collection.append(_table(rows), lower=lower, upper=upper))


def _append_built(client: Client) -> None:
    collection, lower = client.collection(), client.known_upper()
    upper = lower + client.draw.randint(1, 3)
    rows = client.rows(range(lower, upper))
    try:
        builder = collection.builder(lower)
        builder.add(_table(rows))
        batch = builder.finish(Frontier.of(upper))
    except _FAILED:
        return
    op = Append(client.label("built"), rows, Frontier.of(upper))
    result = client.offer(op, lambda: collection.append_batches([batch], lower=lower, upper=upper))
    if result == "refused":
        with suppress(*_FAILED):
            batch.delete()


def appender(client: Client) -> None:
    """Appends in every way that needs no name."""
    ways = (_append_now, _append_now, _append_timed, _compare_and_append, _append_up_to, _append_built)
    while True:
        client.draw.choice(ways)(client)
        client.rest()


# Named writers: outcomes are learned.


def writer(client: Client) -> None:
    """Opens one of two names, which others open too, and appends until it is fenced or tired."""
    while True:
        name = client.draw.choice(("a", "b"))
        try:
            opened = client.collection().writer(name)
        except _FAILED:
            client.rest()
            continue
        client.judge.writer_opened(name, opened.epoch, opened.last_sequence)
        for _ in range(client.draw.randint(1, 20)):
            if not _append_numbered(client, opened):
                break
            client.rest()


def _append_numbered(client: Client, opened: Writer) -> bool:
    """Append the next number, again while the outcome is unknown; whether the writer may go on."""
    number = 0 if opened.last_sequence is None else opened.last_sequence + 1
    lower = client.known_upper()
    upper = lower + client.draw.randint(1, 2)
    exact = client.draw.random() < 0.5
    rows = client.rows(range(lower, upper) if exact else None)
    op = Append(
        f"{client.label('numbered')} {opened.name}.{opened.epoch}.{number}",
        rows,
        Frontier.of(upper) if exact else None,
        (opened.name, opened.epoch, number),
    )

    def call() -> Appended:
        if exact:
            return opened.compare_and_append(_table(rows), lower, upper, sequence=number)
        return opened.append(_table(rows), sequence=number)

    while (result := client.offer(op, call)) == "unknown" and client.draw.random() < 0.7:
        client.rest()
    # After an unknown outcome, whoever opens the name next learns it. A refusal may mean that it is fenced.
    return result == "in" or (result == "refused" and not op.unsure)


# Readers.


def reader(client: Client) -> None:
    """Asks for snapshots, changes and updates, at times that are there, gone, or still to come."""
    while True:
        client.draw.choice((_snapshot, _snapshot, _last_snapshot, _changes, _updates))(client)
        client.rest()


def _asked_time(client: Client) -> int:
    since, upper = only_time(client.judge.state.since), only_time(client.judge.state.upper)
    return client.draw.randint(max(0, since - 1), max(upper, since))


def _snapshot(client: Client) -> None:
    collection, time = client.collection(), _asked_time(client)
    client.read(
        f"snapshot {time}",
        lambda: collection.snapshot(time).read_all(),
        lambda asked, answer: client.judge.snapshot(asked, time, answer),
    )


def _last_snapshot(client: Client) -> None:
    collection = client.collection()
    client.read(
        "last snapshot",
        lambda: collection.snapshot().read_all(),
        lambda asked, answer: client.judge.snapshot(asked, None, answer),
    )


def _changes(client: Client) -> None:
    collection = client.collection()
    after, through = sorted((_asked_time(client), _asked_time(client)))
    client.read(
        f"changes {after} {through}",
        lambda: collection.changes(after, through).read_all(),
        lambda _, answer: client.judge.changes(after, through, answer),
    )


def _updates(client: Client) -> None:
    collection = client.collection()
    lower, upper = sorted((_asked_time(client), _asked_time(client)))
    client.read(
        f"updates {lower} {upper}",
        lambda: collection.updates(lower, upper).read_all(),
        lambda _, answer: client.judge.updates(Frontier.of(lower), Frontier.of(upper), answer),
    )


def listener(client: Client) -> None:
    """Follows the collection: every time once, in order; after a failure it goes on where it was."""
    at: int | None = None
    while True:
        at = _follow(client, _asked_time(client) if at is None else at)
        client.rest()


def _follow(client: Client, at: int) -> int | None:
    """Listen for some steps; the last time that was delivered, or None if there is no way on from it."""
    collection, asked = client.collection(), client.judge.asked()
    left = client.draw.randint(1, 12)
    client.world.note(f"> listen {at}")
    try:
        with closing(collection.listen(at, timeout_s=client.draw.choice((0.0, 1.0, 20.0)))) as steps:  # type: ignore[type-var]
            for step in steps:
                if step.lower != Frontier.past(at):
                    client.judge.wrong(f"a listener at {at} was given a step from {step.lower}")
                answer = step.updates.read_all()
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
        return at if isinstance(error, _FAILED) else None
    return at


# Those who look after the collection.


def maintainer(client: Client) -> None:
    """Merges: what is due, all, or as much as there is time for."""
    while True:
        collection = client.collection()
        client.world.note("> maintain")
        try:
            if client.draw.random() < 0.15:
                collection.merge()
            else:
                seconds = client.draw.choice((None, None, 0.05, 1.0))
                collection.maintain(thorough=client.draw.random() < 0.4, seconds=seconds)
        except _FAILED as error:
            client.world.note(f"< maintain: {error!r}")
        client.rest()


def upkeep(client: Client) -> None:
    """Has a worker beside it that maintains the lake."""
    while True:
        try:
            worker = client.lake().upkeep(interval_s=client.draw.choice((0.05, 1.0)))
        except _FAILED:
            client.rest()
            continue
        with worker:
            for _ in range(client.draw.randint(1, 8)):
                _append_now(client)
                client.rest()
        if worker.last_error is not None and not isinstance(worker.last_error, _FAILED):
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
        except _FAILED as error:
            client.world.note(f"< advance_since {wanted}: {error!r}")


def holder(client: Client) -> None:
    """Holds history and parts for a while, and reads what it holds: there is no gap while the lease lasts."""
    while True:
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
        client.rest()


def _read_held(client: Client, held: CollectionReader) -> None:
    """Read at the `since` of a hold, which must be possible as long as the state has the hold."""
    since, asked = only_time(held.since), client.judge.asked()
    if client.judge.uppers[-1].less_equal(since):
        return
    client.world.note(f"> held snapshot {since}")
    try:
        answer = held.snapshot(since, timeout_s=0).read_all()
    except HistoryCompacted as error:
        client.judge.wrong(f"a hold at {since} was read, but history is gone: {error!r}")
    client.judge.snapshot(asked, since, answer)


def collector(client: Client) -> None:
    """Frees what nobody reads; it may stall between any two calls."""
    while True:
        collection = client.collection()
        client.world.note("> collect")
        try:
            report = collection.collect(thorough=client.draw.random() < 0.5)
            client.judge.counts["blobs collected"] += report.blobs
            client.judge.counts["leaked blobs removed"] += report.leaked
            client.judge.counts["log entries removed"] += report.entries
        except _FAILED as error:
            client.world.note(f"< collect: {error!r}")
        client.rest()


ROLES: dict[str, Callable[[Client], None]] = {
    "writer": writer,
    "appender": appender,
    "reader": reader,
    "listener": listener,
    "maintainer": maintainer,
    "upkeep": upkeep,
    "owner": owner,
    "holder": holder,
    "collector": collector,
}
