"""A bad load is repaired as the guide says: fork from before it, correct, and swap the names at once."""

import csv
from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import inside
import tidelake

# Version 716 drops 8,996 of 9,892 rows, and 717 brings them back half an hour later.
BEFORE, BAD, MENDED = 715, 716, 717


def rows_of(table):
    return zip(*(column.to_pylist() for column in table.columns), strict=True)


class History:
    """The events of the real table, by version."""

    def __init__(self, folder):
        table = pq.read_table(folder / "dotgov" / "changes.parquet")
        table = table.filter(pc.less_equal(table["version"], MENDED))
        self.columns = [name for name in table.column_names if name not in ("version", "ts", "op")]
        time = table["version"].cast(pa.int64())
        self.events = table.select(self.columns).append_column("_time", time)
        self.events = self.events.append_column("gone", pc.equal(table["op"], "delete"))
        self.schema = pa.schema([table.schema.field(name) for name in self.columns])
        with (folder / "dotgov" / "versions.csv").open(encoding="utf-8") as file:
            lines = list(csv.DictReader(file))
        self.rows = [int(line["rows"]) for line in lines]
        # Whole tables of some versions, taken from the source by other code than the changes.
        self.truth = {}
        for number, line in enumerate(lines[: MENDED + 1]):
            whole = folder / "dotgov" / "truth" / f"state_{line['commit'][:12]}.parquet"
            if whole.exists():
                table = pq.read_table(whole).select(self.columns)
                self.truth[number] = Counter(rows_of(table))

    def between(self, lower, upper):
        time = self.events["_time"]
        inside = pc.and_(pc.greater_equal(time, lower), pc.less(time, upper))
        return self.events.filter(inside)

    def state(self, version):
        """The table as of a version, made by plain Python."""
        found = {}
        for event in self.between(0, version + 1).to_pylist():
            found.pop(event["domain"], None)
            if not event["gone"]:
                found[event["domain"]] = tuple(event[name] for name in self.columns)
        return Counter(found.values())


@pytest.fixture(scope="module")
def history(request):
    return History(request.getfixturevalue("shared_data"))


def contents(c, as_of=None):
    table = c.snapshot(as_of).read_all()
    assert set(table["_diff"].to_pylist()) <= {1}
    return Counter(rows_of(table.select(c.schema.names)))


def loaded(lake, history):
    domains = lake.create("domains", history.schema, key=["domain"])
    for lower, upper in ((0, 300), (300, 600), (600, BAD), (BAD, MENDED)):
        domains.upsert(history.between(lower, upper), delete_column="gone")
    return domains


@pytest.mark.promise(
    "A bad load of real data is repaired by a fork and a swap of names",
    also=["lake/catalog/test_fork_repair.py"],
)
@pytest.mark.full
def test_a_bad_load_is_repaired_by_a_fork_a_correction_and_a_swap(tmp_path, history):
    with tidelake.open(tmp_path / "lake") as lake:
        domains = loaded(lake, history)
        assert sum(contents(domains).values()) == history.rows[BAD] < 1_000
        stored = {info.name for info in inside.stores(lake).blobs.list(f"{domains.id}/parts/")}

        fix = lake.fork("domains", "domains_fix", as_of=BEFORE)
        assert not list(inside.stores(lake).blobs.list(f"{fix.id}/parts/"))
        # What really changed at that time is in neither load; nothing did.
        fix.append(fix.update_schema.empty_table(), upper=BAD + 1)
        lake.swap("domains", "domains_fix")

        domains = lake.collection("domains")
        assert contents(domains, BAD) == contents(domains, BEFORE) == history.state(BEFORE)
        assert sum(contents(domains).values()) == history.rows[BEFORE] > 9_000
        bad = lake.collection("domains_fix")
        assert contents(bad, BAD) == history.state(BAD)
        # The feed goes on as before, and brings what is there already.
        domains.upsert(history.between(MENDED, MENDED + 1), delete_column="gone")
        assert contents(domains) == history.state(MENDED)
        assert (
            domains.changes(BEFORE, MENDED).read_all().num_rows
            < 100
            < bad.changes(BEFORE, BAD).read_all().num_rows
        )

        assert {BAD, MENDED} <= history.truth.keys()
        for version, whole in history.truth.items():
            assert contents(bad if version == BAD else domains, version) == whole

        lake.drop("domains_fix")
        assert stored >= {info.name for info in inside.stores(lake).blobs.list(f"{bad.id}/parts/")}
        for version in (0, 100, 400, BEFORE, BAD):
            assert contents(domains, version) == history.state(min(version, BEFORE))
        assert lake.fsck().left == ()
