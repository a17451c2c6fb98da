"""Spark with a driver of one version and executors of another: what the matrix takes is the truth."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("pyspark")

import quick
from matrix_data import small_history
from wheels import HERE, environment

SPARK = HERE.parent / "spark"
PATHS = ("helper append", "helper changes", "helper merge", "helper upsert", "format snapshot", "stream sink")
MADE = """
import sys, pyarrow, tidelake
tidelake.open(sys.argv[1]).create("first", pyarrow.schema([("k", pyarrow.int64())]), key=["k"])
"""
pytestmark = [pytest.mark.spark, pytest.mark.full, pytest.mark.timeout(1800)]


@pytest.mark.promise(
    "A driver and workers of this version and the one before do each other's tasks: classes of "
    "tasks keep their names, later fields are left out where they have nothing to say, and answers "
    "keep their columns; what a version does not know is refused",
    rule=(
        "`as_stored` in `state/core/formats.py`, `_UpsertEvents` in `spark/envelopes/upsert.py`, "
        "`encoded_answer` in `feeds/answers.py`"
    ),
    also=["versions/test_two_versions.py::test_an_executor_refuses_the_task_of_a_later_version"],
)
@pytest.mark.parametrize("newer", ["driver", "executors"])
def test_driver_and_executors_are_of_two_versions(pair, newer, tmp_path):
    old, new = pair
    driver, executors = (new, old) if newer == "driver" else (old, new)
    history = small_history(tmp_path / "history")
    (tmp_path / "work").mkdir()
    # A lake whose first collection the newer version makes has the newest format at once.
    made = [sys.executable, "-c", MADE, str(tmp_path / "work" / "lake")]
    subprocess.run(made, env=environment(old), cwd=tmp_path, timeout=600, check=True)
    conf = {
        **quick.CONF,
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(map(str, (executors, HERE / "seen"))),
    }
    conf["spark.executorEnv.TIDELAKE_TEST_SEEN"] = str(tmp_path)
    asked = {"engine": "local", "master": "local", "conf": conf, "looks": 3, "paths": PATHS}
    asked |= {"data": str(history.folder), "work": str(tmp_path / "work")}
    command = [sys.executable, str(SPARK / "matrix_driver.py"), json.dumps(asked)]
    done = subprocess.run(
        command,
        env=environment(driver, SPARK) | {"SPARK_LOCAL_IP": "127.0.0.1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    found = json.loads(done.stdout.splitlines()[-1])
    wrong = [
        (path, claims)
        for path in PATHS
        for claims in ([found[path]] if isinstance(found[path], str) else found[path])
        if isinstance(claims, str) or tuple(claims[2:]) != history.truth.of(*claims[:2])
    ]
    assert not wrong, done.stderr[-3000:]
    # The workers did have the other version.
    seen = {line for path in tmp_path.glob("seen-*") for line in path.read_text().splitlines()}
    assert seen == {str(executors)}
