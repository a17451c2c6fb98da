"""Events and old rows become updates: compared with a dictionary, and the rules one by one."""

from collections import Counter

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given

from tidelake.data.ingest.events import EventColumns, read_events
from tidelake.data.ingest.updates import normalize
from tidelake.data.ingest.upsert import UpsertRules, resolve, resolve_among
from tidelake.data.kernel.consolidate import consolidate
from tidelake.data.kernel.types import schema_from_arrow
from tidelake.errors import InvalidUpdates, UsageError
from tidelake.model.time import TimeDomain
from tidelake.testing.oracle import canonical, rank
from tidelake.testing.strategies import DECIMALS, FLOATS, INTS, LISTS, TEXTS
from tidelake.testing.tables import SCHEMA, by_time, table
from upsert_reference import Event, Model

DOMAIN = TimeDomain("counter")
# Keys of text and a double, so that NaN, zeros of both signs and nulls meet.
ARROW = pa.schema([SCHEMA.field(name) for name in ("k", "x", "n", "d", "l")])
KEYED = schema_from_arrow(ARROW, ["k", "x"], None)
ROWS = st.tuples(
    st.sampled_from((*TEXTS[:3], None)),
    st.sampled_from(FLOATS[:3] + FLOATS[-2:]),
    st.sampled_from(INTS),
    st.sampled_from(DECIMALS),
    st.sampled_from(LISTS),
)


def stored(rows):
    given = normalize(table([(row, 0, n) for row, n in rows], DOMAIN, ARROW), KEYED, DOMAIN)
    return consolidate(given, KEYED, DOMAIN)


def model_of(rows, stored_order=None):
    counts = Counter()
    for row, n in rows:
        counts[tuple(canonical(value) for value in row)] += n
    return Model(2, stored_order, counts)


def frame(events, order=None):
    columns = {f.name: pa.array([e.row[i] for e in events], f.type) for i, f in enumerate(ARROW)}
    columns["_time"] = pa.array([e.time for e in events], pa.int64())
    columns["gone"] = pa.array([e.removed for e in events], pa.bool_())
    if order is not None:
        columns["order"] = pa.array([e.order for e in events], order)
    return pa.table(columns)


def updates_of(found):
    return by_time(found.updates, DOMAIN)


def check(found, model, events):
    """Compare with the model: the updates, and what it counts of removals."""
    assert updates_of(found) == model.apply(events)
    assert (found.removed, found.absent) == (model.removed, model.absent)


@st.composite
def event_lists(draw, orders=st.none()):
    events = []
    for row in draw(st.lists(ROWS, max_size=12)):
        event = Event(row, draw(st.integers(1, 3)), draw(st.booleans()), draw(orders))
        events.append(event)
    return events


OLD = st.lists(st.tuples(ROWS, st.sampled_from((1, 1, 2, -1, 5))), max_size=6)


@pytest.mark.promise(
    "Events and old rows become the netted differences of a dictionary: the last event of a key "
    "wins; among events of one time, the one with the greatest order; late events change nothing",
    rule="`resolve` in `data/ingest/upsert.py`",
    also=[
        "::test_the_greatest_order_wins_among_events_of_one_time",
        "::test_events_older_than_the_stored_row_change_nothing",
    ],
)
@pytest.mark.promise(
    "Removals of absent keys are counted, and so are the rows that removals take away",
    rule="`_counts` in `data/ingest/upsert.py`",
    also=["lake/api/test_delete.py::test_upserts_count_what_their_removals_meet"],
)
@given(OLD, event_lists())
def test_updates_are_the_differences_of_a_dictionary(old, events):
    model = model_of(old)
    read = read_events(frame(events), KEYED, DOMAIN, EventColumns(delete_column="gone"))
    check(resolve(read, stored(old), KEYED, DOMAIN), model, events)


@given(OLD, event_lists(st.sampled_from(FLOATS[:-1])))
def test_the_greatest_order_wins_among_events_of_one_time(old, events):
    model = model_of(old)
    columns = EventColumns(order_by="order", delete_column="gone")
    read = read_events(frame(events, pa.float64()), KEYED, DOMAIN, columns)
    check(resolve(read, stored(old), KEYED, DOMAIN), model, events)


