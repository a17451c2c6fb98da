"""Indexes: rows of a collection by another key, that views and users look up."""

import pyarrow as pa
import pytest

import tidelake
from tidelake.errors import CollectionExists, CollectionInUse, NotYetClosed, RebuildNeeded, UsageError
from tidelake.views import making, state
from tidelake.views.state import states_of

PAID = """SELECT c.country, count(*) AS n FROM (SELECT customer FROM orders WHERE paid) o
JOIN customers c ON o.customer = c.id GROUP BY c.country"""
BIG = "SELECT o.id, amount, country FROM orders o JOIN customers c ON o.customer = c.id WHERE amount > 5"
INDEX = "orders by customer"


@pytest.fixture
def lake(tmp_path, monkeypatch):
    # Rows are looked up, however few there are.
    monkeypatch.setattr(state, "_ROWS_PER_KEY", 0)
    with tidelake.open(tmp_path / "lake") as opened:
        orders = {"id": "int64", "customer": "int64", "amount": "int32", "paid": "bool"}
        opened.create("orders", orders, key=["id"])
        opened.create("customers", {"id": "int64", "country": "string"}, key=["id"])
        write(opened, 0)
        yield opened


def write(lake, time):
    """Orders of three customers, one of which moves each time; the next time takes one order away."""
    orders = [(10 * time + n, n % 3, 3 * n, n % 2 == 1, 1) for n in range(4)]
    orders += [(10 * time - 9, 1, 3, True, -1)] * bool(time)
    moves = [(1, f"c{time - 1}", -1)] if time else [(0, "d", 1), (2, "d", 1)]
    given = {"orders": orders, "customers": [*moves, (1, f"c{time}", 1)]}
    names = {"orders": ["id", "customer", "amount", "paid"], "customers": ["id", "country"]}
    tables = {
        name: pa.table({column: [row[i] for row in rows] for i, column in enumerate([*names[name], "_diff"])})
        for name, rows in given.items()
    }
    has, called = lake["orders"].schema.names, {"customer": "client", "amount": "cents"}
    orders = tables["orders"]
    orders = orders.rename_columns([called[c] if called.get(c) in has else c for c in orders.column_names])
    tables["orders"] = orders.select([c for c in orders.column_names if c in {*has, "_diff"}])
    lake.write(tables, time=time)


def kept(lake, name):
    """What a view keeps of rows of inputs."""
    return [one.name for one in states_of(lake, lake[name].id) if ": rows" in one.name]


def uses(lake, name):
    return INDEX in [what for what, _, _ in lake.explain(name).kept]


def is_exact(lake, *names):
    times = range(lake["orders"].last_time() + 1)
    return all(lake.verify(one, at=time).equal for one in names for time in times)


@pytest.mark.promise(
    "Views look rows up in an index of their input, also through conditions, and then keep none of their own",
    rule="`with_indexes`",
    also=["views/test_random_views.py::test_views_of_many_random_queries_are_exact_at_every_time"],
)
def test_views_share_an_index_and_keep_no_rows_for_themselves(lake):
    # Its name is before that of the index: it is refreshed behind it all the same.
    lake.view("big", BIG)
    lake.refresh()
    assert kept(lake, "big") and not uses(lake, "big")
    index = lake.index("orders", by=["customer"])
    lake.view("paid", PAID)
    assert (index.name, index.key) == (INDEX, ("customer",)) and uses(lake, "paid") and not kept(lake, "paid")
    write(lake, 1)
    assert [one.view for one in lake.refresh()] == [INDEX, "big", "paid"]
    assert uses(lake, "big") and not kept(lake, "big")
    write(lake, 2)
    assert [one.view for one in lake.refresh("paid")] == [INDEX, "paid"]
    lake.refresh()
    assert is_exact(lake, "big", "paid", INDEX)


@pytest.mark.promise(
    "An index that views use is not dropped unasked; after that they keep rows again",
    rule="`keep_holds`, `with_indexes`",
)
def test_an_index_that_views_use_is_dropped_only_by_force(lake):
    lake.index("orders", by=["customer"])
    lake.view("big", BIG)
    write(lake, 1)
    with pytest.raises(CollectionInUse, match=f"'orders'.*view '{INDEX}'"):
        lake.drop("orders")
    with pytest.raises(CollectionInUse, match=f"'{INDEX}'.*view 'big'"):
        lake.drop(INDEX)
    assert lake.drop(INDEX, force=True)
    write(lake, 2)
    lake.refresh()
    assert kept(lake, "big") and is_exact(lake, "big")
    # A view that is gone holds no index.
    lake.index("orders", by=["customer"])
    lake.refresh()
    write(lake, 3)
    lake.refresh()
    assert uses(lake, "big")
    lake.drop("big")
    assert lake.drop(INDEX)


