"""A headless Chromium, driven by its own driver over the W3C WebDriver protocol: no library in between."""

import base64
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tied_process import tied

DRIVER, CHROMIUM = shutil.which("chromedriver"), shutil.which("chromium")
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


class Browser:
    """One page of a browser."""

    def __init__(self, url: str) -> None:
        self._session = url

    def _call(self, method: str, path: str, body: object = None) -> Any:
        data = None if method == "GET" else json.dumps(body or {}).encode()
        request = urllib.request.Request(
            f"{self._session}{path}", data, {"Content-Type": "application/json"}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.loads(answer.read())["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()) from error

    def open(self, url: str) -> None:
        self._call("POST", "/url", {"url": url})

    def run(self, script: str, *arguments: object) -> Any:
        """What a script returns in the page."""
        return self._call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def until(self, script: str, *arguments: object, seconds: float = 60) -> Any:
        """What a script returns, once that is true."""
        deadline = time.monotonic() + seconds
        while not (found := self.run(f"return {script}", *arguments)):
            assert time.monotonic() < deadline, (script, self.run("return document.body.innerText"))
            time.sleep(0.05)
        return found

    def keys(self, text: str) -> None:
        """Press keys, one after the other."""
        actions = [{"type": kind, "value": key} for key in text for kind in ("keyDown", "keyUp")]
        self._call("POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]})

    def click(self, selector: str) -> None:
        found = self._call("POST", "/element", {"using": "css selector", "value": selector})
        self._call("POST", f"/element/{found[ELEMENT]}/click")

    def write(self, selector: str, text: str) -> None:
        found = self._call("POST", "/element", {"using": "css selector", "value": selector})
        self._call("POST", f"/element/{found[ELEMENT]}/clear")
        self._call("POST", f"/element/{found[ELEMENT]}/value", {"text": text})

    def size(self, width: int, height: int) -> None:
        """The size of what the page is drawn on, also below the least width of a window."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self._call(
            "POST", "/goog/cdp/execute", {"cmd": "Emulation.setDeviceMetricsOverride", "params": metrics}
        )

    def screenshot(self, to: Path) -> None:
        to.write_bytes(base64.b64decode(self._call("GET", "/screenshot")))

    def messages(self) -> list[str]:
        """What the browser has complained about: errors of scripts, and breaches of the policy."""
        return [entry["message"] for entry in self._call("POST", "/se/log", {"type": "browser"})]


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A browser with a profile of its own below `folder`."""
    assert DRIVER is not None
    driver = subprocess.Popen(
        tied(DRIVER, "--port=0"), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert driver.stdout is not None
        port = next(
            line.rsplit(" ", 1)[1].rstrip(".\n") for line in driver.stdout if "successfully on port" in line
        )
        options = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            f"--user-data-dir={folder / 'profile'}",
        ]
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": {"args": options, "binary": CHROMIUM},
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        made = Browser(f"http://127.0.0.1:{port}/session")._call(
            "POST", "", {"capabilities": {"alwaysMatch": wanted}}
        )
        page = Browser(f"http://127.0.0.1:{port}/session/{made['sessionId']}")
        yield page
        page._call("DELETE", "")
    finally:
        driver.terminate()
        driver.wait()