@given(OLD, st.lists(st.tuples(ROWS, st.integers(1, 3), st.booleans()), max_size=12))
def test_events_older_than_the_stored_row_change_nothing(old, drawn):
    events = [Event(row, time, gone, row[2]) for row, time, gone in drawn if row[2] is not None]
    model = model_of(old, 2)
    columns = EventColumns(order_by="n", delete_column="gone")
    read = read_events(frame(events), KEYED, DOMAIN, columns)
    check(resolve(read, stored(old), KEYED, DOMAIN, UpsertRules("n")), model, events)


@given(
    OLD,
    st.lists(st.tuples(ROWS, st.integers(1, 3), st.sampled_from((1, 2, -1))), max_size=6),
    event_lists(st.none()),
    st.booleans(),
)
def test_events_meet_the_rows_that_come_and_go_between_them(old, later, events, ordered):
    if ordered:
        events = [Event(e.row, e.time, e.removed, e.row[2]) for e in events if e.row[2] is not None]
    model, newest, expected = model_of(old, 2 if ordered else None), {}, Counter()
    for time in (1, 2, 3):
        for row, at, n in later:
            model.rows[tuple(map(canonical, row))] += n if at == time else 0
        model.rows = Counter({row: n for row, n in model.rows.items() if n})
        here = [e for e in events if e.time == time]
        if ordered:
            # Older than an event before, that of a removal too: it changes nothing.
            best = {}
            for e in here:
                key = model.key_of(e.row)
                best[key] = max(best.get(key, e), e, key=lambda one: rank(canonical(one.order)))
            late = {k for k, e in best.items() if k in newest and rank(canonical(e.order)) < newest[k]}
            newest |= {k: rank(canonical(e.order)) for k, e in best.items() if k not in late}
            here = [e for e in here if model.key_of(e.row) not in late]
        expected.update(model.apply(here))
    staged = normalize(table([(row, at, n) for row, at, n in later], DOMAIN, ARROW), KEYED, DOMAIN)
    columns = EventColumns(order_by="n" if ordered else None, delete_column="gone")
    found = resolve_among(
        read_events(frame(events), KEYED, DOMAIN, columns),
        stored(old),
        consolidate(staged, KEYED, DOMAIN),
        KEYED,
        DOMAIN,
        rules=UpsertRules("n" if ordered else None),
    )
    assert updates_of(found) == {change: diff for change, diff in expected.items() if diff}


def test_an_event_is_late_after_a_removal_also_if_rows_come_between_them():
    columns = EventColumns(order_by="w", delete_column="gone")
    events = small([(1, "a", 9), (1, "b", 5), (1, "c", 9)], gone=[True, False, False], _time=[2, 4, 6])
    later = table([((2, "other", 1), 3, 1), ((1, "come", 1), 4, 1), ((1, "new", 10), 7, 1)], DOMAIN, SMALL)
    found = resolve_among(
        read_events(events, SMALL_SCHEMA, DOMAIN, columns),
        *(normalize(rows, SMALL_SCHEMA, DOMAIN) for rows in (NOTHING, later)),
        SMALL_SCHEMA,
        DOMAIN,
        rules=UpsertRules("w"),
    )
    assert updates_of(found) == {((1, "come", 1), 6): -1, ((1, "c", 9), 6): 1}


@given(event_lists(st.sampled_from((1, 2))))
def test_equally_good_events_that_differ_are_refused_where_rows_have_no_order(events):
    columns = EventColumns(order_by="order", delete_column="gone")
    read = read_events(frame(events, pa.int8()), KEYED, DOMAIN, columns)
    best = {}
    for e in events:
        at = (tuple(map(canonical, e.row[:2])), e.time)
        what = "gone" if e.removed else tuple(map(canonical, e.row[2:]))
        best.setdefault(at, {}).setdefault(e.order, set()).add(what)
    differ = any(len(orders[max(orders)]) > 1 for orders in best.values())
    rules = UpsertRules(rows_count=False)
    if differ:
        with pytest.raises(
            InvalidUpdates,
            match=r"several events of the key k=.*give one for each key and time, or .*order_by",
        ):
            resolve(read, stored([]), KEYED, DOMAIN, rules)
    else:
        check(resolve(read, stored([]), KEYED, DOMAIN, rules), Model(2), events)


