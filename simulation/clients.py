"""A client: a process that uses a lake as its users do, and tells the judge what it was told.

Owns what all roles have in common. Must not know what the answer should be, nor which faults there are: a
client knows only the errors that it is given.
"""

import random
from collections.abc import Callable

import pyarrow as pa

from simulation.checker import Checker
from simulation.judge import Judge
from simulation.process import SimulatedProcess
from simulation.record import DOMAIN, AppendCall, CallBegan, only_time
from simulation.world import World
from tests.doubles.faults import SimulatedCrash
from tidelake.errors import OutcomeUnknown, StoreUnavailable, TidelakeError
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.lake import Lake
from tidelake.model.frontier import Frontier
from tidelake.state.write.write import Appended
from tidelake.testing import tables
from tidelake.testing.oracle import Row

NAME = "c"
SCHEMA = pa.schema([pa.field("k", pa.int64()), pa.field("v", pa.string())])
FAILED = (StoreUnavailable, OutcomeUnknown)


class Client:
    """A client in its own process.

    Attributes:
        name: the collection that it uses.
        process: the process of this client.
        judge: the judge that is told the answers.
        draw: the source of its random choices.
    """

    def __init__(
        self,
        world: World,
        checker: Checker,
        judge: Judge,
        process: SimulatedProcess,
        draw: random.Random,
        *,
        name: str = NAME,
        opened: tuple[Lake, Collection] | None = None,
    ) -> None:
        self.world, self.checker, self.judge, self.process, self.draw = world, checker, judge, process, draw
        self.name = name
        self._opened = opened
        self._is_visitor = opened is not None

    def visitor(self, name: str, collection: Collection) -> "Client":
        """A client of the same process that uses another collection."""
        judge = self.checker.judges[collection.id]
        opened = (self.lake(), collection)
        return Client(self.world, self.checker, judge, self.process, self.draw, name=name, opened=opened)

    def mate(self, collection: Collection) -> "Client":
        """A client for another thread of the same process, which uses the same collection."""
        draw = random.Random(f"{self.draw.random()}")  # noqa: S311 - a run must repeat
        opened = (self.lake(), collection)
        return Client(self.world, self.checker, self.judge, self.process, draw, name=self.name, opened=opened)

    def collection(self) -> Collection:
        """The collection, opened by this process. It is opened anew now and then."""
        return self._open()[1]

    def lake(self) -> Lake:
        """The lake of `collection`."""
        return self._open()[0]

    def _open(self) -> tuple[Lake, Collection]:
        while self._opened is None or (not self._is_visitor and self.draw.random() < 0.02):
            try:
                lake = self.process.lake()
                self._opened = lake, lake.collection(self.name)
            except FAILED:
                self.rest()
        return self._opened

    def rest(self) -> None:
        """Sleep: mostly for a moment, sometimes for long."""
        self.process.sleep(self.draw.choice((0.001, 0.01, 0.1, 0.1, 1.0, 10.0)))

    def rows(self, times: range | None) -> list[tuple[Row, int | None, int]]:
        """Up to ten updates, one of which is unique to this append. Without times if `times` is None."""
        unique = 1000 + len(self.judge.appends)
        found: list[tuple[Row, int | None, int]] = [((unique, self.process.name), self._time(times), 1)]
        for _ in range(self.draw.randrange(self.draw.choice((1, 3, 10)))):
            row = (self.draw.choice((None, 0, 1, 2, 3)), self.draw.choice((None, "", "a", "bc")))
            found.append((row, self._time(times), 1 if times is None else self.draw.choice((1, 1, -1, 2))))
        return found

    def _time(self, times: range | None) -> int | None:
        return None if times is None else self.draw.choice(times)

    def known_upper(self) -> int:
        """An upper that a client may have seen: mostly the newest one."""
        uppers = self.judge.uppers
        back = self.draw.choice((0, 0, 0, 0, 1, 3))
        return only_time(uppers[max(0, len(uppers) - 1 - back)])

    def offer(self, op: AppendCall, call: Callable[[], Appended]) -> str:
        """Try an append once: `"in"`, `"refused"` or `"unknown"`."""
        judge, strand = self.judge, self.world.scheduler.current
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

    def offer_stage(self, op: AppendCall, call: Callable[[], bool]) -> str:
        """As `offer`, for a stage."""

        def staged() -> Appended:
            kept = call()
            # A stage answers with no times, so take those at which it was placed, if it was.
            lower, upper = op.placed[1:] if op.placed else (Frontier(), Frontier())
            return Appended(lower, upper, already=not kept or op.placed is not None)

        return self.offer(op, staged)

    def label(self, what: str) -> str:
        """A name for an append."""
        return f"{what} #{len(self.judge.appends)} of {self.process.name}"

    def read(
        self, what: str, ask: Callable[[], pa.Table], judged: Callable[[CallBegan, pa.Table], None]
    ) -> None:
        """Read once, and let the judge check the answer."""
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


def table_of(rows: list[tuple[Row, int | None, int]]) -> pa.Table:
    """Rows as a table to append; without the columns for time and diff if the rows have no times."""
    if any(time is None for _, time, _ in rows):
        table = tables.table([(row, 0, diff) for row, _, diff in rows], DOMAIN, SCHEMA)
        return table.drop_columns([*DOMAIN.columns, "_diff"])
    return tables.table([(row, time or 0, diff) for row, time, diff in rows], DOMAIN, SCHEMA)
