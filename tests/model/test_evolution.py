"""Which schema may follow which, and the reasons why another may not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelake.errors import IncompatibleSchema
from tidelake.model.evolution import dropped, evolved, may_be_missing, why_not_readable_as, widens
from tidelake.model.schema import Column, DataType, Field, Schema

NESTED = DataType("struct", (), (Field("x", DataType("int32")),))


def kind(text):
    name, *params = text.split()
    return DataType(name, tuple(int(p) if p.lstrip("-").isdigit() else p for p in params))


def columns(*described):
    """Columns from texts such as `a int64` and `a int64!` (not null), with ids of no meaning."""
    made = []
    for text in described:
        name, type_ = text.rstrip("!").split(" ", 1)
        made.append(Column(99, name, kind(type_), not text.endswith("!")))
    return tuple(made)


def schema(key, *value):
    return Schema(columns(*key), columns(*value))


def first(*value, key=("k int64!", "l string")):
    made = Schema(columns(*key), columns(*value))
    numbered = [Column(i, c.name, c.type, c.nullable) for i, c in enumerate(made.columns)]
    return Schema(tuple(numbered[: len(key)]), tuple(numbered[len(key) :]))


KEY = ("k int64!", "l string")


def follow(old, *new, key=KEY):
    return evolved({0: old}, schema(key, *new))


def ids(made):
    return {column.name: column.id for column in made.columns}


def test_an_added_column_gets_an_id_that_was_never_used_wherever_it_stands():
    made = follow(first("a int64", "b string"), "x bool", "a int64", "y bool", "b string", "z bool")
    assert ids(made) == {"k": 0, "l": 1, "a": 2, "b": 3, "x": 4, "y": 5, "z": 6}
    assert [c.name for c in made.value] == ["x", "a", "y", "b", "z"]


def test_a_name_that_comes_back_is_another_column():
    old = first("a int64", "b string")
    without = follow(old, "b string")
    again = evolved({0: old, 1: without}, schema(KEY, "a int64", "b string"))
    assert ids(again)["a"] == 4 and ids(again)["b"] == 3


def test_an_equal_schema_is_the_newest_one():
    old = first("a int64", "b string")
    assert follow(old, "a int64", "b string") == old


def test_every_column_may_become_nullable():
    old = first("a int64!")
    made = follow(old, "a int64", key=("k int64", "l string"))
    assert all(column.nullable for column in made.columns) and ids(made) == ids(old)


ORDERED = [
    ["int8", "int16", "int32", "int64"],
    ["uint8", "uint16", "uint32", "uint64"],
    ["uint8", "int16"],
    ["uint16", "int32"],
    ["uint32", "int64"],
    ["float16", "float32", "float64"],
    ["decimal32 5 2", "decimal32 9 2", "decimal64 9 2", "decimal128 30 2", "decimal256 70 2"],
]


@pytest.mark.parametrize("order", ORDERED, ids=str)
def test_a_type_widens_to_those_after_it_and_to_no_other(order):
    for i, old in enumerate(order):
        for j, new in enumerate(order):
            assert widens(kind(old), kind(new)) == (i < j), (old, new)


@pytest.mark.promise(
    "What cannot be read under a new schema is refused, with the column, both types and the remedy; "
    "nothing is written",
    rule="`model/evolution.py`",
    also=[
        "::test_other_changes_are_refused_with_the_reason_and_the_remedy",
        "lake/api/test_evolve.py::test_what_cannot_be_changed_is_refused_and_nothing_is_written",
    ],
)
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("uint64", "int64"),
        ("int8", "uint64"),
        ("uint8", "int8"),
        ("int32", "float64"),
        ("decimal128 10 2", "decimal128 12 3"),
        ("decimal128 10 2", "decimal256 9 2"),
        ("decimal128 5 2", "decimal64 9 2"),
        ("string", "binary"),
        ("date32", "date64"),
        ("timestamp s", "timestamp ms"),
        ("fixed_size_binary 4", "fixed_size_binary 5"),
        ("int64", "string"),
    ],
)
def test_a_change_to_a_type_that_is_not_wider_is_refused_with_both_types_and_the_remedy(old, new):
    with pytest.raises(IncompatibleSchema) as caught:
        follow(first(f"a {old}"), f"a {new}")
    message = str(caught.value)
    assert message.startswith(f"column 'a' cannot change from {kind(old)} to {kind(new)}: ")
    assert "add another column" in message


def refused(old, *new, key=KEY):
    with pytest.raises(IncompatibleSchema) as caught:
        follow(old, *new, key=key)
    return str(caught.value)


def test_a_key_column_widens_but_not_from_unsigned_to_signed():
    old = first(key=("k uint32",))
    assert str(follow(old, key=("k uint64",)).key[0].type) == "uint64"
    assert "key column 'k' cannot change from uint32 to int64" in refused(old, key=("k int64",))
    assert "larger unsigned type" in refused(old, key=("k int64",))
    assert str(follow(first("v uint32"), "v int64").value[0].type) == "int64"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (("k int64!",), ("a int64", "b string"), "key column 'l' cannot be dropped or become a value"),
        (("k int64!",), ("l string", "a int64", "b string"), "key column 'l' cannot be dropped or become a"),
        (("k int64!", "l string", "m string"), (), "column 'm' cannot be added to the key"),
        (("k int64!", "l string", "a int64"), ("b string",), "column 'a' cannot be added to the key"),
        (("l string", "k int64!"), ("a int64", "b string"), "cannot be reordered from k, l to l, k"),
        (KEY, ("b string", "a int64"), "column 'b' cannot move before 'a'.* keep the order a, b"),
        (
            KEY,
            ("a int64", "b string", "c bool!"),
            "new column 'c': bool must be nullable.*: make it nullable",
        ),
        (KEY, ("a int64!", "b string"), "column 'a' cannot change from int64 to int64 not null.* leave it"),
        (("k int64!", "l string!"), ("a int64", "b string"), "key column 'l' .* to string not null"),
    ],
)
def test_other_changes_are_refused_with_the_reason_and_the_remedy(key, value, message):
    with pytest.raises(IncompatibleSchema, match=message):
        follow(first("a int64", "b string"), *value, key=key)


def test_a_nested_type_does_not_change():
    old = Schema((Column(0, "k", kind("int64")),), (Column(1, "n", NESTED),))
    wider = DataType("struct", (), (Field("x", DataType("int64")),))
    wanted = Schema(old.key, (Column(1, "n", wider),))
    with pytest.raises(
        IncompatibleSchema, match=r"struct<x: int32> to struct<x: int64>: nested types cannot"
    ):
        evolved({0: old}, wanted)
    assert evolved({0: old}, old) == old


@pytest.mark.promise(
    "A column is dropped only if the caller names it, so two callers that evolve at once never drop "
    "what the other adds",
    rule="`evolved` (`drop`)",
    also=[
        "state/test_commands.py::test_the_second_of_two_evolvers_is_checked_against_the_schema_of_the_first",
        "lake/api/test_evolve.py::test_the_second_of_two_evolvers_is_checked_against_the_first",
    ],
)
def test_a_column_is_dropped_only_if_the_caller_names_it():
    old = first("a int64")
    other = follow(old, "a int64", "b bool")
    for wanted, drop in ((schema(KEY, "a int64", "c bool"), ()), (schema(KEY, "c bool"), ("a",))):
        with pytest.raises(IncompatibleSchema, match=r"'b' is not in the new schema: .* drop=\['b'\]"):
            evolved({0: old, 1: other}, wanted, drop)
    assert ids(evolved({0: old, 1: other}, schema(KEY, "a int64", "c bool"), ("b",)))["c"] == 4
    without = evolved({0: old, 1: other}, schema(KEY, "b bool"), ("a",))
    assert "a" not in ids(without)
    assert evolved({0: old, 1: other, 2: without}, schema(KEY, "b bool"), ("a",)) == without  # once more


@pytest.mark.parametrize(
    ("drop", "said"),
    [
        (("a",), "column 'a' is in the new schema and in drop"),
        (("k",), "column 'k' is in the new schema and in drop"),
        (("z",), "there is no column 'z' to drop"),
    ],
)
def test_what_cannot_be_dropped_is_named(drop, said):
    with pytest.raises(IncompatibleSchema, match=said):
        evolved({0: first("a int64")}, schema(KEY, "a int64"), drop)


def test_what_may_be_missing_came_later_and_what_is_dropped_is_named():
    old = first("a int64", "b string")
    middle = follow(old, "b string", "c bool")
    newest = evolved({0: old, 1: middle}, schema(KEY, "a bool", "b string"))
    versions = {0: old, 1: middle, 2: newest}
    assert may_be_missing(versions, newest) == {"a"} and dropped(versions, newest) == {"c"}
    assert may_be_missing(versions, middle) == {"c"} and dropped(versions, middle) == {"a"}


@pytest.mark.parametrize(
    ("new", "reason"),
    [
        (("a int32", "b string!", "c bool"), ""),
        (("b string!",), ""),
        (("a int64", "b string!"), "'a' is int32 there, and was widened to int64"),
        (("a int32", "b string"), "'b' must not be null there, and may be null"),
        (("a int32",), "'b' must not be null there, and was dropped"),
    ],
)
def test_an_older_schema_can_be_read_under_if_todays_rows_fit_it(new, reason):
    old = first("a int32", "b string!")
    said = why_not_readable_as(follow(old, *new), old)
    assert reason in said and bool(said) == bool(reason)


TYPES = st.sampled_from(["int8", "int32", "int64", "uint8", "uint32", "float32", "float64", "string"])


@pytest.mark.promise(
    "A column id is never used again, even when a name is",
    rule="`evolved`",
    also=["lake/api/test_evolve.py::test_a_name_that_comes_back_does_not_bring_old_values_back"],
)
@given(st.lists(st.dictionaries(st.sampled_from("abcd"), TYPES, max_size=4), max_size=6))
def test_in_any_chain_an_id_has_one_name_and_types_only_widen(steps):
    versions = {0: first("a int8", key=("k int64!",))}
    for wanted in steps:
        newest = versions[max(versions)]
        kept = [c.name for c in newest.value if c.name in wanted]
        new = [name for name in wanted if name not in kept]
        try:
            made = evolved(
                versions, schema(("k int64!",), *(f"{name} {wanted[name]}" for name in new + kept))
            )
        except IncompatibleSchema:
            continue
        versions[max(versions) + 1] = made
    seen = {}
    for version in versions.values():
        for column in version.columns:
            before = seen.setdefault(column.id, column)
            assert before.name == column.name
            assert before.type == column.type or widens(before.type, column.type)
            seen[column.id] = column
    history = [{column.id for column in version.columns} for version in versions.values()]
    for i, held in enumerate(history[1:], 1):
        gone = history[i - 1] - held
        assert not any(gone & later for later in history[i:])
