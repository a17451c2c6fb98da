"""Processes of this version and of earlier ones on one lake at once, and then the upgrade."""

import contextlib
import json
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from hypothesis import settings
from wheels import HERE, environment

from tidelake.errors import FormatTooNew
from tidelake.state.core.formats import NEWEST
from tidelake.store.framed.log import FramedVersionLog
from tied_process import tied

pytestmark = [pytest.mark.full, pytest.mark.timeout(1800)]
CHILD = HERE / "version_child.py"
SECONDS = {"fast": 8, "full": 8, "soak": 300}


def told(sources, *arguments):
    """What a process of a version prints until it ends."""
    command = [sys.executable, str(CHILD), *map(str, arguments)]
    done = subprocess.run(
        command, env=environment(sources), capture_output=True, text=True, timeout=600, check=False
    )
    assert not done.returncode, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


class Crew:
    """Processes of both versions that work on one lake, and all that they have said."""

    def __init__(self, lake, pair, folder):
        self.lake, self.pair, self.folder = lake, pair, folder
        self.said = []

    @contextlib.contextmanager
    def at_work(self, tag):
        """Two processes of each version; they are told to stop when the block ends."""
        with contextlib.ExitStack() as stack:
            started = []
            for number, (which, sources) in enumerate([*zip(("old", "new"), self.pair, strict=True)] * 2):
                name = f"{tag}-{which}{number}"
                out = stack.enter_context((self.folder / f"{name}.out").open("wb"))
                err = stack.enter_context((self.folder / f"{name}.err").open("wb"))
                command = tied(sys.executable, CHILD, "work", self.lake, name, number)
                process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=out, stderr=err, env=environment(sources)
                )
                started.append((name, sources, process))
            deadline = time.monotonic() + 120
            while not all((self.folder / f"{name}.out").stat().st_size for name, *_ in started):
                assert time.monotonic() < deadline, [(name, process.poll()) for name, _, process in started]
                time.sleep(0.05)
            try:
                yield [process for name, _, process in started if "-old" in name]
            finally:
                for _, _, process in started:
                    process.stdin.close()
                for _, _, process in started:
                    process.wait(120)
        for name, sources, process in started:
            lines = [json.loads(line) for line in (self.folder / f"{name}.out").read_text().splitlines()]
            assert not process.returncode, (self.folder / f"{name}.err").read_text()[-3000:]
            assert Path(lines[0]["sources"]).is_relative_to(sources) and lines[-1] == {"done": True}
            assert not [line for line in lines if "wrong" in line]
            self.said += [{"who": name, **line} for line in lines]

    def refused(self):
        return [line for line in self.said if "refused" in line]

    def check(self, answers):
        """Compare answers with what was acknowledged: all of that is in, once, and at its time.

        A write that was begun and not acknowledged is in as a whole, or not at all.
        """
        for op, collections in (("append", ["events"]), ("write", ["a", "b"])):
            begun, times = self._writes(op)
            for name in collections:
                found = answers[name]["snapshots"]
                last = max(found, key=int)
                for at, rows in found.items():
                    there = Counter(row[0] for row in rows)
                    assert set(there.values()) == {1} and {row[2] for row in rows} == {1}
                    wanted = {id_ for key, time in times.items() if time <= int(at) for id_ in begun[key]}
                    assert wanted <= set(there)
                    other = set(there) - wanted - {"first"}
                    unsaid = {id_ for key in begun.keys() - times.keys() for id_ in begun[key]}
                    assert other <= unsaid
                    if at == last:
                        partly = [ids for ids in begun.values() if 0 < len(other & {*ids}) < len(ids)]
                        assert not partly
        self._check_facts(answers["facts"]["snapshots"])
        assert answers["a"]["snapshots"] == answers["b"]["snapshots"]

    def _writes(self, op):
        """Ids by who and number, of all that were begun; and the times of those that were acknowledged."""
        said = [line for line in self.said if line.get("op") == op]
        begun = {(line["who"], line["value"]): line["ids"] for line in said}
        return begun, {(line["who"], line["value"]): line["time"] for line in said if "time" in line}

    def _check_facts(self, found):
        begun, times = self._writes("upsert")
        written = defaultdict(list)
        for (who, value), ids in begun.items():
            for id_ in ids:
                written[id_].append((times.get((who, value)), value))
        for at, rows in found.items():
            there = {row[0]: row[1] for row in rows}
            assert len(there) == len(rows) and {row[2] for row in rows} == {1}
            for id_, versions in written.items():
                in_time = [value for time, value in versions if time is not None and time <= int(at)]
                unsaid = {value for time, value in versions if time is None}
                assert there.get(id_) in {max(in_time, default=None), *unsaid}


