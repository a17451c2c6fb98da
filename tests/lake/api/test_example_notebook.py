"""The example notebook runs in a real kernel: tables are tables, pictures pictures, and a bar is seen."""

import base64
from pathlib import Path

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")

NOTEBOOK = Path(__file__).resolve().parents[3] / "docs" / "examples" / "stock.ipynb"
# A clock by which everything takes two seconds: no work here takes long enough for a bar.
SLOW = """
import time
from tidelake.env import Env, SystemClock


class Slow(SystemClock):
    at = 0.0

    def monotonic_s(self):
        Slow.at += 2
        return Slow.at


with tidelake.open("notebook-lake", env=Env(clock=Slow())) as slow:
    print(slow.fsck().clean)
"""

pytestmark = pytest.mark.full


class Recorded(nbclient.NotebookClient):
    """Keeps everything that the kernel displays, also what is replaced later."""

    def process_message(self, msg, cell, cell_index):
        if msg["msg_type"] in ("display_data", "update_display_data"):
            self.displayed = [*getattr(self, "displayed", []), msg["content"]["data"]]
        return super().process_message(msg, cell, cell_index)


def test_the_notebook_runs_and_shows_tables_pictures_and_a_bar(tmp_path):
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not [cell for cell in notebook.cells if cell.get("outputs")]
    notebook.cells.append(nbformat.v4.new_code_cell(SLOW))
    client = Recorded(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    )
    client.execute()
    by_code = {
        cell.source.splitlines()[-1]: cell.outputs[-1].get("data", {})
        for cell in notebook.cells
        if cell.cell_type == "code" and cell.outputs
    }
    for code in (
        'stock.snapshot("2026-03-01")',
        'stock.changes("2026-03-01", "2026-03-03")',
        'stock.history("bolt").to_pandas()',
        "stock.commits()",
        "report",
    ):
        assert "<table" in by_code[code]["text/html"], code
    assert "2026-03-02" in by_code['stock.history("bolt").to_pandas()']["text/html"]
    for code in ("stock.plot_history()", "stock.plot_spine()"):
        assert base64.b64decode(by_code[code]["image/png"]).startswith(b"\x89PNG"), code
    shown = [data.get("text/html", "") for data in client.displayed]
    assert any("<progress" in html and "fsck" in html for html in shown)
    assert shown[-1] == ""  # it went when the work was over
