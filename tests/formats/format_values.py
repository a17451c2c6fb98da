"""Fixed values of everything that is stored or sent: every field is set in some of them.

After a change of a format these values no longer give the bytes that are kept in `v1`.
"""

from dataclasses import replace

from pyrsistent import pmap, pset

from tidelake.arrangement.checkpoint.saved import Checkpoint, Followed, SavedBatch
from tidelake.config import Config
from tidelake.model.batch import ColumnStats, HollowBatch, Part, Run
from tidelake.model.bounds import Bounds
from tidelake.model.frontier import Frontier
from tidelake.model.query import AsOf, Changes, Fold, Updates
from tidelake.model.schema import Column, DataType, Field, Schema, SchemaVersion
from tidelake.model.time import TimeDomain
from tidelake.shard.runs.plan import Task
from tidelake.shard.runs.read import KeyRange, Source
from tidelake.shard.spec import ShardSpec
from tidelake.shard.writing.batch import SentBatch
from tidelake.shard.writing.uploader import Uploader
from tidelake.state.agreed import Agreed, Longer
from tidelake.state.bases import Base, Bases, Unpaid
from tidelake.state.edits import Delta, Edits, Note
from tidelake.state.erased import Erasure
from tidelake.state.fields import Move
from tidelake.state.garbage import Garbage, Sweep
from tidelake.state.grouped import Decision, Membership
from tidelake.state.spine import FuelingMerge, Member, Spine, SpineBatch, SpineEdit, SpineId
from tidelake.state.staged import Awaited, Staged, Staging
from tidelake.state.state import (
    CriticalHold,
    Fork,
    Hold,
    MergeClaim,
    Origin,
    Retention,
    Rollup,
    ShardState,
    WriterRecord,
    Written,
)

F = Frontier.of
SHARD = "5a" * 16
STRUCT = DataType(
    "struct", (), (Field("x", DataType("list", (), (Field("item", DataType("int8")),)), False),)
)
SCHEMA = Schema(
    (Column(0, "schlüssel", DataType("decimal128", (10, 2)), False), Column(1, "k", DataType("string"))),
    (Column(2, "v", STRUCT), Column(4, "t", DataType("timestamp", ("us", "UTC")))),
)
LATER_SCHEMA = replace(SCHEMA, value=(*SCHEMA.value, Column(5, "neu", DataType("float64"))))
DOMAIN = TimeDomain("ms")
PAIRS = TimeDomain("tuple", 2)


STATS = {0: ColumnStats(b"\x00\xff", b"\xff", 3), 2: ColumnStats(b"", None, 0), 4: ColumnStats(None, None, 7)}


def part(number, rows=10, first=0, last=5, **fields):
    made = Part(
        f"{SHARD}/parts/{number:016x}-{number:032x}.parquet",
        1234 + number,
        f"{number:032x}",
        rows,
        2,
        2**70,
        0,
        b"\x01\x80\x00a",
        b"\x01\x80\xff",
        first,
        last,
        {
            0: ColumnStats(b"\x00\xff", b"\xff", 3),
            2: ColumnStats(b"", None, 0),
            4: ColumnStats(None, None, 7),
        },
        ((first, 4), (first + 1, rows - 4)),
    )
    return replace(made, **fields)


INLINE = part(0xE, inline=b"\x00\xffrows", size_bytes=6)
REWRITTEN = part(0xF, rewrite=7)
OPEN_ENDED = part(0x10, key_upper=None, schema_id=1)


def batch(lower, upper, since, *runs):
    return HollowBatch(Bounds(F(lower), F(upper), F(since)), runs)