SMALL = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string()), ("w", pa.int64())])
SMALL_SCHEMA = schema_from_arrow(SMALL, ["id"], None)
NOTHING = table([], DOMAIN, SMALL)


def small(rows, **more):
    made = pa.table({f.name: pa.array([r[i] for r in rows], f.type) for i, f in enumerate(SMALL)})
    for name, values in more.items():
        made = made.append_column(name, values if isinstance(values, pa.Array) else pa.array(values))
    return made


def decided(data, old=NOTHING, columns=EventColumns(), rules=UpsertRules(), time=5):
    return updates_of(
        resolve(read_events(data, SMALL_SCHEMA, DOMAIN, columns, time=time), old, SMALL_SCHEMA, DOMAIN, rules)
    )


@pytest.mark.promise(
    "Only what says so removes a key: a row whose values are all null is a row, in Python, "
    "transactions, Spark and the command line; a table of removals needs no values, and a row that "
    "is none and lacks one is refused by its key",
    rule="`_removed`, `read_events` in `data/ingest/events.py`",
    also=[
        "::test_a_table_of_removals_needs_no_values",
        "::test_a_row_that_is_no_removal_needs_all_values_and_is_named",
        "spark/writing/test_upsert.py::test_a_row_of_nulls_is_a_row_and_equal_rows_write_nothing",
        "cli/test_cli.py::test_an_upsert_removes_only_what_is_marked",
    ],
)
def test_a_row_whose_values_are_null_is_a_row():
    old = table([((1, "a", 1), 0, 2), ((2, "b", 2), 0, 1)], DOMAIN, SMALL)
    assert decided(small([(1, None, None)]), old) == {((1, "a", 1), 5): -2, ((1, None, None), 5): 1}
    marked = EventColumns(delete_column="gone")
    assert decided(small([(1, None, None)], gone=[False]), columns=marked) == {((1, None, None), 5): 1}
    ordered = decided(small([(1, None, 7)]), columns=EventColumns(order_by="w"), rules=UpsertRules("w"))
    assert ordered == {((1, None, 7), 5): 1}


def test_an_event_equal_to_the_stored_row_gives_nothing():
    old = table([((1, "a", None), 0, 1)], DOMAIN, SMALL)
    assert decided(small([(1, "a", None)]), old) == {}


@pytest.mark.parametrize("further", [[], [((4, "d", 1), 0, 1)]])
def test_each_event_meets_the_old_row_of_its_own_key(further):
    old = table([((k, v, 1), 0, 1) for k, v in ((1, "a"), (2, "b"), (3, "c"))] + further, DOMAIN, SMALL)
    events = small([(3, "z", 1), (1, None, None), (2, "b", 1)], _time=[7, 8, 9], gone=[False, True, False])
    found = decided(events, old, columns=EventColumns(delete_column="gone"), time=None)
    assert found == {((1, "a", 1), 8): -1, ((3, "c", 1), 7): -1, ((3, "z", 1), 7): 1}


def test_an_old_row_without_an_order_is_older_than_anything():
    old = table([((1, "a", None), 0, 1)], DOMAIN, SMALL)
    found = decided(small([(1, "b", -(2**63))]), old, EventColumns(order_by="w"), UpsertRules("w"))
    assert found == {((1, "a", None), 5): -1, ((1, "b", -(2**63)), 5): 1}


def test_a_multiplicity_that_has_no_negative_is_refused():
    old = table([((1, "a", 1), 0, -(2**63))], DOMAIN, SMALL)
    with pytest.raises(InvalidUpdates, match=r"-2\^63"):
        decided(small([(1, "b", 1)]), old)


