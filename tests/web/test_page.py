"""The page in a real browser: what is drawn is what the API says, and nothing that a lake holds is run."""

import json
import os
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

pytest.importorskip("uvicorn")

from web_driver import CHROMIUM, DRIVER, browser

import tidelake
from tidelake.config import Config
from tied_process import tied

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no chromium and chromedriver: setup/servers.sh"),
]
COMMAND = "from tidelake.cli.main import main; main()"
ORDER = pa.schema(
    [
        pa.field("order_id", pa.int64(), nullable=False),
        ("customer", pa.string()),
        ("status", pa.string()),
        ("total", pa.float64()),
    ]
)
PERSON = pa.schema([("customer", pa.string()), ("city", pa.string())])
VIEWS = {
    "sales_by_customer": """
        SELECT customer, count(*) AS orders, sum(total) AS total FROM orders GROUP BY customer""",
    "sales_by_city": """
        SELECT city, sum(total) AS total FROM orders JOIN customers USING (customer) GROUP BY city""",
    "best_customers": "SELECT customer, total FROM sales_by_customer WHERE total > 1000",
}
HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'
BIDI = "safe\u202egnp.exe"
# Where the documentation has its pictures; made anew by TIDELAKE_SCREENSHOTS=docs/pictures.
SHOTS = os.environ.get("TIDELAKE_SCREENSHOTS")
START_MS, STEP_MS = 1_793_000_000_000, 3_600_000


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("page") / "shop"
    people, states = ["Ada", "Grace", "Edsger", "Barbara", "Alan"], ["new", "paid", "shipped"]
    with tidelake.open(place, config=Config(slice_rows=200, merge_budget_s=0)) as lake:
        orders = lake.create("orders", ORDER, key=["order_id"], time="ms")
        for step in range(24):
            keys = range(step * 7, step * 7 + 60)
            columns = [
                list(keys),
                [people[(key + step) % 5] for key in keys],
                [states[(key * 7 + step) % 3] for key in keys],
                [round((key * 37 + step * 11) % 300 + 0.5, 2) for key in keys],
            ]
            orders.upsert(pa.table(columns, schema=ORDER), time=START_MS + step * STEP_MS)
            if step == 19:
                orders.maintain()
        for name in ("prices", "stock"):
            lake.create(name, ORDER, key=["order_id"])
        customers = lake.create("customers", PERSON, key=["customer"], time="ms")
        cities = ["London", "New York", "Rotterdam", "Boston", "Manchester"]
        customers.upsert(pa.table({"customer": people, "city": cities}), time=START_MS)
        customers.seal(START_MS + 200 * STEP_MS)
        for name, query in VIEWS.items():
            lake.view(name, query)
        orders.upsert(pa.table([[1], ["Ada"], ["paid"], [99.5]], schema=ORDER), time=START_MS + 26 * STEP_MS)
        lake.fork("orders", "orders of yesterday")
        orders.erase([200], reason="ticket 4711")
        fresh = {"order_id": [7], "customer": ["Ada"], "status": ["new"], "total": [5.0]}
        orders.stage(pa.table({**fresh, "_time": [START_MS + 30 * STEP_MS]}))
    return place


@pytest.fixture(scope="module")
def odd_place(tmp_path_factory):
    """What no shop has: hostile names and values, sixty columns, a row that is owed."""
    place = tmp_path_factory.mktemp("page") / "odd"
    with tidelake.open(place) as lake:
        lake.create(BIDI, ORDER, key=["order_id"])
        odd = lake.create(
            HOSTILE, pa.schema([pa.field("k", pa.string(), nullable=False), ("v", pa.string())]), key=["k"]
        )
        odd.append(pa.table({"k": [HOSTILE, "long", BIDI], "v": [HOSTILE, "x" * 1_000_000, BIDI]}))
        wide = lake.create(
            "wide",
            pa.schema([("day", pa.date32()), *((f"measure_{n}", pa.float64()) for n in range(60))]),
            key=["day"],
            time="date",
        )
        days = pa.array([20_400, 20_401], pa.date32())
        wide.append(
            pa.table({"day": days, **{f"measure_{n}": [n + 0.25, n / 7] for n in range(60)}}), time=20_401
        )
        owed = lake.create("owed", PERSON, key=["customer"])
        owed.append(pa.table({"customer": ["Ada", "Alan"], "city": ["x", "y"], "_diff": [1, -1]}))
    return place


@contextmanager
def serving(place, *options):
    command = [sys.executable, "-c", COMMAND, "serve", place, "--port", "0", *options]
    with subprocess.Popen(tied(*command), stdout=subprocess.PIPE, text=True) as running:
        yield running.stdout.readline().split()[-1]
        running.terminate()