MEMBERS = (
    Member(SpineId(0, 1), batch(0, 5, 2, Run((part(1), part(2))), Run((REWRITTEN,), True)), 3),
    Member(SpineId(1, 2), batch(5, 8, 0, Run((INLINE,))), 9),
    Member(SpineId(2, 4), batch(8, 8, 0), 11),
)
BATCHES = (
    SpineBatch(SpineId(0, 1), 4, Bounds(F(0), F(5), F(2)), 30),
    SpineBatch(SpineId(1, 2), 4, Bounds(F(5), F(8), F(0)), 10),
    SpineBatch(SpineId(2, 4), 0, Bounds(F(8), F(8), F(0)), 0),
)
MERGES = (FuelingMerge(SpineId(0, 2), F(2), 2**65),)
CLAIM = MergeClaim(SpineId(0, 1), (0, 1), "d" * 32, F(2), "läufer", 99, (b"\x00", b"\xff\xfe"))
HOLD = Hold("liest", F(3), 7, (9, 12), 900_000, 900_007)
CRITICAL = CriticalHold(F(4), "token", 8)
WRITER = WriterRecord(2, 2**62, "owner", F(8), "content")
ROLLUP = Rollup(12, "7b" * 16, 4321, 2)
WRITTEN = Written(1, 2, 3, 2**70)
GARBAGE = {part(0x20).name: Garbage(3, 12, 50), f"{SHARD}/rollups/{6:019d}-{'6b' * 16}": Garbage(12, 12, 51)}
DOOMED = {part(0x21).name: Garbage(2, 10, 40)}

STATE = ShardState(
    shard_id=SHARD,
    domain=DOMAIN,
    seqno=13,
    committed_ms=1_700_000_000_123,
    since=F(2),
    upper=F(8),
    retained=F(2),
    spine=Spine.of(4, 2**64, MEMBERS, BATCHES, MERGES),
    schemas=pmap({0: SchemaVersion(SCHEMA, 0), 1: SchemaVersion(LATER_SCHEMA, 5)}),
    writers=pmap({"w": WRITER, "neu": WriterRecord(0, None, "", F(0))}),
    holds=pmap({"1a" * 16: HOLD}),
    critical=pmap({"wächter": CRITICAL}),
    retention=Retention(100),
    garbage=pmap(GARBAGE),
    doomed=pmap(DOOMED),
    collected_to=10,
    sweep=Sweep(4, ((7, 60), (9, 70))),
    rollup=ROLLUP,
    claims=pmap({CLAIM.name: CLAIM}),
    chunks=pmap({CLAIM.chunk(0): (part(0x30),), CLAIM.chunk(2): ()}),
    written=WRITTEN,
)
FIRST_STATE = ShardState(
    SHARD, PAIRS, 0, 1, F((0, 0)), F((0, 0)), F((0, 0)), Spine(), pmap({0: SchemaVersion(SCHEMA, 0)})
)
TOMBSTONE = replace(
    FIRST_STATE,
    seqno=7,
    since=Frontier(),
    upper=Frontier(),
    retained=Frontier(),
    spine=Spine.of(
        1,
        0,
        (Member(SpineId(0, 1), HollowBatch(Bounds(F((0, 0)), Frontier(), Frontier()))),),
        (SpineBatch(SpineId(0, 1), 0, Bounds(F((0, 0)), Frontier(), Frontier()), 0),),
        (),
    ),
    dropped=True,
)


def delta(edits, seqno=14):
    return Delta(SHARD, seqno, 1_700_000_000_456, "9c" * 16, edits.rollup or ROLLUP, edits)


