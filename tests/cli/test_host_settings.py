"""Answers do not follow the time zone and the locale of the machine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

PROGRAM = """
import datetime as dt, json, sys
import pyarrow as pa
import tidelake
from tidelake.cli.main import main

place, out = sys.argv[1:]

def command(*words):
    try:
        main(list(words))
    except SystemExit as done:
        assert not done.code, (words, done.code)
    sys.stdout.flush()

with open(f"{out}/in.csv", "w", encoding="utf-8") as rows:
    rows.write('id,at,n,d,s\\n1,2024-03-31T02:30:00Z,2024-03-31T02:30:00,2024-03-31,"I i İ é"\\n')
    rows.write("2,2024-11-03 01:30:00-05:00,2024-11-03 01:30,2024-11-03,ü\\n")
with open(f"{out}/in.json", "w", encoding="utf-8") as rows:
    rows.write('{"id": 3, "at": "2024-03-31T02:30:00Z", "n": "2024-03-31T02:30:00",')
    rows.write(' "d": "2024-03-31", "s": "é"}\\n')
command("create", place, "c", "--like", f"{out}/in.csv", "--key", "id", "--time", "ms")
command("append", place, "c", f"{out}/in.csv", "--time", "2024-03-31T02:30:00Z")
command("append", place, "c", f"{out}/in.json", "--time", "2024-11-03T06:30:00Z")
for words in ((), ("--json",), ("--as-of", "2024-11-03T06:29:59Z")):
    command("snapshot", place, "c", *words)
for ending in ("csv", "jsonl"):
    command("snapshot", place, "c", "--out", f"{out}/out.{ending}")
with tidelake.open(place) as lake:
    c = lake["c"]
    print(c.to_pandas().to_csv(), dict(c.to_pandas().dtypes), c.to_polars().collect().rows())
    found = lake.sql('SELECT "at"::VARCHAR, n::TIMESTAMPTZ, upper(s), "at"::DATE FROM c ORDER BY s')
    print(found.read_all().to_pylist())
"""


def answers(folder: Path, **host: str) -> tuple[bytes, ...]:
    folder.mkdir()
    place, out = folder / "lake", folder / "out"
    out.mkdir()
    program = folder / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(program), str(place), str(out)],
        env={**os.environ, **host, "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
        capture_output=True,
        check=False,
    )
    assert not done.returncode, done.stderr.decode()
    said = done.stdout.replace(str(folder).encode(), b"")
    return said, (out / "out.csv").read_bytes(), (out / "out.jsonl").read_bytes()


@pytest.mark.promise(
    "Answers, files and what commands print do not follow the time zone and the locale of the machine",
    rule="`run` in `cli/main.py`, UTC in `lake/api/embedded.py`",
)
def test_answers_do_not_follow_the_time_zone_and_the_locale_of_the_machine(tmp_path):
    here = answers(tmp_path / "a", TZ="UTC", LC_ALL="C.UTF-8")
    for name, host in (
        ("b", {"TZ": "America/New_York", "LC_ALL": "C", "LANG": "tr_TR.UTF-8"}),
        ("c", {"TZ": "Pacific/Auckland", "LC_ALL": "C.UTF-8", "LANG": "de_DE.UTF-8"}),
    ):
        assert answers(tmp_path / name, **host) == here