@pytest.fixture(scope="module")
def server(place):
    with serving(place) as address:
        yield address


@pytest.fixture(scope="module")
def odd_server(odd_place):
    with serving(odd_place) as address:
        yield address


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("browser")) as opened:
        opened.size(1200, 800)
        yield opened


def api(server, path, **given):
    url = f"{server}api/{path}?{urllib.parse.urlencode(given)}"
    with urllib.request.urlopen(url) as answer:
        return json.loads(answer.read())


def shoot(page, name):
    if SHOTS:
        page.run("document.getElementById('place').textContent = 'my-lake'")
        page.screenshot(Path(SHOTS) / f"page-{name}.png")


def opened(page, server, name):
    page.open("about:blank")
    page.open(f"{server}#/c/{urllib.parse.quote(name, safe='')}")
    page.until("document.querySelector('#panel[data-shown=rows] #note')")


def cells(page):
    """The texts of the table of rows, without the sign of changes."""
    return page.run(
        "return [...document.querySelectorAll('table.data tbody tr')]"
        ".map(row => [...row.querySelectorAll('td:not(.sign)')].map(cell => cell.textContent))"
    )


def wait_for(page, expected):
    """Wait until these rows are shown; fail with what is shown instead."""
    for _ in range(600):
        if cells(page) == expected:
            return
        time.sleep(0.05)
    assert cells(page) == expected


def without_time(found):
    at = found["columns"].index("_time")
    return [
        ["null" if value is None else value for i, value in enumerate(row) if i != at]
        for row in found["rows"]
    ]


def test_the_overview_shows_what_the_api_says(page, server):
    # Others of these tests add a collection, and tests run in any order.
    names = api(server, "names")["names"]
    page.open(server)
    lines = "document.querySelectorAll('#collections tr:has(.chip.good, .chip.warn)')"
    page.until(f"{lines}.length === {len(names)}")
    shown = page.run(
        "return [...document.querySelectorAll('#collections tbody tr')]"
        ".map(row => [...row.children].map(cell => cell.textContent))"
    )
    assert [row[0] for row in shown] == [one["shown"] for one in names]
    summaries = api(server, "summaries", names=json.dumps([one["name"] for one in names]))["summaries"]
    for row, one in zip(shown, names, strict=True):
        found = summaries[one["name"]]
        assert row[1] == found["unit"]
        assert row[2] == f"{found['gauges']['updates']:,.0f}"
        assert row[5] == ("no time closed yet" if found["empty"] else f"start → {found['upper']['text']}")
    shoot(page, "overview")
    page.keys("/")
    page.write("#find", "ord")
    page.until("document.querySelectorAll('#collections tbody tr').length === 2")
    # A name is a link: a new tab, and Enter.
    assert page.run("return document.querySelector('#collections a').getAttribute('href')") == "#/c/orders"
    page.run("document.querySelector('#collections a').focus()")
    page.keys("\ue007")
    page.until("location.hash === '#/c/orders'")


def test_rows_and_changes_follow_the_slider(page, server):
    opened(page, server, "orders")
    assert cells(page) == without_time(api(server, "rows", name="orders"))
    found = api(server, "collection", name="orders")
    tiles = page.run(
        "return Object.fromEntries([...document.querySelectorAll('[data-gauge]')]"
        ".map(tile => [tile.dataset.gauge, tile.textContent]))"
    )
    gauges = found["gauges"]
    assert {name: tiles[name] for name in ("updates", "runs", "slices", "bases")} == {
        name: f"{gauges[name]:,.0f}" for name in ("updates", "runs", "slices", "bases")
    }
    shoot(page, "rows")
    page.run(
        "const slider = document.querySelector('#at-slider'); slider.value = slider.max / 2;"
        "slider.dispatchEvent(new Event('input'))"
    )
    page.until("document.querySelector('#at-text').value < '2026-11'")
    middle = page.run("return document.querySelector('#at-text').value")
    expected = without_time(api(server, "rows", name="orders", as_of=middle))
    wait_for(page, expected)
    page.keys("2")
    page.until("document.querySelector('#panel[data-shown=changes] #note')")
    after = page.run("return document.querySelector('#before-text').value")
    changes = api(server, "changes", name="orders", after=after, through=middle)
    wait_for(page, without_time(changes))
    signs = page.run("return [...document.querySelectorAll('td.sign')].map(cell => cell.textContent)")
    assert signs == ["−" if row[-1].startswith("-") else "+" for row in changes["rows"]]
    assert set(signs) == {"+", "−"}
    shoot(page, "changes")


