"""The answers of the page's server: what they hold, what they cost, and who gets them."""

import io
import json
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import inside

pytest.importorskip("starlette")
pytest.importorskip("httpx2")

from starlette.testclient import TestClient

import tidelake
from tidelake.config import Config
from tidelake.data.kernel.encode import encode_key
from tidelake.data.part import scan
from tidelake.shard.reading.pages import PageStart
from tidelake.web import api, describe
from tidelake.web.api import SUMMARIES_MAX, Api
from tidelake.web.app import application
from tidelake.web.describe import CELL_CHARS_MAX
from tidelake.web.guard import HEADERS

ROW = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])
HOSTILE = '<script>alert("1")</script>'
BIDI = "abc\u202edef"
LOCAL = "http://localhost"
TOKEN = "0123456789-abcdef"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A lake that tests read; those that write make another one."""
    place = tmp_path_factory.mktemp("web") / "lake"
    made(place)
    return place


@pytest.fixture
def own(tmp_path):
    """A lake like it, for a test that writes."""
    made(tmp_path / "lake")
    return tmp_path / "lake"


def made(place):
    with tidelake.open(place) as lake:
        c = lake.create("c", ROW, key=["k"])
        c.append(pa.table({"k": range(250), "v": [f"v{k}" for k in range(250)], "_time": [0] * 250}))
        c.append(pa.table({"k": [3, 3], "v": ["v3", "new"], "_time": [1, 1], "_diff": [-1, 1]}))
        odd = lake.create(HOSTILE, ROW, key=["k"], time="ms")
        odd.append(pa.table({"k": [1, 2], "v": [BIDI, "x" * 1_000_000], "_time": [1, 1]}), upper=10)
        lake.create("a/../b?c#d&e", ROW, key=["k"], time="tuple(2)")


@pytest.fixture(scope="module")
def lake(place):
    with tidelake.open(place, read_only=True) as opened:
        yield opened


@pytest.fixture(scope="module")
def client(lake):
    with TestClient(application(lake, "1.2.3"), base_url=LOCAL) as client:
        yield client


def ask(client, path, **given):
    answer = client.get(f"/api/{path}", params=given)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_overview(client, place):
    found = ask(client, "lake")
    assert found == {"place": place.as_uri(), "version": "1.2.3", "read_only": True, "collections": 3}
    names = ask(client, "names")
    assert [one["name"] for one in names["names"]] == sorted(["c", HOSTILE, "a/../b?c#d&e"])
    assert (names["found"], names["more"]) == (3, False)
    assert [one["name"] for one in ask(client, "names", find="SCRIPT")["names"]] == [HOSTILE]
    assert [one["name"] for one in ask(client, "names", after="b")["names"]] == ["c"]


def test_sizes_of_some_names_are_those_of_their_states(client, lake):
    found = ask(client, "summaries", names=json.dumps(["c", "gone"]))["summaries"]
    state = lake.collection("c").state()
    assert found["c"]["gauges"]["updates"] == state.spine.totals.rows == 252
    assert found["c"]["upper"] == {"value": "2", "text": "[2]"}
    assert "gone" in found["gone"]["error"]


@pytest.mark.parametrize(
    "names", ["", "{}", "[1]", json.dumps(["c"] * (SUMMARIES_MAX + 1)), "not JSON", "[" * 20_000]
)
def test_names_that_are_no_list_are_refused(client, names):
    assert client.get("/api/summaries", params={"names": names}).status_code == 400


def test_rows_page_by_page_are_the_snapshot(client, lake):
    rows, start = [], ""
    while start is not None:
        found = ask(client, "rows", name="c", as_of="0", limit="100", **{"from": start})
        rows += found["rows"]
        start = found["next"]
    assert found["columns"] == ["k", "v", "_time", "_diff"]
    expected = lake.collection("c").snapshot(0).read_all().to_pylist()
    assert rows == [[str(value) for value in row.values()] for row in expected]


def test_the_newest_time_is_the_default_and_a_condition_selects(client):
    found = ask(client, "rows", name="c", where="k = 3")
    while not found["rows"]:  # on a busy machine, a page may end before it has found anything
        found = ask(client, "rows", name="c", where="k = 3", **{"from": found["next"]})
    assert found["rows"] == [["3", "new", "1", "1"]]
    assert found["as_of"] == {"value": "1", "text": "1"}


def test_changes_and_history(client):
    found = ask(client, "changes", name="c", after="0", through="1")
    # What went comes first, though the rows are sorted by value.
    assert found["rows"] == [["3", "v3", "1", "-1"], ["3", "new", "1", "1"]]
    told = ask(client, "history", name="c", key='["3"]')
    assert told["rows"] == [["3", "v3", "0", "1"], ["3", "v3", "1", "-1"], ["3", "new", "1", "1"]]
    assert not told["more"]


def test_a_collection_as_it_is_stored(client, lake):
    found = ask(client, "collection", name="c")
    state = lake.collection("c").state()
    assert [one["name"] for one in found["columns"]] == ["k", "v"]
    assert sum(one["rows"] for one in found["spine"]["members"]) == state.spine.totals.rows
    assert found["first"] == {"value": "0", "text": "0"}
    assert found["holds"] == found["running"] == []
    log = ask(client, "log", name="c")["commits"]
    assert [one["what"] for one in log] == [one.what for one in lake.collection("c").commits(50)]
    assert log[0]["rows"] == 2


def test_holds_writers_and_merges_that_are_due(own):
    with tidelake.open(own, config=Config(merge_budget_s=0, inline_part_bytes=0)) as writer:
        c = writer.collection("c")
        c.critical_hold(BIDI, "token")
        for _ in range(40):
            c.append(pa.table({"k": [1], "v": ["w"]}))
        with c.reader("report"), TestClient(application(writer, "1"), base_url=LOCAL) as client:
            found = ask(client, "collection", name="c")
        assert [(one["purpose"], one["kind"]) for one in found["holds"]] == [
            ("abc\\u202edef", "critical"),
            ("report", "leased"),
        ]
        assert len(found["due"]) == found["gauges"]["merges.due"] > 0


def test_files_have_all_rows_and_dates_as_dates(own):
    with tidelake.open(own) as writer, TestClient(application(writer, "1"), base_url=LOCAL) as client:
        c = writer.collection("c")
        answer = client.get("/api/download", params={"name": "c", "format": "parquet", "as_of": "0"})
        assert pq.read_table(io.BytesIO(answer.content)).equals(c.snapshot(0).read_all())
        assert 'filename="c.parquet"' in answer.headers["content-disposition"]
        text = client.get("/api/download", params={"name": "c", "after": "0", "through": "1"}).text
        assert text.splitlines() == ['"k","v","_time","_diff"', '3,"new",1,1', '3,"v3",1,-1']
        dated = client.get("/api/download", params={"name": HOSTILE, "where": "k = 1"})
        assert ",1970-01-01 00:00:00.009Z,1" in dated.text
        assert 'filename="_script_alert' in dated.headers["content-disposition"]
        for given in ({"format": "xls"}, {"after": "0"}, {"where": "no such ("}):
            refused = client.get("/api/download", params={"name": "c", **given})
            assert (refused.status_code, "error" in refused.json()) == (400, True)


def test_a_column_that_csv_cannot_hold_is_refused_before_a_byte_is_sent(tmp_path):
    with (
        tidelake.open(tmp_path / "lake") as lake,
        TestClient(application(lake, "1"), base_url=LOCAL) as client,
    ):
        lists = pa.schema([("k", pa.int64()), ("v", pa.list_(pa.int64()))])
        lake.create("c", lists, key=["k"]).append(pa.table([[1], [[1, 2]]], schema=lists))
        refused = client.get("/api/download", params={"name": "c"})
        assert refused.status_code == 400 and "choose the other format" in refused.json()["error"]
        assert client.get("/api/download", params={"name": "c", "format": "parquet"}).status_code == 200


def test_views_tell_what_they_are_made_of_and_how_far_behind_they_are(tmp_path):
    with (
        tidelake.open(tmp_path / "lake") as lake,
        TestClient(application(lake, "1"), base_url=LOCAL) as client,
    ):
        a = lake.create("a", ROW, key=["k"])
        a.append(pa.table({"k": [1], "v": ["x"]}))
        lake.create("b", ROW, key=["k"]).seal(9)
        lake.view("v", "SELECT a.k, b.v FROM a JOIN b USING (k)")
        lake.rename("a", "renamed")
        lake.collection("renamed").seal(5)
        nodes = {one["name"]: one for one in ask(client, "views")["nodes"]}
        assert sorted(nodes) == ["b", "renamed", "v"]
        # It may be as far as the least of its inputs, so not 8 times behind.
        assert (nodes["v"]["behind"], nodes["v"]["upper"]) == ("4 times", "[1]")
        found = ask(client, "collection", name="v")
        assert [one["name"] for one in found["view"]["inputs"]] == ["renamed", "b"]
        assert ask(client, "collection", name="renamed")["holds"][0]["view"] == "v"
        lake.index("b", by=["v"])
        lake.view("w", "SELECT a.k FROM renamed a JOIN b USING (v)")
        lake.refresh()
        assert ask(client, "collection", name="v")["view"]["behind"] == ""
        nodes = {one["name"]: one for one in ask(client, "views")["nodes"]}
        assert [[of["name"] for of in nodes[one].get("inputs", ())] for one in ("v", "w", "b by v")] == [
            ["renamed", "b"],
            ["renamed", "b", "b by v"],
            ["b"],
        ]


def test_what_a_view_keeps_is_called_by_its_name():
    with tidelake.open("memory://kept") as lake, TestClient(application(lake, "1"), base_url=LOCAL) as client:
        lake.create("a", ROW, key=["k"]).append(pa.table({"k": [1], "v": ["x"]}))
        lake.view("counts", "SELECT v, count(*) AS n FROM a GROUP BY v")
        lake.refresh()
        [kept] = [one for one in ask(client, "names")["names"] if one["name"].startswith("view ")]
        assert kept["shown"].startswith("counts: ")
        assert ask(client, "collection", name=kept["name"])["shown"] == kept["shown"]


def test_many_batches_are_drawn_together(monkeypatch):
    monkeypatch.setattr(describe, "DRAWN_MAX", 10)
    config = Config(merge_budget_s=0, runs_max=10_000)
    with tidelake.open("memory://many", config=config) as lake:
        c = lake.create("c", ROW, key=["k"])
        for n in range(35):
            c.append(pa.table({"k": [n], "v": ["x"]}))
        with TestClient(application(lake, "1"), base_url=LOCAL) as client:
            spine = ask(client, "collection", name="c")["spine"]
    members = spine["members"]
    assert spine["together"] == 4
    assert len(members) < 35
    assert sum(one["rows"] for one in members) == sum(one["count"] for one in members) == 35
    assert all(a["upper"] == b["lower"] for a, b in pairwise(members))


def test_hostile_names_and_values_are_texts(client):
    found = ask(client, "rows", name=HOSTILE)
    (one, two) = found["rows"]
    assert one[1] == "abc\\u202edef"
    assert two[1] == f"{'x' * CELL_CHARS_MAX}… (1,000,000 characters)"
    # It asks for itself: JSON is never taken for a page.
    answer = client.get("/api/rows", params={"name": HOSTILE})
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_tuple_times_are_shown_and_read(client):
    found = ask(client, "collection", name="a/../b?c#d&e")
    assert found["unit"] == "tuple(2)"
    assert found["first"] is None
    assert client.get("/api/rows", params={"name": "a/../b?c#d&e", "as_of": "0,0"}).status_code == 409


def test_changes_between_tuple_times_are_read(tmp_path):
    with tidelake.open(tmp_path / "lake") as lake:
        c = lake.create("c", ROW, key=["k"], time="tuple(2)")
        c.append(
            pa.table({"k": [1, 2], "v": ["a", "b"], "_time_0": [0, 1], "_time_1": [0, 2]}), upper=[(2, 3)]
        )
        found = Api(lake, "0").changes({"name": "c", "after": "0,0", "through": "1,2"})
        assert [row[0] for row in found["rows"]] == ["2"]


def test_names_are_read_again_only_if_the_list_has_changed(tmp_path):
    with tidelake.open(tmp_path / "lake") as lake, tidelake.open(tmp_path / "lake") as other:
        shown = Api(lake, "0")
        for name in "abc":
            other.create(name, ROW, key=["k"])
        assert shown._names() is shown._names() and shown.lake({})["collections"] == 3
        other.collection("a").append(pa.table({"k": [1], "v": ["x"]}))
        first = shown._names()
        other.create("d", ROW, key=["k"])
        other.drop("b")
        assert first == ("a", "b", "c") and shown._names() == ("a", "c", "d") == tuple(lake.list())
        assert [one["name"] for one in shown.names({"after": "a"})["names"]] == ["c", "d"]
        assert [one["name"] for one in shown.names({"find": "D", "after": "a"})["names"]] == ["d"]
    with tidelake.open(tmp_path / "none") as lake:
        assert Api(lake, "0").lake({})["collections"] == 0


@pytest.mark.parametrize(
    ("path", "given", "status"),
    [
        ("rows", {}, 400),
        ("rows", {"name": "gone"}, 404),
        ("rows", {"name": "c", "as_of": "9"}, 409),
        ("rows", {"name": "c", "as_of": "x"}, 400),
        ("rows", {"name": "c", "where": "k ="}, 400),
        ("rows", {"name": "c", "limit": "0"}, 400),
        ("rows", {"name": "c", "limit": "99999"}, 400),
        ("rows", {"name": "c", "from": "zz"}, 400),
        ("changes", {"name": "c", "after": "1"}, 400),
        ("history", {"name": "c", "key": "3"}, 400),
        ("history", {"name": "c", "key": '["x"]'}, 400),
        ("history", {"name": "c", "key": "[]"}, 400),
        ("log", {"name": "c", "limit": "x"}, 400),
        ("nothing", {}, 404),
    ],
)
def test_errors_say_what_is_wrong(client, path, given, status):
    answer = client.get(f"/api/{path}", params=given)
    assert answer.status_code == status
    assert answer.json()["error"]


def test_many_names_are_given_part_by_part(monkeypatch):
    monkeypatch.setattr(api, "NAMES_MAX", 4)
    with tidelake.open("memory://wide") as lake:
        for n in range(6):
            lake.create(f"n{n}", ROW, key=["k"])
        with TestClient(application(lake, "1"), base_url=LOCAL) as client:
            scans = lake.recorder.counts["log.scan"]
            first = ask(client, "names")
            rest = ask(client, "names", after=first["names"][-1]["name"])
            # No collection is looked at for its name.
            assert lake.recorder.counts["log.scan"] - scans <= 2
    assert (len(first["names"]), first["more"]) == (4, True)
    assert (len(rest["names"]), rest["more"]) == (2, False)


def test_no_request_decodes_more_of_a_larger_collection(tmp_path, monkeypatch):
    decoded = 0
    original = scan._decoded

    def counted(*args, **given):
        nonlocal decoded
        for batch in original(*args, **given):
            decoded += batch.num_rows
            yield batch

    monkeypatch.setattr(scan, "_decoded", counted)
    config = Config(
        row_group_rows=256, part_target_bytes=4_096, merge_budget_s=0, fold_rows=1, inline_part_bytes=0
    )
    found = {}
    for rows in (8_000, 64_000):
        with tidelake.open(tmp_path / str(rows), config=config) as lake:
            c = lake.create("c", ROW, key=["k"])
            c.append(pa.table({"k": range(rows), "v": [f"v{k}" for k in range(rows)]}))
            c.append(pa.table({"k": [5, rows - 5], "v": ["more"] * 2}))
            shown, schema = Api(lake, "1"), inside.shard(c).known().schema
            middle = PageStart(encode_key(pa.table({"k": [rows // 2]}), schema)[0].as_py())
            for what, given in (
                ("lake", {}),
                ("names", {}),
                ("collection", {}),
                ("log", {}),
                ("summaries", {"names": '["c"]'}),
                ("rows", {}),
                ("rows", {"from": str(middle)}),
                ("rows", {"where": f"k > {rows - 10}"}),
                ("changes", {"after": "0", "through": "1"}),
                ("history", {"key": '["5"]'}),
            ):
                before = decoded, lake.recorder.counts["blob.get.bytes"]
                answer = getattr(shown, what)({"name": "c", **given})
                after = decoded, lake.recorder.counts["blob.get.bytes"]
                cost = (len(answer.get("rows", ())), after[0] - before[0], after[1] - before[1])
                found.setdefault((what, *given), []).append(cost)
    for what, ((few, rows, size), (as_many, more_rows, more_size)) in found.items():
        assert few == as_many and (few or what[0] not in ("rows", "changes", "history")), what
        # A few chunks are decoded ahead; the end of a part has what is said of its row groups.
        assert max(rows, more_rows) <= 8_192 and more_size <= size + 65_536, (what, found[what])


def test_metrics_are_answered(client):
    answer = client.get("/metrics")
    assert answer.status_code == 200
    assert 'tidelake_collection_updates{collection="c"} 252.0' in answer.text


def test_nothing_is_changed_unless_it_is_allowed(client, own):
    assert client.post("/api/maintain", params={"name": "c"}).status_code == 403
    with tidelake.open(own) as lake, TestClient(application(lake, "1"), base_url=LOCAL) as other:
        assert other.get("/api/maintain", params={"name": "c"}).status_code == 405
        assert other.post("/api/maintain", params={"name": "c"}, headers={"Origin": LOCAL}).status_code == 200
        for headers in (
            {"Origin": "http://evil.example"},
            {"Origin": "null"},
            {"Sec-Fetch-Site": "cross-site"},
        ):
            assert other.post("/api/maintain", params={"name": "c"}, headers=headers).status_code == 403


@pytest.mark.parametrize(
    "path", ["/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/static/app.js", "//etc/passwd"]
)
def test_no_path_leads_out_of_the_package(client, path):
    answer = client.get(path)
    assert answer.status_code == 404
    assert "root:" not in answer.text


def test_the_front_end_is_served_with_a_strict_policy(client):
    for path in ("/", "/app.js", "/draw.js", "/style.css", "/icon.svg", "/api/lake", "/nothing"):
        headers = client.get(path).headers
        assert {name: headers[name] for name in HEADERS} == HEADERS
    policy = HEADERS["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "*" not in policy
    # Nothing inline that the policy would stop, and nothing from elsewhere.
    page = client.get("/").text
    assert "<script>" not in page
    assert "style=" not in page
    assert "http" not in page.replace("https", "").replace("http-equiv", "")


@pytest.mark.promise(
    "Without a token the page answers only requests of this machine that ask for it by its own name "
    "and were not forwarded; `--metrics` at a loopback address checks the name too",
    rule="`why_not_local` in `web/guard.py`, `exporters/loopback.py`",
    also=[
        "::test_a_request_that_a_proxy_forwarded_needs_a_token",
        "::test_without_a_token_a_peer_is_this_machine",
        "cli/test_maintenance.py::test_metrics_are_answered_while_it_goes_on",
    ],
)
@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "10.0.0.1", "", "127.0.0.1.nip.io"]
)
def test_another_name_of_this_machine_is_refused(client, host):
    for path in ("/", "/app.js", "/api/lake", "/metrics"):
        answer = client.get(path, headers={"Host": host})
        assert answer.status_code == 421
        assert "lake" not in answer.text


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8433", "[::1]:8433", "LOCALHOST:1"])
def test_this_machine_by_its_own_name_is_answered(client, host):
    assert client.get("/api/lake", headers={"Host": host}).status_code == 200


class TestWithAToken:
    @pytest.fixture
    def guarded(self, lake):
        with TestClient(application(lake, "1", TOKEN), base_url="http://lake.example") as client:
            yield client

    @pytest.mark.parametrize(
        "path", ["/", "/app.js", "/style.css", "/api/lake", "/api/events", "/metrics", "/nothing"]
    )
    @pytest.mark.parametrize(
        "headers",
        [
            {},
            {"Authorization": "Bearer "},
            {"Authorization": f"Bearer {TOKEN[:-1]}"},
            {"Authorization": f"Bearer {TOKEN}x"},
            {"Authorization": f"Basic {TOKEN}"},
            {"Cookie": f"tidelake={TOKEN}"},
            {"Cookie": "tidelake="},
            {"Cookie": "tidelake=\u00ff"},
        ],
    )
    def test_nothing_is_answered_without_it(self, guarded, path, headers):
        answer = guarded.get(path, headers={name: value.encode("latin-1") for name, value in headers.items()})
        assert answer.status_code == 401
        assert answer.text == guarded.get("/").text
        assert TOKEN not in answer.text

    def test_a_program_sends_it(self, guarded):
        assert guarded.get("/api/lake", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200

    def test_a_browser_is_asked_for_it_and_keeps_something_else(self, guarded):
        assert guarded.post("/login", data={"token": "wrong"}).status_code == 401
        assert guarded.post("/login", content=b"x" * 100_000).status_code == 401
        answer = guarded.post("/login", data={"token": TOKEN}, follow_redirects=False)
        assert answer.status_code == 303
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert TOKEN not in cookie
        assert guarded.get("/api/lake").status_code == 200

    def test_a_cookie_of_another_process_is_worth_nothing(self, guarded, lake):
        guarded.post("/login", data={"token": TOKEN})
        with TestClient(application(lake, "1", TOKEN), base_url="http://lake.example") as other:
            other.cookies = guarded.cookies
            assert other.get("/api/lake").status_code == 401


def test_events_tell_what_was_committed(own):
    import anyio

    with tidelake.open(own) as writer, tidelake.open(own, read_only=True) as reader:
        watched = Api(reader, "1")

        async def listen() -> list[dict]:
            stream = watched.events("c")
            first = await anext(stream)
            writer.collection("c").append(pa.table({"k": [1], "v": ["w"]}))
            second = await anext(stream)
            await stream.aclose()
            return [json.loads(one.removeprefix("data: ")) for one in (first, second)]

        before, after = anyio.run(listen)
        assert after["seqno"] > before["seqno"]
        assert after["upper"] == {"value": "3", "text": "[3]"}


def test_streams_are_counted_when_they_begin(lake, monkeypatch):
    import anyio

    monkeypatch.setattr(api, "STREAMS_MAX", 3)
    app, statuses = application(lake, "1"), []
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "path": "/api/events",
        "query_string": b"",
        "headers": [(b"host", b"localhost")],
        "client": ("127.0.0.1", 1),
    }

    async def live() -> None:
        gone = anyio.Event()

        async def receive() -> dict:
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        # All are here before the first one is answered.
        async with anyio.create_task_group() as group:
            for _ in range(10):
                group.start_soon(app, dict(scope), receive, send)
            while len(statuses) < 10:
                await anyio.sleep(0.001)
            gone.set()

    for _ in range(2):
        statuses.clear()
        anyio.run(live)
        assert sorted(statuses) == [200] * 3 + [503] * 7


def test_pages_are_bounded_by_bytes_and_no_row_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(describe, "TABLE_CHARS_MAX", 20_000)
    wide = pa.schema(
        [pa.field("k", pa.int64(), nullable=False), *((f"c{n}", pa.string()) for n in range(50))]
    )
    with tidelake.open(tmp_path / "lake") as lake:
        c = lake.create("c", wide, key=["k"])
        values = {f"c{n}": ["\u202e" * 100] * 20 for n in range(50)}
        c.append(pa.table({"k": range(20), **values}))
        shown, keys, start = Api(lake, "1"), [], ""
        while start is not None:
            found = shown.rows({"name": "c", "limit": "500", "from": start})
            keys += [int(row[0]) for row in found["rows"]]
            assert len(json.dumps(found)) < 90_000 and found["whole"]
            start = found["next"]
        assert keys == list(range(20))
        told = shown.history({"name": "c", "key": '["3"]'})
        assert len(told["rows"]) == 1 and not told["more"]


FORWARDED = [
    {"X-Forwarded-For": "203.0.113.7"},
    {"X-Forwarded-Host": "localhost"},
    {"Forwarded": "for=127.0.0.1"},
    {"Via": "1.1 proxy"},
    {"X-Real-IP": "127.0.0.1"},
    {"CF-Connecting-IP": "127.0.0.1"},
]


@pytest.mark.parametrize("headers", FORWARDED, ids=lambda headers: next(iter(headers)))
def test_a_request_that_a_proxy_forwarded_needs_a_token(client, lake, headers):
    for path in ("/", "/api/lake", "/metrics", "/api/events"):
        answer = client.get(path, headers=headers)
        assert answer.status_code == 421 and "--token-file" in answer.json()["error"]
    with TestClient(application(lake, "1", TOKEN), base_url="http://lake.example") as other:
        assert other.get("/api/lake", headers=headers).status_code == 401
        known = headers | {"Authorization": f"Bearer {TOKEN}"}
        assert other.get("/api/lake", headers=known).status_code == 200


@pytest.mark.parametrize(
    ("peer", "status"),
    [("127.0.0.1", 200), ("127.8.8.8", 200), ("::1", 200), ("10.0.0.7", 421), ("2001:db8::1", 421)],
)
def test_without_a_token_a_peer_is_this_machine(lake, peer, status):
    with TestClient(application(lake, "1"), base_url=LOCAL, client=(peer, 5)) as other:
        assert other.get("/api/lake").status_code == status
