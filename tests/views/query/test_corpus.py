"""The queries of TPC-H and TPC-DS: how many a view may have, and how many recompute a stage whole.

The texts are not ours, so they are not here. The environment names a folder with `tpc-h.sql` and
`tpc-ds.sql`, whose queries end in `;`, and `tpc-h.json` and `tpc-ds.json`: by table, types by column.
"""

import json
import os
from pathlib import Path

import pytest

from tidelake.errors import UsageError
from tidelake.views.plan import recomputes_whole
from tidelake.views.query.compile import compiled

FOLDER = os.environ.get("TIDELAKE_TPC")
# They name two columns alike.
REFUSED = {"tpc-h": {}, "tpc-ds": {39: "'cov'", 64: "'cnt'"}}


@pytest.mark.full
@pytest.mark.skipif(FOLDER is None, reason="TIDELAKE_TPC names no folder with the queries")
@pytest.mark.parametrize(("name", "queries", "whole_most"), [("tpc-h", 22, 3), ("tpc-ds", 99, 15)])
def test_the_queries_of_a_benchmark_are_accepted(name, queries, whole_most):
    folder = Path(str(FOLDER))
    tables = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    texts = [text for text in (folder / f"{name}.sql").read_text(encoding="utf-8").split(";") if text.strip()]
    refused, whole = {}, 0
    for number, text in enumerate(texts, 1):
        try:
            plan = compiled(text, tables.get)
        except UsageError as error:
            refused[number] = str(error)
            continue
        whole += any(recomputes_whole(stage) for stage in plan.stages)
    assert len(texts) == queries
    assert refused.keys() == REFUSED[name].keys()
    assert all(reason in refused[number] for number, reason in REFUSED[name].items())
    assert whole <= whole_most
