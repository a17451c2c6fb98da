"""Shard states for tests: parts without rows, and a state that commands are run on."""

from dataclasses import replace

from tidelake.model.batch import ColumnStats, HollowBatch, Part, Run
from tidelake.model.bounds import Bounds
from tidelake.model.frontier import Frontier
from tidelake.model.schema import Column, DataType, Field, Schema
from tidelake.model.time import TimeDomain
from tidelake.state.core import commands
from tidelake.state.core.commands import Commit, Refused
from tidelake.state.core.edits import Delta, apply
from tidelake.state.core.invariants import check_state, check_step
from tidelake.state.core.partnames import indexed
from tidelake.state.life import collecting
from tidelake.state.life.holds import settle
from tidelake.state.spine import fuel
from tidelake.state.spine.merging import MergeRequest, MergeResult, Policy, request
from tidelake.state.spine.spine import Member, SpineBatch, SpineId

F = Frontier.of
SCHEMA = Schema((Column(0, "k", DataType("int64")),))
STRUCT = DataType("struct", (), (Field("x", DataType("list", (), (Field("item", DataType("int8")),))),))
RICH_SCHEMA = Schema(
    (Column(0, "schlüssel", DataType("decimal128", (10, 2)), False),),
    (Column(1, "v", STRUCT), Column(2, "t", DataType("timestamp", ("us", "UTC")))),
)
STATS = {0: ColumnStats(b"\x00\xff", None, 3), 2: ColumnStats(None, None, 7)}
EAGER = Policy(fan_in=8, fold_rows=0)


def aged(command, age_ms=0):
    """A command of collectors, in a lake where all ages are so."""

    def run(state, now_ms, *, age_ms=age_ms, **kwargs):
        agreed = replace(state.agreed, garbage_age_ms=age_ms, upload_age_ms=age_ms)
        return command(replace(state, agreed=agreed), now_ms, **kwargs)

    return run


doom, raise_floor = aged(collecting.doom), aged(collecting.raise_floor)


def part(name, first=0, last=0, rows=1, diff_sum=1, *, row_hash=None, **kwargs):
    return Part(
        name,
        kwargs.pop("size_bytes", 100),
        "0" * 32 if row_hash is None else "0" * 32 + f"+{row_hash:016x}",
        rows,
        kwargs.pop("negative_rows", 0),
        diff_sum,
        kwargs.pop("schema_id", 0),
        b"a",
        b"b",
        first,
        last,
        **kwargs,
    )


def run(name, first=0, last=0, **kwargs):
    return Run((part(name, first, last, **kwargs),))


def hollow(lower, upper, *runs, since=F(0)):
    return HollowBatch(Bounds(F(lower), F(upper), since), runs)


def one(lo, hi, level, batch):
    """A member and the spine batch of it alone."""
    id_ = SpineId(lo, hi)
    return Member(id_, batch), SpineBatch(id_, level, batch.bounds, batch.rows)


def pushed(spine, *batches, since=F(0)):
    for batch in batches:
        spine = spine.edited(fuel.push(spine, batch, since, 1).edit)
    return spine


def indexed_again(state):
    """A state that was put together by hand, with the index that belongs to it."""
    return replace(state, part_names=indexed(state))


class Shard:
    """A state that commands are run on, with every check that the machine makes."""

    def __init__(self, domain=TimeDomain("counter")):
        self.state = commands.initial("s", domain, SCHEMA, 5)

    def do(self, command, *args, now_ms=10, **kwargs):
        outcome = command(self.state, now_ms, *args, **kwargs)
        if isinstance(outcome, Commit):
            self.commit(settle(self.state, outcome.edits, max(now_ms, self.state.committed_ms)), now_ms)
        return outcome

    def commit(self, edits, now_ms=10):
        base = edits.rollup or self.state.rollup
        committed_ms = max(now_ms, self.state.committed_ms)
        after = apply(self.state, Delta("s", self.state.seqno + 1, committed_ms, "n", base, edits))
        check_step(self.state, after, edits)
        check_state(after)
        self.state = after

    def refused(self, command, *args, **kwargs):
        before = self.state
        outcome = self.do(command, *args, **kwargs)
        assert isinstance(outcome, Refused)
        assert self.state is before
        return outcome.error

    def request(self, lo, hi, positions=()) -> MergeRequest:
        return request(list(self.state.spine.range(SpineId(lo, hi))), positions)

    def result(self, lo, hi, output, positions=(), since=F(0)) -> MergeResult:
        """What a merge of these members has become, as of now."""
        asked = self.request(lo, hi, positions)
        return MergeResult(asked.id, positions, asked.inputs, since, output)

    @property
    def garbage(self):
        """Names of the parts that the state has named, and names no more."""
        return {*self.state.garbage, *self.state.doomed}

    @property
    def names(self):
        return [part.name for member in self.state.spine for part in member.batch.parts()]

    @property
    def ids(self):
        return [tuple(member.id) for member in self.state.spine]
