"""What calls give is shown to people: in the interpreter, and in a notebook."""

import pyarrow as pa

import tidelake

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def test_answers_of_all_reads_are_printed_and_then_read(lake) -> None:
    c = lake.create("a", SCHEMA, key=["id"], time="ms")
    c.append(pa.table({"id": [1, 2], "name": ["x", "y"], "_time": [0, 60_000]}))
    with c.reader("test") as reader:
        found = [
            c.snapshot(),
            c.changes(0, 60_000),
            c.updates(0, 60_001),
            *c.distributed.split_snapshot(2),
            reader.snapshot(),
            next(c.listen(lower=0, until=60_001)).updates,
        ]
        for rows in found:
            assert "1970-01-01 00:0" in repr(rows) or repr(rows).endswith("no rows")
            assert "<td>" in rows._repr_html_() or "no rows" in rows._repr_html_()
        assert sum(rows.to_arrow().num_rows for rows in found) == 2 + 1 + 2 + 2 + 2 + 2
        assert c.lookup(pa.table({"id": [1]})).num_rows == 1


def test_printed_rows_are_kept_though_all_parts_are_replaced(lake) -> None:
    c = lake.create("a", SCHEMA, key=["id"])
    for i in range(3):
        c.append(pa.table({"id": [i], "name": ["x" * 10_000]}))
    found = c.snapshot()
    repr(found)
    c.merge()
    c.collect()
    assert found.to_arrow()["id"].to_pylist() == [0, 1, 2]


def test_rows_of_a_closed_lake_say_so_or_are_given(tmp_path) -> None:
    lake = tidelake.open(tmp_path)
    found = lake.create("a", SCHEMA, key=["id"]).snapshot
    lake["a"].append(pa.table({"id": [1], "name": ["x"]}))
    rows = found()
    lake.close()
    assert "x" in repr(rows)


def test_a_lake_and_its_collections_are_shown_in_a_notebook(lake) -> None:
    for i in range(50):
        lake.create(f"<b>{i:02}", SCHEMA, key=["id"])
    shown = lake._repr_html_()
    assert "&lt;b&gt;00" in shown
    assert "<b>0" not in shown
    assert "50 collections, of which 40 are shown" in shown
    c = lake["<b>00"]
    c.append(pa.table({"id": [1, 2], "name": ["x", None], "_time": [5, 7]}), upper=8)
    shown = c._repr_html_()
    assert "<td>id</td><td>int64</td><td>key</td>" in shown
    assert "upper [8]; 2 updates in 1 runs" in shown
    assert "<tr><td>updates</td><td>2</td></tr>" in c.state()._repr_html_()


def test_what_a_closed_lake_shows_says_why(tmp_path) -> None:
    with tidelake.open(tmp_path) as lake:
        c = lake.create("a", SCHEMA, key=["id"])
    for shown in (lake._repr_html_(), c._repr_html_()):
        assert "cannot be" in shown
        assert "closed" in shown


def test_reports_are_shown_as_tables_of_their_fields(lake) -> None:
    c = lake.create("a", SCHEMA, key=["id"])
    done = c.append(pa.table({"id": range(1_500), "name": ["x"] * 1_500}))
    reports = [done, c.merge(), c.maintain(), c.collect(), lake.collect(), lake.fsck(), lake.settings()]
    for report in [*reports, lake.upgrade(), c.merge().after]:
        shown = report._repr_html_()
        assert f"<b>{type(report).__name__}</b>" in shown
        assert all(f"<td>{name}</td>" in shown for name in vars(report))
    assert "<td>1,500</td>" in c.merge().after._repr_html_()