@pytest.mark.full
@pytest.mark.promise(
    "An index that lacks times or erasures of its collection is not used; nothing else changes",
    rule="`with_indexes`, `_candidates` in `views/indexes.py`",
    also=["::test_an_index_with_rows_that_were_erased_since_is_made_again"],
)
def test_an_index_that_lacks_times_is_not_used(lake):
    lake.view("big", BIG)
    lake.index("orders", by=["customer"]).retain(1)
    for time in (1, 2, 3):
        write(lake, time)
        lake.refresh(INDEX)
    lake.refresh("big")
    assert str(lake[INDEX].since) == "[3]" and not uses(lake, "big") and is_exact(lake, "big")
    lake[INDEX].retain(None)
    write(lake, 4)
    lake.refresh()
    assert uses(lake, "big")
    # It cannot be made again, and stays behind.
    lake.create(f"{INDEX} (rebuilding)", {"id": "int64"}, key=["id"])
    column(lake, "note")
    for time in (5, 6):
        write(lake, time)
        with pytest.raises(CollectionExists, match="rename that"):
            lake.refresh()
        assert not uses(lake, "big") and kept(lake, "big") and lake.verify("big").equal


def column(lake, name, **change):
    """Change the columns of the orders; returns them."""
    schema = lake["orders"].schema
    place = schema.get_field_index(name)
    if change.get("type"):
        schema = schema.set(place, pa.field(name, change["type"]))
    elif change.get("drop"):
        schema = schema.remove(place)
    elif change.get("rename"):
        lake["orders"].evolve(rename={name: change["rename"]})
        return
    else:
        schema = schema.append(pa.field(name, pa.string()))
    lake["orders"].evolve(schema, drop=[name] if change.get("drop") else [])


@pytest.mark.promise(
    "An index has the columns of its collection, under their names of now: if they change, or rows are "
    "erased, the next refresh makes it again",
    rule="`made_again`, `is_stale`",
)
@pytest.mark.parametrize(
    ("name", "change", "by"),
    [
        ("note", {}, "customer"),
        ("amount", {"type": pa.int64()}, "customer"),
        ("paid", {"drop": True}, "customer"),
        ("amount", {"rename": "cents"}, "customer"),
        ("customer", {"rename": "client"}, "client"),
    ],
)
def test_an_index_follows_the_columns_of_its_collection(lake, name, change, by):
    lake.view("big", "SELECT o.id, country FROM orders o JOIN customers c ON o.customer = c.id")
    lake.index("orders", by=["customer"]).retain(5)
    lake.rename(INDEX, "found")
    column(lake, name, **change)
    write(lake, 1)
    assert [one.view for one in lake.refresh("big")] == ["big"]
    assert {one.view for one in lake.refresh()} == {"found", "big"}
    index = lake["found"]
    assert sorted(index.schema.names) == sorted(lake["orders"].schema.names) and index.key == (by,)
    assert index.state().retention.window == 5 and lake.index("orders", by=[by]).id == index.id
    assert index.lookup({by: [1]})["id"].to_pylist() == [11]
    write(lake, 2)
    lake.refresh()
    assert "found" in [what for what, _, _ in lake.explain("big").kept] and not kept(lake, "big")
    assert lake["found"].id == index.id and is_exact(lake, "big", "found")


def test_an_index_whose_key_is_gone_says_so_and_stops_nothing_else(lake):
    lake.view("all", "SELECT o.id, country FROM orders o CROSS JOIN customers")
    lake.index("orders", by=["customer"])
    lake.index("orders", by=["paid"])
    column(lake, "customer", drop=True)
    write(lake, 1)
    for work in (lake.refresh, lambda: lake.rebuild(INDEX)):
        with pytest.raises(UsageError, match=f"lost column 'customer', the key of index '{INDEX}'"):
            work()
    assert is_exact(lake, "all", "orders by paid")
    # Another column of this name is not the same.
    column(lake, "customer")
    with pytest.raises(CollectionExists, match=f"'{INDEX}' exists and is not this index"):
        lake.index("orders", by=["customer"])
    lake.drop(INDEX)
    assert lake.index("orders", by=["customer"]).key == ("customer",)