DELTAS = {
    "append": Edits(
        upper=Move(F(8), F(9)),
        spine=SpineEdit(
            5,
            2**64 + 1,
            members=(Member(SpineId(4, 5), batch(8, 9, 0, Run((part(0x40),))), 14),),
            batches_gone=(SpineId(2, 4),),
            batches=(SpineBatch(SpineId(2, 5), 0, Bounds(F(8), F(9), F(0)), 10),),
        ),
        writers={"w": replace(WRITER, sequence=None, upper=Frontier())},
        written=WRITTEN,
    ),
    "append-inline": Edits(
        upper=Move(F(8), Frontier()),
        spine=SpineEdit(
            5,
            2**64 + 1,
            members=(Member(SpineId(4, 5), batch(8, 9, 0, Run((INLINE,), True)), 14),),
        ),
    ),
    "merge": Edits(
        spine=SpineEdit(
            4,
            2**64,
            members_gone=(SpineId(0, 1), SpineId(1, 2)),
            members=(Member(SpineId(0, 2), batch(0, 8, 2, Run((OPEN_ENDED,))), 1),),
            batches_gone=(SpineId(0, 1), SpineId(1, 2)),
            batches=(SpineBatch(SpineId(0, 2), 5, Bounds(F(0), F(8), F(2)), 10),),
            merges_gone=(SpineId(0, 2),),
            merges=(FuelingMerge(SpineId(0, 4), F(2), 7),),
        ),
        claims={CLAIM.name: None},
        chunks={CLAIM.chunk(0): None},
    ),
    "frontiers": Edits(since=Move(F(2), F(3)), retained=Move(F(2), F(4))),
    "schemas": Edits(schemas={2: SchemaVersion(LATER_SCHEMA, 14)}),
    "hold": Edits(holds={"2a" * 16: HOLD}),
    "hold-ends": Edits(holds={"1a" * 16: None}),
    "critical": Edits(critical={"neu": CRITICAL}),
    "critical-ends": Edits(critical={"wächter": None}),
    "retention": Edits(retention=Retention(7)),
    "doomed": Edits(doomed=tuple(sorted(GARBAGE))),
    "buried": Edits(buried=tuple(DOOMED)),
    "sweep": Edits(sweep=Sweep(7, ((9, 70), (14, 90)))),
    "rollup": Edits(rollup=replace(ROLLUP, seqno=13)),
    "claim": Edits(claims={"1-2": replace(CLAIM, id=SpineId(1, 2), positions=())}),
    "chunk": Edits(chunks={CLAIM.chunk(1): (part(0x50), part(0x51))}),
    "dropped": Edits(
        since=Move(F(2), Frontier()), critical={"wächter": None}, holds={"1a" * 16: None}, dropped=True
    ),
}

# Of three commands that were committed together.
TOGETHER = replace(delta(DELTAS["append"]), more=(DELTAS["hold"], DELTAS["retention"]))
STATES = {"full": STATE, "first": FIRST_STATE, "tombstone": TOMBSTONE}

# Staged batches, forks and groups.
TINY = part(0x61, first=8, last=9, inline=b"rows", size_bytes=4)
STAGED = (
    Staged(HollowBatch(Bounds(F(8), Frontier(), F(0)), (Run((part(0x60, first=9, last=30),)),)), 12),
    Staged(HollowBatch(Bounds(F(9), F(40), F(0)), (Run((TINY,), True),)), 13),
    Staged(
        HollowBatch(Bounds(F(8), Frontier(), F(0)), (Run((part(0x62, first=9, last=30),)),)),
        13,
        Awaited("6a" * 16, 5, 90),
    ),
)
FORKS = pmap({"3a" * 16: Fork(9, 80), "3b" * 16: Fork(11, 2**62)})
LATER_DELTAS = {
    "stage": Edits(staged={STAGED[0].name: STAGED[0]}),
    "seal": Edits(upper=Move(F(8), F(9)), staged={STAGED[1].name: None}),
    "forks": Edits(forks={"3a" * 16: None, "3c" * 16: Fork(13, 90)}),
    "let-go": Edits(let_go=True),
    "join": Edits(group="5a" * 16, joined=4),
    "leave": Edits(group="", joined=0),
    "prepare": Edits(staged={STAGED[2].name: STAGED[2]}),
    "decide": Edits(
        memberships={SHARD: Membership(F(9), 3), "7a" * 16: None},
        decisions={"6a" * 16: Decision((SHARD,), 9), "6b" * 16: Decision((), None), "6c" * 16: None},
        expired=4,
    ),
}
LATER_STATES = {
    "full": replace(
        STATE,
        staged=Staging.of({one.name: one for one in STAGED}),
        group="5a" * 16,
        joined=4,
        memberships=pmap({SHARD: Membership(F(9), 3), "7a" * 16: Membership(Frontier(), 2, leaving=True)}),
        decisions=pmap({"6a" * 16: Decision((SHARD,), 9), "6b" * 16: Decision((SHARD,), None)}),
        expired=4,
        forks=FORKS,
        origin=Origin("4a" * 16, 77),
    ),
    # A fork, which has forks as well.
    "forked": replace(TOMBSTONE, forks=FORKS, origin=Origin("4a" * 16, 77)),
}