def test_pages_turn_and_a_filter_selects(page, server):
    opened(page, server, "orders")
    first = cells(page)
    page.click("#next")
    page.until("document.querySelector('#note').textContent.startsWith('page 2')")
    second = cells(page)
    everything = without_time(api(server, "rows", name="orders", limit=500))
    assert first + second == everything[: len(first) + len(second)]
    page.click("#back")
    page.until("document.querySelector('#note').textContent.startsWith('page 1')")
    assert cells(page) == first
    page.keys("/")
    page.write("#filter", "status = 'paid' AND total > 200")
    page.click("#go")
    wait_for(page, without_time(api(server, "rows", name="orders", where="status = 'paid' AND total > 200")))
    page.write("#filter", "no such (")
    page.click("#go")
    assert "where" in page.until("document.querySelector('.error')?.textContent")


def test_the_history_of_a_key_storage_and_log(page, server):
    opened(page, server, "orders")
    page.keys("3")
    page.until("document.querySelector('.key-value')")
    page.write(".key-value", "40")
    page.click("#go")
    page.until("document.querySelector('#note')")
    assert cells(page) == api(server, "history", name="orders", key='["40"]')["rows"]
    page.run("document.activeElement.blur()")
    page.keys("4")
    page.until("document.querySelector('#panel[data-shown=storage]')")
    spine = api(server, "collection", name="orders")["spine"]
    kinds = page.run("return [...document.querySelectorAll('#spine rect')].map(r => r.classList[0])")
    assert kinds == [one["kind"] for one in spine["members"]]
    assert set(kinds) == {"slice", "level"}
    assert page.run("return document.querySelectorAll('#spine circle').length") == len(spine["bases"]) > 0
    assert not page.run("return document.querySelector('#maintain')")
    shoot(page, "storage")
    page.keys("6")
    page.until("document.querySelector('#panel[data-shown=log]')")
    seqnos = page.run(
        "return [...document.querySelectorAll('#panel tbody tr')].map(row => row.firstChild.textContent)"
    )
    assert seqnos == [str(one["seqno"]) for one in api(server, "log", name="orders", limit=200)["commits"]]
    page.keys("g")
    page.until("document.querySelector('#collections')")


def test_what_is_hostile_is_shown_and_not_run(page, odd_server):
    page.messages()
    page.open(odd_server)
    listed = "[...document.querySelectorAll('#collections a')].map(a => a.textContent)"
    assert HOSTILE in page.until(f"{listed}.length && {listed}")
    opened(page, odd_server, HOSTILE)
    assert page.run("return document.querySelector('h1 .user').textContent") == HOSTILE
    shown = {row[0]: row[1] for row in cells(page)}
    assert shown[HOSTILE] == HOSTILE
    assert shown["safe\\u202egnp.exe"] == "safe\\u202egnp.exe"
    assert shown["long"].endswith("… (1,000,000 characters)")
    assert page.run("return window.hacked") is None
    assert page.run("return document.querySelectorAll('img, main script').length") == 0
    # The policy stops what the page itself would never do.
    page.run("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.hacked=1\">')")
    page.until("true")
    assert page.run("return window.hacked") is None
    complaints = [text for text in page.messages() if "Content Security Policy" in text]
    assert complaints


def test_commits_of_others_appear_by_themselves(page, server, place):
    opened(page, server, "stock")
    assert not cells(page)
    with tidelake.open(place) as lake:
        lake.collection("stock").append(pa.table([[1], ["Ada"], ["new"], [1.5]], schema=ORDER))
    page.until("document.querySelectorAll('table.data tbody tr').length === 1")
    wait_for(page, without_time(api(server, "rows", name="stock")))


def test_it_is_readable_at_400_pixels_in_the_dark_and_by_keys(page, server):
    opened(page, server, "orders")
    page.size(400, 800)
    try:
        page.run("localStorage.setItem('tidelake-theme', 'light')")
        opened(page, server, "orders")
        page.keys("t")
        assert page.run("return document.documentElement.dataset.theme") == "dark"
        page.keys("4")
        page.until("document.querySelector('#panel[data-shown=storage]')")
        # Nothing sticks out to the side.
        assert page.run("return document.documentElement.scrollWidth") <= 400
        shoot(page, "narrow")
        page.keys("?")
        page.until("document.querySelector('#dialog').open")
    finally:
        page.size(1200, 800)
        page.run("localStorage.setItem('tidelake-theme', 'light')")


