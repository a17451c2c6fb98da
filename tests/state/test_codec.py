"""Records read back exactly, and nothing else reads at all."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyrsistent import pmap

from tidelake.errors import CorruptionError, FormatTooNew, InternalError
from tidelake.model.batch import ColumnStats, HollowBatch, Part, Run
from tidelake.model.bounds import Bounds
from tidelake.model.frontier import Frontier
from tidelake.model.schema import Column, DataType, Field, Schema
from tidelake.model.time import TimeDomain
from tidelake.state import codec, commands, spine
from tidelake.state.invariants import check_state, check_step
from tidelake.state.spine import SpineBatch, SpineEdit
from tidelake.state.state import FIRST, Delta, Edits, Hold, Move, Rollup, WriterRecord, apply

F = Frontier.of
STRUCT = DataType("struct", (), (Field("x", DataType("list", (), (Field("item", DataType("int8")),))),))
SCHEMA = Schema(
    (Column(0, "schlüssel", DataType("decimal128", (10, 2)), False),),
    (Column(1, "v", STRUCT), Column(2, "t", DataType("timestamp", ("us", "UTC")))),
)


def a_part(name, diff_sum=2**70, rewrite=None):
    stats = {0: ColumnStats(b"\x00\xff", None, 3), 2: ColumnStats(None, None, 7)}
    return Part(
        name, 10, "c" * 32, 7, 2, diff_sum, 0, b"\x00", b"\xff\xfe", 0, 2**63 - 1, stats, rewrite=rewrite
    )


def a_state(batches=3):
    state = commands.initial("shard", TimeDomain("ms"), SCHEMA, 1)
    for n in range(batches):
        batch = HollowBatch(Bounds(F(n), F(n + 1), F(0)), (Run((a_part(f"p{n}"),), n == 1),))
        edits = Edits(
            upper=Move(F(n), F(n + 1)),
            spine=spine.push(state.spine, batch),
            writers={f"w{n}": WriterRecord(n, None if n else 4, "", F(n))},
            holds={f"h{n}": Hold("näher", F(0), n)},
            rollup=Rollup(n, "r", 5, n) if n else None,
        )
        state = apply(state, Delta("shard", n + 1, n + 1, "nonce", edits.rollup or state.rollup, edits))
    return state


def a_delta():
    edits = Edits(
        Move(F(0), F(1)),
        None,
        Move(F(0), F(2)),
        SpineEdit(
            0,
            1,
            (SpineBatch(0, 1, HollowBatch(Bounds(F(0), F(1), F(0)), (Run((a_part("m", rewrite=3),)),))),),
        ),
        {1: SCHEMA},
        {"w": WriterRecord(9, 2**62, "query", Frontier())},
        {"h": None},
        Rollup(3, "name", 10, 1),
    )
    return Delta("shard", 4, 5, "nonce", edits.rollup, edits)


def test_a_state_reads_back_equal():
    state = a_state()
    assert codec.decode_state(codec.encode_state(state), "x") == state


def test_a_state_with_tuple_times_reads_back_equal():
    state = commands.initial("shard", TimeDomain("tuple", 2), SCHEMA, 1)
    assert codec.decode_state(codec.encode_state(state), "x") == state


def test_a_delta_reads_back_equal():
    assert codec.decode_delta(codec.encode_delta(a_delta()), "x") == a_delta()


@given(st.data())
def test_a_flipped_or_missing_byte_is_corruption(data):
    good = codec.encode_delta(a_delta())
    at = data.draw(st.integers(0, len(good) - 1))
    bad = bytearray(good)
    bad[at] ^= data.draw(st.integers(1, 255))
    for damaged in (bytes(bad), good[:at]):
        with pytest.raises((CorruptionError, FormatTooNew), match="the-name"):
            codec.decode_delta(damaged, "the-name")


def framed(kind, format_, body):
    import hashlib

    checksum = hashlib.blake2b(f"{kind} {format_} ".encode() + body, digest_size=16).hexdigest()
    return f"tidelake-{kind} {format_} {checksum}\n".encode() + body


def test_a_newer_format_is_refused_before_its_body_is_looked_at():
    with pytest.raises(FormatTooNew, match=r"format 2 .* up to 1: upgrade"):
        codec.decode_delta(framed("delta", 2, b"what will be"), "x")


def test_a_field_that_this_version_does_not_know_is_refused():
    body = json.loads(codec.encode_delta(a_delta()).partition(b"\n")[2])
    body["edits"]["extra"] = 1
    with pytest.raises(CorruptionError, match="does not know"):
        codec.decode_delta(framed("delta", 1, json.dumps(body, separators=(",", ":")).encode()), "x")


def test_a_record_of_another_kind_is_refused():
    with pytest.raises(CorruptionError, match="not a delta"):
        codec.decode_delta(codec.encode_state(a_state()), "x")


def test_a_stored_state_that_breaks_a_rule_is_corruption():
    body = (
        codec.encode_state(a_state())
        .partition(b"\n")[2]
        .replace(b'"upper":{"elements":[3]}', b'"upper":{"elements":[9]}', 1)
    )
    with pytest.raises(CorruptionError, match="batches end at"):
        codec.decode_state(framed("state", 1, body), "x")


@pytest.mark.parametrize(
    "edits",
    [
        Edits(upper=Move(F(7), F(8))),
        Edits(since=Move(F(7), F(8))),
        Edits(schemas={0: SCHEMA}),
        Edits(holds={"nobody": None}),
        Edits(spine=SpineEdit(5, 6, ())),
        Edits(spine=SpineEdit(0, 2, (SpineBatch(0, 1, HollowBatch(Bounds(F(0), F(1), F(0)))),))),
        Edits(spine=SpineEdit(3, 3, (SpineBatch(4, 5, HollowBatch(Bounds(F(3), F(4), F(0)))),))),
    ],
)
def test_a_delta_that_does_not_fit_is_corruption(edits):
    with pytest.raises(CorruptionError, match="shard@4"):
        apply(a_state(), Delta("shard", 4, 9, "n", a_state().rollup, edits))


def test_a_delta_that_names_another_rollup_is_corruption():
    with pytest.raises(CorruptionError, match="starts from rollup 0, not 2"):
        apply(a_state(), Delta("shard", 4, 9, "n", FIRST, Edits()))


def test_a_delta_of_another_shard_or_seqno_is_corruption():
    for shard, seqno in (("other", 4), ("shard", 5), ("shard", 3)):
        with pytest.raises(CorruptionError):
            apply(a_state(), Delta(shard, seqno, 9, "n", a_state().rollup, Edits()))


def a_batch(lower, upper, since=F(0), parts=("q",), **kwargs):
    return HollowBatch(Bounds(F(lower), F(upper), since), tuple(Run((a_part(p, **kwargs),)) for p in parts))


@pytest.mark.parametrize(
    ("rule", "edits"),
    [
        ("since-never-goes-back", Edits(since=Move(F(0), Frontier.of(0).meet(F(0))))),
        ("upper-never-goes-back", Edits(upper=Move(F(3), F(2)))),
        ("batches-tile", Edits(upper=Move(F(3), F(4)))),
        (
            "batches-tile",
            Edits(upper=Move(F(3), F(5)), spine=SpineEdit(3, 3, (SpineBatch(3, 4, a_batch(3, 4)),))),
        ),
        (
            "batches-tile",
            Edits(upper=Move(F(3), F(4)), spine=SpineEdit(3, 3, (SpineBatch(3, 4, a_batch(2, 4)),))),
        ),
        ("batches-tile", Edits(spine=SpineEdit(0, 2, (SpineBatch(0, 2, a_batch(0, 1)),)))),
        ("merge-keeps-diffs", Edits(spine=SpineEdit(0, 1, (SpineBatch(0, 1, a_batch(0, 1, diff_sum=5)),)))),
        (
            "part-named-once",
            Edits(
                upper=Move(F(3), F(4)),
                spine=SpineEdit(3, 3, (SpineBatch(3, 4, a_batch(3, 4, parts=("q", "q"))),)),
            ),
        ),
        (
            "batch-folded-to-since",
            Edits(
                upper=Move(F(3), F(4)), spine=SpineEdit(3, 3, (SpineBatch(3, 4, a_batch(3, 4, since=F(2))),))
            ),
        ),
        ("holds-keep-since", Edits(since=Move(F(0), F(2)), retained=Move(F(0), F(2)))),
        (
            "times-in-bounds",
            Edits(upper=Move(F(3), F(4)), spine=SpineEdit(3, 3, (SpineBatch(3, 4, a_batch(3, 4)),))),
        ),
        ("owner-keeps-since", Edits(since=Move(F(0), F(2)), holds={"h0": None, "h1": None, "h2": None})),
        ("retained-never-goes-back", Edits(retained=Move(F(0), F(0)))),
        ("epoch-never-goes-back", Edits(writers={"w2": WriterRecord(1, None, "", F(0))})),
        ("sequence-never-goes-back", Edits(writers={"w0": WriterRecord(0, 3, "", F(0))})),
    ],
)
def test_each_rule_refuses_the_step_that_breaks_it(rule, edits):
    before = a_state()
    after = apply(before, Delta("shard", 4, 9, "n", a_state().rollup, edits))
    later = {"since-never-goes-back": Edits(since=Move(F(0), F(2)))}
    later["retained-never-goes-back"] = Edits(retained=Move(F(0), F(2)))
    if rule in later:
        before = apply(before, Delta("shard", 4, 9, "n", a_state().rollup, later[rule]))
    with pytest.raises(InternalError, match=rule):
        check_step(before, after, edits)


def test_each_rule_of_a_whole_state_can_fail():
    from dataclasses import replace

    good = a_state()
    check_state(good)
    twice = HollowBatch(Bounds(F(3), F(4), F(0)), (Run((a_part("p0"),)),))
    broken = [
        (
            "part-named-once",
            replace(good, upper=F(4), spine=good.spine.edited(spine.push(good.spine, twice))),
        ),
        ("schema-registered", replace(good, schemas=pmap())),
        ("holds-keep-since", replace(good, since=F(2), retained=F(2))),
        ("owner-keeps-since", replace(good, since=F(2), holds=pmap())),
        ("rollup-is-past", replace(good, rollup=Rollup(99, "r", 1, 1))),
    ]
    for rule, state in broken:
        with pytest.raises(InternalError, match=rule):
            check_state(state)


def test_an_edit_costs_what_it_changes_and_shares_the_rest():
    state = a_state(200)
    batch = HollowBatch(Bounds(F(200), F(201), F(0)), (Run((a_part("new"),)),))
    edited = state.spine.edited(spine.push(state.spine, batch))
    assert edited.by_lo[17] is state.spine.by_lo[17]
    assert len(state.spine) == 200 and len(edited) == 201