# Settings, uploads that came in, and tokens.
AGREED = Agreed(
    3, 60_000, 120_000, 7 * 86_400_000, 3_600_000, {"upload_age_ms": Longer(2**40, 2**41)}, told=False
)
TAKEN = {4: ("8a" * 16, "8b" * 16), 9: ("8c" * 16,)}
NEWEST_DELTAS = {
    "taken": Edits(taken=TAKEN),
    "mended": Edits(rollup=ROLLUP, mended=True),
    "writers-gone": Edits(writers_gone=("7a" * 16 + ":w",)),
    "agreed": Edits(agreed=AGREED),
    "token-age": Edits(agreed=replace(AGREED, token_age_ms=5)),
    "tokens": Edits(tokens=("token:t",)),
}
NEWEST_STATES = {
    "full": replace(
        LATER_STATES["full"],
        taken=pmap({seqno: pset(ids) for seqno, ids in TAKEN.items()}),
        let_in=pmap({STAGED[0].name: 12}),
        latest=pmap({SHARD: 11, "7a" * 16: 2**40}),
        agreed=AGREED,
    ),
}
NEWEST_STATES["tokens"] = replace(
    NEWEST_STATES["full"],
    writers=NEWEST_STATES["full"].writers.set("token:t", WriterRecord(1, 0, "", F(4))),
    tokens=pmap({19_675: pset(["token:t"])}),
)

# Slices and bases.
SLICES = (
    SpineBatch(SpineId(0, 1), 0, Bounds(F(0), F(5), F(2)), 30),
    SpineBatch(SpineId(1, 2), 0, Bounds(F(5), F(8), F(0)), 10),
)
BASES = (
    Base(1, 5, 4, (Run((part(0x70, diff_sum=3 * 2**70),)),), 12),
    Base(2, 8, 9, (Run((part(0x71), part(0x72, diff_sum=3 * 2**70))),), 13),
)
UNPAID = Unpaid(2, 12, 2**63)
CUT_CLAIM = replace(CLAIM, positions=(), cuts=(b"1", b"3"), by_time=True)
BASE_CLAIM = replace(CLAIM, id=SpineId(1, 2), positions=(), cuts=(b"\x80",), base=7)
SLICED_DELTAS = {
    "sliced": Edits(
        spine=SpineEdit(
            4,
            2**64,
            batches_gone=(SpineId(0, 1), SpineId(1, 2)),
            batches=SLICES,
            merges_gone=(SpineId(0, 2),),
        ),
        sliced=2,
    ),
    "base": Edits(bases={2: BASES[1], 1: None}, claims={BASE_CLAIM.name: None}),
    "empty-base": Edits(bases={4: Base(4, 8, 7, (), 14)}),
    "unpaid": Edits(unpaid=UNPAID),
    "claim-of-base": Edits(claims={BASE_CLAIM.name: BASE_CLAIM}),
    "claim-by-time": Edits(claims={CUT_CLAIM.name: CUT_CLAIM}),
}
SLICED_STATES = {
    "full": replace(
        NEWEST_STATES["tokens"],
        spine=Spine.of(4, 2**64, MEMBERS, (*SLICES, BATCHES[2]), sliced=2),
        bases=Bases.of(BASES),
        unpaid=UNPAID,
        claims=pmap({claim.name: claim for claim in (CUT_CLAIM, BASE_CLAIM)}),
    ),
}
# Slices without a base.
SLICED_STATES["sliced"] = replace(
    STATE, spine=Spine.of(4, 2**64, MEMBERS, (SLICES[0], *BATCHES[1:]), sliced=1)
)