def test_values_of_removals_need_not_be_there_where_rows_need_them():
    strict = pa.schema([SMALL.field("id"), pa.field("v", pa.string(), nullable=False)])
    schema = schema_from_arrow(strict, ["id"], None)
    columns = EventColumns(delete_column="gone")
    data = pa.table({"id": [1, 2], "v": pa.array([None, "x"]), "gone": [True, False]})
    assert read_events(data, schema, DOMAIN, columns, time=1).num_rows == 2
    with pytest.raises(InvalidUpdates, match=r"'v' must not be null, but is in row 0"):
        read_events(data.set_column(2, "gone", pa.array([False, False])), schema, DOMAIN, columns, time=1)


def test_a_table_of_removals_needs_no_values():
    old = table([((1, "a", 1), 0, 1), ((2, "b", 2), 0, 1)], DOMAIN, SMALL)
    columns = EventColumns(delete_column="gone")
    assert decided(pa.table({"id": [1, 3], "gone": [True, True]}), old, columns) == {((1, "a", 1), 5): -1}
    # The column that orders events, or marks removals, is none that removals do without.
    for needed in (EventColumns("w", "gone"), EventColumns(delete_column="w")):
        with pytest.raises(InvalidUpdates, match="missing column 'w'"):
            decided(pa.table({"id": [1], "v": ["a"], "gone": [True]}).select(["id", "gone"]), columns=needed)


@pytest.mark.parametrize(
    "table_", [{"id": [1, 2], "gone": [True, False]}, {"id": [1, 2], "gone": [True, False], "w": [1, 1]}]
)
def test_a_row_that_is_no_removal_needs_all_values_and_is_named(table_):
    with pytest.raises(InvalidUpdates, match=r"missing column 'v'.*: row 1 \(the key id=2\) is no removal"):
        decided(pa.table(table_), columns=EventColumns(delete_column="gone"))


BAD = {
    "diff": (small([(1, "a", 1)], _diff=[1]), EventColumns(), "has no place in an upsert"),
    "no order": (small([(1, "a", 1)]), EventColumns(order_by="o"), "'o' must appear once"),
    "null order": (
        small([(1, "a", 1)], o=pa.array([None], pa.int8())),
        EventColumns(order_by="o"),
        "in row 0",
    ),
    "map order": (
        small([(1, "a", 1)], o=pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int8()))),
        EventColumns(order_by="o"),
        "cannot be kept",
    ),
    "text flag": (small([(1, "a", 1)], gone=["no"]), EventColumns(delete_column="gone"), "expected bool"),
    "null flag": (
        small([(1, "a", 1)], gone=pa.array([None], pa.bool_())),
        EventColumns(delete_column="gone"),
        "say true or false",
    ),
    "unknown column": (small([(1, "a", 1)], o=[1]), EventColumns(), "unknown column 'o'"),
    "null key": (small([(None, "a", 1)]), EventColumns(), "'id' must not be null, but is in row 0"),
    "key order": (small([(1, "a", 1)]), EventColumns(order_by="id"), "must name a value column"),
    "key flag": (small([(1, "a", 1)]), EventColumns(delete_column="_time"), "must name a value column"),
}


@pytest.mark.parametrize("case", list(BAD))
def test_tables_that_are_no_events_are_refused_with_the_reason(case):
    data, columns, message = BAD[case]
    with pytest.raises(UsageError, match=message):
        read_events(data, SMALL_SCHEMA, DOMAIN, columns, time=1)


def test_times_that_are_tuples_are_refused():
    with pytest.raises(UsageError, match="times that follow each other"):
        read_events(small([]), SMALL_SCHEMA, TimeDomain("tuple", 2), EventColumns(), time=(0, 1))


def test_an_order_of_any_form_is_taken():
    words = pa.array(["a", "b", "a"]).dictionary_encode()
    found = decided(
        small([(1, "x", 1), (1, "y", 1), (1, "z", 1)], o=words), columns=EventColumns(order_by="o")
    )
    assert found == {((1, "y", 1), 5): 1}
