"""Records read back exactly, and nothing else reads at all."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shard_states import RICH_SCHEMA, STATS, F, Shard, hollow, one, part

from tidelake.errors import CorruptionError, FormatTooNew, FormatTooOld, UnknownFormat
from tidelake.model.batch import HollowBatch, Run
from tidelake.model.bounds import Bounds
from tidelake.model.frontier import Frontier
from tidelake.model.schema import SchemaVersion
from tidelake.model.time import TimeDomain
from tidelake.state.core import codec, commands
from tidelake.state.core.edits import Delta, Edits, apply
from tidelake.state.core.fields import Move
from tidelake.state.core.formats import FIRST as FIRST_FORMAT
from tidelake.state.core.formats import NEWEST
from tidelake.state.core.garbage import Sweep
from tidelake.state.core.state import (
    FIRST,
    CriticalHold,
    Hold,
    MergeClaim,
    Retention,
    Rollup,
    WriterRecord,
    Written,
)
from tidelake.state.spine import fuel
from tidelake.state.spine.spine import FuelingMerge, Member, SpineBatch, SpineEdit, SpineId


def a_part(name, diff_sum=2**70, **kwargs):
    return part(name, 0, 2**63 - 1, rows=7, negative_rows=2, diff_sum=diff_sum, stats=STATS, **kwargs)


def a_claim(lo=0, hi=2, **kwargs):
    return MergeClaim(SpineId(lo, hi), (), "d" * 32, F(0), "läufer", 99, (b"\x00", b"\xff\xfe"), **kwargs)


def a_state(batches=3):
    state = commands.initial("shard", TimeDomain("ms"), RICH_SCHEMA, 1)
    for n in range(batches):
        extra = {"inline": b"\x00\xffrows"} if n == 2 else {"time_counts": ((0, 1), (5, 6))}
        batch = hollow(n, n + 1, Run((a_part(f"p{n}", **extra),), n == 1))
        edits = Edits(
            upper=Move(F(n), F(n + 1)),
            spine=fuel.push(state.spine, batch, F(0), n + 1).edit,
            writers={f"w{n}": WriterRecord(n, None if n else 4, "", F(n))},
            holds={f"h{n}": Hold("näher", F(0), n, (n,), 10, 99)},
            rollup=Rollup(n, "r", 5, n) if n else None,
            claims={"0-2": a_claim()} if n == 2 else {},
            chunks={"0-2/1": (a_part("c1"), a_part("c2", rewrite=3))} if n == 2 else {},
            written=Written(n, 2 * n, 3 * n, 2**70),
        )
        state = apply(state, Delta("shard", n + 1, n + 1, "nonce", edits.rollup or state.rollup, edits))
    return state


def a_delta():
    member, batch = one(0, 1, 3, hollow(0, 1, Run((a_part("m", rewrite=3, inline=b"\xfe"),))))
    edits = Edits(
        since=Move(F(0), F(1)),
        retained=Move(F(0), F(2)),
        spine=SpineEdit(
            1,
            2**65,
            (SpineId(0, 1),),
            (member,),
            (SpineId(0, 1),),
            (batch,),
            (SpineId(0, 2),),
            (FuelingMerge(SpineId(0, 4), Frontier(), 7),),
        ),
        schemas={1: SchemaVersion(RICH_SCHEMA, 4)},
        writers={"w": WriterRecord(9, 2**62, "query", Frontier())},
        holds={"h": None},
        critical={"c": CriticalHold(F(3), "marke", 1), "d": None},
        retention=Retention(7),
        dropped=True,
        doomed=("gone",),
        buried=("buried",),
        sweep=Sweep(3, ((4, 5), (6, 7))),
        rollup=Rollup(3, "name", 10, 1),
        claims={"0-1": None, "0-2": a_claim()},
        chunks={"0-1/0": None, "0-2/7": (a_part("c", time_counts=((0, 7),)),)},
        written=Written(1, 2, 3, 4),
    )
    return Delta("shard", 4, 5, "nonce", edits.rollup, edits)


def test_a_state_reads_back_equal():
    state = a_state()
    again = codec.decode_state(codec.encode_state(state), "x")
    assert again == state and codec.encode_state(again) == codec.encode_state(state)
    # All that a state can hold is in it.
    assert again.claims and again.chunks and again.written.merged_bytes == 2**70
    assert again.spine.totals.inline_bytes == 6 and [b.level for b in again.spine.batches] == [4, 3]


def test_merges_under_way_read_back_equal():
    state = a_state(2)
    assert [(m.id, m.done_at) for m in state.spine.merges] == [(SpineId(0, 2), 64 * 2 + 14)]
    assert codec.decode_state(codec.encode_state(state), "x") == state


def test_a_state_with_tuple_times_reads_back_equal():
    state = commands.initial("shard", TimeDomain("tuple", 2), RICH_SCHEMA, 1)
    assert codec.decode_state(codec.encode_state(state), "x") == state


def test_a_delta_reads_back_equal():
    assert codec.decode_delta(codec.encode_delta(a_delta()), "x") == a_delta()


@pytest.mark.promise(
    "A flipped byte of a record is noticed; an unknown field is refused",
    rule="`decode_record`",
    also=["::test_a_field_that_this_version_does_not_know_is_refused"],
)
@given(st.data())
def test_a_flipped_or_missing_byte_is_corruption(data):
    good = codec.encode_delta(a_delta())
    at = data.draw(st.integers(0, len(good) - 1))
    bad = bytearray(good)
    bad[at] ^= data.draw(st.integers(1, 255))
    for damaged in (bytes(bad), good[:at]):
        with pytest.raises((CorruptionError, UnknownFormat), match="the-name"):
            codec.decode_delta(damaged, "the-name")


def framed(kind, format_, body):
    import hashlib

    checksum = hashlib.blake2b(f"{kind} {format_} ".encode() + body, digest_size=16).hexdigest()
    return f"tidelake:{kind} {format_} {checksum}\n".encode() + body


def test_a_newer_format_is_refused_before_its_body_is_looked_at():
    newer = NEWEST + 1
    with pytest.raises(FormatTooNew, match=rf"format {newer} .* up to {NEWEST}: upgrade"):
        codec.decode_delta(framed("delta", newer, b"what will be"), "x")


# Two deltas as an unreleased version encoded them: one changes nothing, the other frees a fork.
BEFORE = (
    (b"1 6a67fd78cd95ad8bca144e33732b770e", b"{}"),
    (b"8 c99cdddc3e6f323b59394e245d7a6c9d", b'{"freed":true}'),
)


@pytest.mark.promise(
    "What an unreleased version has stored or sent is refused as such (`FormatTooOld`), whatever "
    "number it has, and never read",
    rule="`state/core/codec.py`, `store/marker.py`",
    also=[
        "store/test_url.py::test_a_lake_of_an_unreleased_version_is_told_how_to_carry_its_data_over",
        "formats/test_formats.py::test_a_record_of_another_format_or_a_damaged_one_is_refused",
    ],
)
@pytest.mark.parametrize(("head", "edits"), BEFORE)
def test_a_record_of_an_unreleased_version_is_refused_as_such(head, edits):
    rollup = b'{"seqno":0,"id":"00000000000000000000000000000000","size_bytes":0,"batches":0}'
    told = b'{"shard_id":"1a","seqno":3,"committed_ms":5,"nonce":"2b","base":%b,"edits":%b}' % (rollup, edits)
    with pytest.raises(FormatTooOld, match="'x' is of an unreleased version of Tidelake"):
        codec.decode_delta(b"tidelake-delta %b\n%b" % (head, told), "x")


def test_a_field_that_this_version_does_not_know_is_refused():
    body = json.loads(codec.encode_delta(a_delta()).partition(b"\n")[2])
    body["edits"]["extra"] = 1
    with pytest.raises(CorruptionError, match="does not know"):
        codec.decode_delta(framed("delta", 1, json.dumps(body, separators=(",", ":")).encode()), "x")


def test_a_record_of_another_format_than_that_of_its_fields_is_refused():
    body = codec.encode_delta(a_delta()).partition(b"\n")[2]
    assert codec.decode_delta(framed("delta", FIRST_FORMAT, body), "x") == a_delta()
    with pytest.raises(CorruptionError, match="does not know"):
        codec.decode_delta(framed("delta", FIRST_FORMAT - 1, body), "x")


def test_a_record_of_another_kind_is_refused():
    with pytest.raises(CorruptionError, match="not a delta"):
        codec.decode_delta(codec.encode_state(a_state()), "x")


def test_a_stored_state_that_breaks_a_rule_is_corruption():
    body = (
        codec.encode_state(a_state())
        .partition(b"\n")[2]
        .replace(b'"upper":{"elements":[3]}', b'"upper":{"elements":[9]}', 1)
    )
    with pytest.raises(CorruptionError, match="drained-up-to-upper"):
        codec.decode_state(framed("state", NEWEST, body), "x")


def misfit(next_id, members=(), batches=None, merges_gone=()):
    batches = tuple(SpineBatch(m.id, 0, m.batch.bounds, 0) for m in members) if batches is None else batches
    return Edits(spine=SpineEdit(next_id, 999, (), members, (), batches, merges_gone))


@pytest.mark.promise(
    "Memory and log cannot drift apart: the next state is `apply` of the same edits everywhere",
    rule="`state/core/edits.py` (`apply`)",
)
@pytest.mark.parametrize(
    "edits",
    [
        Edits(upper=Move(F(7), F(8))),
        Edits(since=Move(F(7), F(8))),
        Edits(schemas={0: SchemaVersion(RICH_SCHEMA, 4)}),
        Edits(holds={"missing": None}),
        Edits(claims={"5-6": None}),
        Edits(chunks={"0-2/0": None}),
        Edits(spine=SpineEdit(2, 999)),
        Edits(spine=SpineEdit(3, 0)),
        Edits(spine=SpineEdit(3, 999, (SpineId(5, 6),))),
        Edits(spine=SpineEdit(3, 999, (SpineId(0, 2),))),
        Edits(spine=SpineEdit(3, 999, batches_gone=(SpineId(0, 1),))),
        misfit(4),
        misfit(3, (Member(SpineId(1, 2), hollow(1, 2)),)),
        misfit(4, (Member(SpineId(4, 5), hollow(3, 4)),)),
        misfit(4, (Member(SpineId(3, 4), hollow(3, 4)),), batches=()),
        misfit(4, (Member(SpineId(3, 4), hollow(3, 4)),), merges_gone=(SpineId(5, 7),)),
    ],
)
def test_a_delta_that_does_not_fit_is_corruption(edits):
    with pytest.raises(CorruptionError, match="shard@4"):
        apply(a_state(), Delta("shard", 4, 9, "n", a_state().rollup, edits))


def test_a_delta_that_names_another_rollup_is_corruption():
    with pytest.raises(CorruptionError, match="starts from rollup 0, not 2"):
        apply(a_state(), Delta("shard", 4, 9, "n", FIRST, Edits()))


@pytest.mark.promise(
    "An entry of another shard, seqno or rollup, or one that does not fit, is reported as damage, "
    "without guessing",
    rule="`apply`",
    also=[
        "::test_a_delta_that_names_another_rollup_is_corruption",
        "::test_a_delta_that_does_not_fit_is_corruption",
    ],
)
def test_a_delta_of_another_shard_or_seqno_is_corruption():
    for shard, seqno in (("other", 4), ("shard", 5), ("shard", 3)):
        with pytest.raises(CorruptionError):
            apply(a_state(), Delta(shard, seqno, 9, "n", a_state().rollup, Edits()))


def test_an_edit_costs_what_it_changes_and_shares_the_rest():
    state = a_state(200)
    new = HollowBatch(Bounds(F(200), F(201), F(0)), (Run((a_part("new"),)),))
    edited = state.spine.edited(fuel.push(state.spine, new, F(0), 201).edit)
    assert edited.members[17] is state.spine.members[17]
    assert len(state.spine) == 200 and len(edited) == 201
    assert edited.totals == replace(edited.totals, members=201, runs=201, rows=7 * 201)


@pytest.mark.parametrize("whole", [True, False])
def test_what_tells_that_the_lake_has_a_later_format_is_refused_by_the_version_before(whole):
    state = Shard().state
    upgraded = replace(state.agreed, format=NEWEST + 1)
    if whole:
        data, read = codec.encode_state(replace(state, agreed=upgraded)), codec.decode_state
    else:
        delta = Delta("s", state.seqno + 1, 9, "n", state.rollup, Edits(agreed=upgraded))
        data, read = codec.encode_delta(delta), codec.decode_delta
    with pytest.raises(FormatTooNew):
        read(data, "x")