SPEC = ShardSpec(
    "file:///lake", SHARD, DOMAIN, 1, {0: SCHEMA, 1: LATER_SCHEMA}, Config(wait_timeout_s=30.0), 13
)
NEEDED = [Source(Run((part(1), INLINE), True), F(0), F(5)), Source(Run((REWRITTEN,)), F(5), Frontier())]
QUERIES = {
    "as-of": AsOf(7),
    "changes": Changes(3, 7),
    "updates": Updates(F(3), Frontier()),
    "fold": Fold(F(2)),
}
SCHEMA_OF_ARRANGEMENT = Schema(
    (Column(0, "k", DataType("int64"), False),), (Column(2, "v", DataType("string")),)
)
RECORDS = {
    "uploader": ("uploader", Uploader(SPEC, F(3), Frontier())),
    "uploader-unbound": ("uploader", Uploader(replace(SPEC, domain=PAIRS))),
    "batch": ("batch", SentBatch(SHARD, MEMBERS[0].batch)),
    "arrangement": (
        "arrangement",
        Checkpoint(
            7,
            f"{SHARD} [4]",
            1_700_000_000_000,
            SCHEMA_OF_ARRANGEMENT,
            TimeDomain("ms"),
            F(3),
            (SavedBatch("1.batch", 5, 2, 600), SavedBatch("2.batch", 1, 0, 300)),
            Followed("file:///lake", SHARD, "prices", 1, ("v",), "v > 'a'", F(4), SHARD[::-1], True),
        ),
    ),
    "arrangement-alone": (
        "arrangement",
        Checkpoint(0, "", 1, SCHEMA_OF_ARRANGEMENT, TimeDomain("tuple", 2), F((0, 1), (1, 0)), ()),
    ),
    "run": ("run", Run((part(1), OPEN_ENDED), True)),
    **{
        f"task-{name}": ("task", Task.of(SPEC, NEEDED, KeyRange(b"\x01\x80", None), query))
        for name, query in QUERIES.items()
    },
}

NEWEST_RECORDS = {
    "arrangement-with-id": ("arrangement", replace(RECORDS["arrangement-alone"][1], arrangement="9a" * 16)),
}

# A lake of another format.
UPGRADED = replace(AGREED, revision=4, format=5)
UPGRADED_DELTAS = {"upgraded": Edits(agreed=UPGRADED)}
UPGRADED_STATES = {
    "upgraded": replace(SLICED_STATES["full"], agreed=UPGRADED),
    "upgraded-only": replace(FIRST_STATE, agreed=Agreed(format=5)),
}

# Hashes of rows.
HASHED_RUN = Run(
    (
        part(0x80, checksum="8" * 64 + "+ffffffffffffffff"),
        part(0x81, checksum="9" * 32 + "+0000000000000000", diff_sum=3 * 2**70),
    )
)
HASHED_DELTAS = {
    "hashed-base": Edits(bases={2: replace(BASES[1], runs=(HASHED_RUN,))}),
    "hashed-staged": Edits(staged={"s": Staged(HollowBatch(STAGED[0].batch.bounds, (HASHED_RUN,)), 13)}),
}
HASHED_STATES = {
    "hashed": replace(
        UPGRADED_STATES["upgraded"],
        agreed=replace(UPGRADED, format=6),
        bases=Bases.of((BASES[0], replace(BASES[1], runs=(HASHED_RUN,)))),
    )
}
# Renamed columns.
RENAMED = SchemaVersion(
    replace(
        SLICED_STATES["full"].schema,
        key=tuple(replace(c, name=f"{c.name} now") for c in SLICED_STATES["full"].schema.key),
    ),
    13,
    tuple((c.name, f"{c.name} now") for c in SLICED_STATES["full"].schema.key),
)
RENAMED_DELTAS = {
    "renamed": Edits(schemas={2: RENAMED}),
    "noted": Edits(upper=Move(F(3), F(4)), note=Note("Jörg <j@x>", 'late\n"rows"')),
}
RENAMED_STATES = {
    "renamed": replace(
        HASHED_STATES["hashed"],
        agreed=replace(UPGRADED, format=7),
        schemas=HASHED_STATES["hashed"].schemas.set(HASHED_STATES["hashed"].schema_id + 1, RENAMED),
    )
}
# Times that are days.
DATED_STATES = {
    "dated": replace(
        FIRST_STATE,
        domain=TimeDomain("date"),
        since=F(0),
        upper=F(0),
        retained=F(0),
        agreed=replace(UPGRADED, format=7),
    )
}
DATED_RECORDS = {"uploader-dated": Uploader(replace(SPEC, domain=TimeDomain("date")), F(3), Frontier())}
HASHED_RECORDS = {
    "run-hashed": ("run", HASHED_RUN),
    "batch-hashed": ("batch", SentBatch(SHARD, HollowBatch(MEMBERS[0].batch.bounds, (HASHED_RUN,)))),
    "task-hashed": (
        "task",
        Task.of(SPEC, [Source(HASHED_RUN, F(0), F(5))], KeyRange(), AsOf(7)),
    ),
}