def answers_of(sources, lake):
    return {line["collection"]: line for line in told(sources, "answers", lake)}


def formats(lake):
    """How many records of each format the logs of a lake have."""
    log, found = FramedVersionLog(str(lake / "log")), Counter()
    for key in log.keys():  # noqa: SIM118 - it is no dict
        for entry in log.scan(key, log.head(key).seqno - 10_000 if log.head(key).seqno > 10_000 else 0):
            found[int(entry.data.split(b" ", 2)[1])] += 1
    return found


@pytest.mark.promise(
    "Processes of this version and of the one before work on one lake; after the upgrade the older "
    "ones are refused, and nothing that they committed is lost",
    rule="`tidelake.state.core.formats`",
    also=[
        "lake/catalog/test_upgrade.py::test_an_upgrade_that_a_crash_left_half_done_is_finished_by_the_next_process",
        "versions/test_two_versions_spark.py::test_driver_and_executors_are_of_two_versions",
    ],
)
def test_two_versions_at_once_and_then_the_upgrade(pair, tmp_path):
    old, new = pair
    seconds = SECONDS[settings.get_current_profile_name()]
    lake = tmp_path / "lake"
    told(old, "make", lake)
    crew = Crew(lake, pair, tmp_path)
    with crew.at_work("before"):
        time.sleep(seconds)
    assert not crew.refused()
    by_old, by_new = answers_of(old, lake), answers_of(new, lake)
    assert by_old == by_new
    crew.check(by_new)
    assert told(old, "fsck", lake) == told(new, "fsck", lake) == [{"left": []}]
    (made,) = told(old, "newest")
    assert max(formats(lake)) <= made["newest"]

    with crew.at_work("upgrade") as olds:
        time.sleep(seconds / 2)
        latest = made["newest"] + 1
        assert told(new, "upgrade", lake) == [{"before": latest - 1, "after": latest}]
        assert told(new, "upgrade", lake) == [{"before": latest, "after": latest}]
        for process in olds:
            process.wait(120)
        time.sleep(seconds / 4)
    refused = crew.refused()
    assert {line["who"] for line in refused} == {"upgrade-old0", "upgrade-old2"}
    assert all("upgrade Tidelake" in line["refused"] for line in refused)
    by_new = answers_of(new, lake)
    crew.check(by_new)
    # What the older one is told, and that its repair takes nothing away.
    (found,) = told(old, "fsck", lake)
    assert "refused" in found or found["left"]
    assert answers_of(new, lake) == by_new and told(new, "fsck", lake) == [{"left": []}]
    (slices,) = told(new, "slices", lake)
    assert slices["slices"]
    told_it = Counter((line["who"].split("-")[1][:3], line["op"]) for line in crew.said if "time" in line)
    assert min(told_it[which, op] for which in ("old", "new") for op in ("append", "write", "upsert")) > 5
    print(f"{new}: acknowledged {dict(told_it)}, refused {[line['refused'] for line in refused]}")


def test_an_executor_refuses_the_task_of_a_later_version(pair):
    (line,) = told(pair[0], "task")
    assert "has format 99 and this Tidelake reads up to" in line["refused"]


def test_the_error_of_this_version_says_the_same():
    assert "upgrade Tidelake" in str(FormatTooNew("x", 99, NEWEST))