def test_changes_of_times_without_an_order_are_asked_for(page, server, place):
    pairs = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])
    with tidelake.open(place) as lake:
        c = lake.create("pairs", pairs, key=["k"], time="tuple(2)")
        times = {"_time_0": [0, 1], "_time_1": [0, 2]}
        c.append(pa.table({"k": [1, 2], "v": ["a", "b"], **times}), upper=[(2, 3)])
    page.open("about:blank")
    page.open(f"{server}#/c/pairs")
    page.until("document.querySelector('#panel[data-shown=rows]')")
    page.keys("2")
    page.until("document.querySelector('#between')")
    page.write("#after", "0,0")
    page.write("#through", "1,2")
    page.click("#between")
    page.until("document.querySelector('td.sign')")
    found = api(server, "changes", name="pairs", after="0,0", through="1,2")
    assert [row[:2] for row in cells(page)] == [["2", "b"]] == [row[:2] for row in found["rows"]]


def test_views_are_a_graph_that_leads_to_each_collection(page, server):
    page.open("about:blank")
    page.open(f"{server}#/views")
    page.until("document.querySelector('#graph svg')")
    links = page.run("return [...document.querySelectorAll('#graph a')].map(a => a.getAttribute('href'))")
    assert sorted(links) == [f"#/c/{name}" for name in sorted([*VIEWS, "orders", "customers"])]
    late = page.run(
        "return [...document.querySelectorAll('#graph .edge.late title')].map(t => t.textContent)"
    )
    assert sorted(late) == [
        "sales_by_city is made of customers, and 3 h behind",
        "sales_by_city is made of orders, and 3 h behind",
        "sales_by_customer is made of orders, and 3 h behind",
    ]
    shoot(page, "views")
    page.click('#graph a[href="#/c/best_customers"]')
    page.until("document.querySelector('#made-of')")
    assert page.run("return document.querySelector('#made-of a').textContent") == "sales_by_customer"


def test_a_wide_table_keeps_its_lines_and_a_phone_its_dates(page, server, odd_server):
    page.size(1280, 800)
    try:
        opened(page, odd_server, "wide")
        heights = page.run(
            "return [...document.querySelectorAll('table.data tbody tr')].map(r => r.offsetHeight)"
        )
        assert max(heights) < 50
        assert page.run("return document.documentElement.scrollWidth") <= 1280
        shoot(page, "wide")
        page.size(400, 800)
        opened(page, server, "orders")
        texts = page.run("return [...document.querySelectorAll('#timeline text')].map(t => t.textContent)")
        assert "2026-10-26" in texts and not any("…" in text for text in texts)
        # The tab that is shown is in sight, and each figure fits its card.
        page.keys("6")
        page.until("document.querySelector('#panel[data-shown=log]')")
        assert page.run("return document.querySelector('#tab-log').getBoundingClientRect().right") <= 400
        cut = "[...document.querySelectorAll('.tile b')].filter(one => one.scrollWidth > one.clientWidth)"
        page.run("document.querySelector('[data-gauge=updates]').textContent = '180,002'")
        page.run("document.querySelector('[data-gauge=stored]').textContent = '1023 KiB'")
        assert page.run(f"return {cut}.length") == 0
        page.size(1280, 800)
        assert page.run(f"return {cut}.length") == 0
    finally:
        page.size(1200, 800)


def test_large_figures_fit_their_cards(page, server):
    page.open(server)
    found = page.run("return import('/draw.js').then(m => [999999, 12345678, 9e15].map(m.figure))")
    assert found == ["999,999", "12.3M", "9000T"]


def test_staged_rows_erasures_forks_and_negative_rows_are_shown(page, server, odd_server):
    opened(page, server, "orders")
    assert page.run("return document.querySelector('[data-gauge=staged]').textContent") == "1"
    assert page.run("return document.querySelector('#forks a').textContent") == "orders of yesterday"
    page.keys("5")
    page.until("document.querySelector('#panel[data-shown=holds]')")
    shown = page.run("return document.querySelector('#panel').innerText")
    assert "ticket 4711" in shown and "view sales_by_city" in shown
    shoot(page, "holds")
    opened(page, server, "orders of yesterday")
    assert page.run("return document.querySelector('#origin a').textContent") == "orders"
    opened(page, odd_server, "owed")
    assert page.run("return document.querySelector('tr.minus td').textContent") == "Alan"
    assert page.run("return document.querySelector('#negative').textContent").startswith(
        "1 row with a negative count"
    )


def test_the_report_of_the_button_stays(page, place):
    with serving(place, "--allow-write") as server:
        opened(page, server, "orders")
        page.keys("4")
        page.until("document.querySelector('#maintain')")
        before = page.run("return document.querySelector('#spine').innerHTML")
        page.click("#maintain")
        page.until("document.querySelector('#report')?.textContent.includes('updates became')")
        page.until("document.querySelector('#spine').innerHTML !== arguments[0]", before)
        assert "updates became" in page.run("return document.querySelector('#report').textContent")