def test_an_index_is_of_the_collection_and_not_of_its_name(lake):
    lake.index("orders", by=["customer"])
    lake.rename("orders", "old")
    lake.create("orders", lake["old"].schema, key=["id"], allow_recreate=True)
    lake["old"].evolve(lake["old"].schema.append(pa.field("note", pa.string())))
    lake["old"].seal(1)
    assert lake.index("old", by=["customer"]).name == INDEX
    assert lake[INDEX].schema.names[-1] == "note" and lake.verify(INDEX).rows == 4
    with pytest.raises(CollectionExists, match="is not this index"):
        lake.index("orders", by=["customer"])
    # It is of a view that was made again.
    lake.view("big", "SELECT * FROM old", key=["id"])
    lake.index("big", by=["paid"])
    lake.rebuild("big")
    with pytest.raises(RebuildNeeded, match="dropped"):
        lake.refresh()
    lake.rebuild("big by paid")
    lake.refresh()
    assert lake.verify("big by paid").equal


def test_two_refreshes_make_one_index_again_at_the_same_time(lake, monkeypatch):
    lake.index("orders", by=["customer"])
    column(lake, "note")
    write(lake, 1)
    in_place, left = making._in_place, [1]

    def racing(*given):
        if left:
            left.pop()
            lake.refresh()
        return in_place(*given)

    monkeypatch.setattr(making, "_in_place", racing)
    lake.refresh()
    assert not left and lake.list() == ["customers", "orders", INDEX] and is_exact(lake, INDEX)


def test_an_index_with_rows_that_were_erased_since_is_made_again(lake):
    lake.index("orders", by=["customer"])
    lake.view("big", BIG)
    lake["orders"].erase([3], reason="asked for")
    lake.rebuild("big")
    assert not uses(lake, "big") and kept(lake, "big")
    lake.refresh(INDEX)
    assert lake[INDEX].lookup({"customer": [0]})["id"].to_pylist() == [0]
    for time in (1, 2):
        write(lake, time)
        lake.refresh()
    assert uses(lake, "big") and lake.verify("big").equal and lake.verify(INDEX).equal


def test_users_look_rows_up_in_an_index(lake):
    found = lake.index("orders", by=["customer"]).lookup({"customer": [0]})
    assert found["id"].to_pylist() == [0, 3] and found["_time"].to_pylist() == [0, 0]
    write(lake, 1)
    index = lake.index("orders", by=["customer"])
    with pytest.raises(NotYetClosed):
        index.lookup({"customer": [0]}, 1)
    lake.refresh()
    assert index.lookup({"customer": [0]}, 1)["id"].to_pylist() == [0, 3, 10, 13]


def test_what_can_be_no_index_is_refused_by_name(lake):
    for by, said in (
        (["other"], "no column 'other', but"),
        ([], "each column once"),
        (["id"], r"own key \(id\)"),
    ):
        with pytest.raises(UsageError, match=f"for 'orders': .*{said}"):
            lake.index("orders", by=by)
    lake.create("orders by amount", {"id": "int64"}, key=["id"])
    with pytest.raises(CollectionExists, match="is not this index: rename it"):
        lake.index("orders", by=["amount"])
    lake.view("big", BIG, key=["id"])
    assert lake.index("big", by=["country"]).key == ("country",)
    with pytest.raises(CollectionExists, match="another query or key"):
        lake.view("big", BIG, key=["country"])


def test_no_view_and_no_index_stands_on_an_index(lake):
    lake.index("orders", by=["customer"])
    before = lake.list()
    for make in (
        lambda: lake.view("v", f'SELECT * FROM "{INDEX}"'),
        lambda: lake.view("v", f'SELECT * FROM customers c JOIN "{INDEX.upper()}" o ON o.customer = c.id'),
        lambda: lake.index(INDEX, by=["paid"]),
    ):
        with pytest.raises(UsageError, match="'orders by customer' is an index: name its collection"):
            make()
        assert lake.list() == before
