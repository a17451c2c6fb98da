"""The page in a real browser: what is drawn is what the API says, and nothing that a lake holds is run."""

import json
import os
import subprocess
import sys
import time
import urllib.parse
import urllib.request
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
        odd = lake.create(
            HOSTILE, pa.schema([pa.field("k", pa.string(), nullable=False), ("v", pa.string())]), key=["k"]
        )
        odd.append(pa.table({"k": [HOSTILE, "long", BIDI], "v": [HOSTILE, "x" * 1_000_000, BIDI]}))
        for name in ("customers", "prices", "stock", BIDI):
            lake.create(name, ORDER, key=["order_id"])
    return place


@pytest.fixture(scope="module")
def server(place):
    command = [sys.executable, "-c", COMMAND, "serve", place, "--port", "0"]
    with subprocess.Popen(tied(*command), stdout=subprocess.PIPE, text=True) as running:
        yield running.stdout.readline().split()[-1]
        running.terminate()


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
    page.until(f"document.querySelectorAll('.chip').length === {len(names)}")
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
        assert row[5] == f"{found['since']['text']} → {found['upper']['text']}"
    shoot(page, "overview")
    page.keys("/")
    page.write("#find", "ord")
    page.until("document.querySelectorAll('#collections tbody tr').length === 1")


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


def test_what_is_hostile_is_shown_and_not_run(page, server):
    page.messages()
    opened(page, server, HOSTILE)
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