# Erasures.
ASKED = Erasure("Fall 17 ü", 2, 2**41, (b"\x01\x80a", b"\x01\x80\xff"))
ERASED = Erasure("Fall 17 ü", 2, 2**41, seqno=13, erased_ms=2**41 + 7, rows=2**40, parts=3)
ERASED_DELTAS = {
    "asked": Edits(erasures={"9a" * 16: ASKED}),
    "erased": Edits(erasures={"9a" * 16: ERASED}),
    "gone": Edits(erasures={"9a" * 16: replace(ERASED, gone_ms=2**42)}),
}
ERASED_STATES = {
    "erased": replace(
        HASHED_STATES["hashed"],
        agreed=replace(UPGRADED, format=7),
        erasures=pmap({"9a" * 16: replace(ERASED, gone_ms=2**42), "9b" * 16: ASKED}),
    )
}

# Forks that need no part of their origin any more, and when times were closed.
FREED_DELTAS = {
    "closed": Edits(
        upper=Move(F(7), F(8)), closed_ms=2**41, memberships={"7a" * 16: Membership(F(9), 3, closed_ms=2**40)}
    ),
    "freed-fork": Edits(forks={"3a" * 16: Fork(9, 80, freed=True), "3c" * 16: Fork(13, 90)}),
    "freed": Edits(freed=True),
}
ERASED_CHECKPOINT = replace(
    RECORDS["arrangement"][1], followed=replace(RECORDS["arrangement"][1].followed, erased=2**40)
)
FREED_STATES = {
    "freed": replace(
        FIRST_STATE,
        agreed=replace(UPGRADED, format=8),
        forks=pmap({"3a" * 16: Fork(9, 80, freed=True), "3b" * 16: Fork(11, 2**62)}),
        origin=Origin("3d" * 16, 5, freed=True),
        closed_ms=2**41,
        memberships=pmap({"7a" * 16: Membership(F(9), 3, closed_ms=2**40)}),
    )
}

_DELTAS = (
    {"": DELTAS, "staged-": LATER_DELTAS, "agreed-": NEWEST_DELTAS, "sliced-": SLICED_DELTAS}
    | {"upgraded-": UPGRADED_DELTAS, "hashed-": HASHED_DELTAS, "renamed-": RENAMED_DELTAS}
    | {"erased-": ERASED_DELTAS, "freed-": FREED_DELTAS}
)
_STATES = (
    {"": STATES, "staged-": LATER_STATES, "agreed-": NEWEST_STATES, "sliced-": SLICED_STATES}
    | {"upgraded-": UPGRADED_STATES, "hashed-": HASHED_STATES, "renamed-": RENAMED_STATES}
    | {"dated-": DATED_STATES, "erased-": ERASED_STATES, "freed-": FREED_STATES}
)
# All of them by the names of their records.
ALL_DELTAS = {
    f"delta-{prefix}{name}": delta(edits) for prefix, of in _DELTAS.items() for name, edits in of.items()
} | {"delta-together": TOGETHER}
ALL_STATES = {f"state-{prefix}{name}": state for prefix, of in _STATES.items() for name, state in of.items()}
ALL_RECORDS = (
    RECORDS
    | NEWEST_RECORDS
    | HASHED_RECORDS
    | {name: ("uploader", value) for name, value in DATED_RECORDS.items()}
    | {"arrangement-erased": ("arrangement", ERASED_CHECKPOINT)}
)
