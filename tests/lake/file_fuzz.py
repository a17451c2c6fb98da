"""Damage to one file of a small lake, then everything that a user does: what comes of it is judged.

A trial copies a lake as a crash leaves it, damages one file of it, opens it, and reads, follows, appends,
maintains and checks. Each answer must be the right one, or an error of Tidelake that says that something is
wrong. Wrong rows, an older answer without an error, another error and a wait without an end are failures.

Run as a program it makes trials one after the other, in a process of its own, which ends itself with the
stack of every thread when one trial takes longer than `DEADLINE_S`.
"""

import argparse
import faulthandler
import io
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random

import pyarrow as pa

import tidelake
from tidelake.cli import main
from tidelake.config import Config
from tidelake.errors import (
    BlobNotFound,
    CorruptionError,
    FormatTooNew,
    NotALake,
    OutcomeUnknown,
    StoreUnavailable,
    TidelakeError,
)
from tidelake.testing.oracle import Oracle

DEADLINE_S = 120
# What tells a user that what is stored is not as it should be. `NotALake` is said of the lake's marker.
FITTING = (CorruptionError, StoreUnavailable, FormatTooNew, BlobNotFound, NotALake, OutcomeUnknown)
SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.string())])
CONFIG = Config(
    inline_part_bytes=0,
    rollup_bytes_min=6_000,
    merge_budget_s=0,
    retry_deadline_s=0.02,
    wait_timeout_s=0.1,
    poll_interval_s=0.01,
    lookup_cache_bytes=0,
)
INLINE = replace(CONFIG, inline_part_bytes=4096)
NAMES = ("a", "b", "c", "d")


class Wrong(AssertionError):
    """An answer that is neither right nor a fitting error."""


def table(rows, at=None):
    keys, values, diffs = zip(*rows, strict=True)
    columns = {"k": pa.array(keys, pa.int64()), "v": pa.array(values), "_diff": pa.array(diffs, pa.int64())}
    if at is not None:
        columns["_time"] = pa.array([at] * len(rows), pa.int64())
    return pa.table(columns)


def counted(rows, *columns):
    """What a read gives, as the oracle has it."""
    found = Counter()
    for *row, diff in zip(*(rows[name].to_pylist() for name in ("k", "v", *columns, "_diff")), strict=True):
        found[(tuple(row[:2]), *row[2:]) if columns else tuple(row)] += diff
    return found


@dataclass
class Template:
    """A lake to be copied, what it holds, and files of it as they were before."""

    folder: Path
    older: Path
    held: dict[str, Oracle]
    files: list[str] = field(default_factory=list)
    names: dict[str, list[str]] = field(default_factory=dict)

    def append(self, name, collection, rows):
        held = self.held.setdefault(name, Oracle(tidelake.Frontier.of(0), tidelake.Frontier.of(0)))
        at = held.upper.elements[0]
        collection.append(table(rows, at), upper=at + 1)
        self.add(name, rows)

    def add(self, name, rows):
        held = self.held.setdefault(name, Oracle(tidelake.Frontier.of(0), tidelake.Frontier.of(0)))
        at = held.upper.elements[0]
        held.append([((k, v), at, diff) for k, v, diff in rows], tidelake.Frontier.of(at + 1))


def make_template(root):
    """A lake with files of every kind, copied while it is open: as a killed process leaves it."""
    lake_at, made = root / "made" / "lake", Template(root / "template", root / "older", {})
    with tidelake.open(lake_at, config=CONFIG) as lake:
        c = lake.create("c", SCHEMA, key=["k"])
        for n in range(4):
            made.append("c", c, [(n, f"c{n}", 1), (n + 10, "x", 1)])
        for name in ("a", "b"):
            lake.create(name, SCHEMA, key=["k"])
    # Closed and opened again: so the databases hold something as well, beside the logs of what came since.
    with tidelake.open(lake_at, config=CONFIG) as lake:
        c = lake.collection("c")
        arranged = c.arrange(follow=False, directory=root)
        arranged.save(root / "made" / "checkpoint")
        arranged.close()
        lake.write({name: table([(1, f"{name}1", 1)]) for name in ("a", "b")}, time=0)
        for name in ("a", "b"):
            made.add(name, [(1, f"{name}1", 1)])
        shutil.copytree(root / "made", made.older)
        for n in range(4, 6):
            made.append("c", c, [(n, f"c{n}", 1), (n + 6, "x", -1)])
        c.merge()
        made.append("c", c, [(0, "c0", -1), (0, "new", 1)])
        lake.write({name: table([(1, f"{name}1", -1), (2, f"{name}2", 1)]) for name in ("a", "b")}, time=1)
        for name in ("a", "b"):
            made.add(name, [(1, f"{name}1", -1), (2, f"{name}2", 1)])
        with tidelake.open(lake_at, config=INLINE) as other:
            d = other.create("d", SCHEMA, key=["k"])
            for n in range(3):
                made.append("d", d, [(n, "é", 2)])
            d.stage(pa.table({"k": pa.array([9]), "v": ["later"], "_time": pa.array([7], pa.int64())}))
            arranged = c.arrange(follow=False, directory=root, restore=root / "made" / "checkpoint")
            arranged.catch_up()
            arranged.save(root / "made" / "checkpoint")
            arranged.close()
            shutil.copytree(root / "made", made.folder)
            made.names = {one.id: [name] for name in NAMES for one in (lake.collection(name),)}
            made.names[lake.collection("a").state().group] = ["a", "b"]
    made.files = sorted(
        str(path.relative_to(made.folder)) for path in made.folder.rglob("*") if path.is_file()
    )
    return made


# --- Damage ---


def kind_of(name):
    """Files of one kind have the same role: a part, a database, a log beside it."""
    parts = Path(name).parts
    return ("/".join(part for part in parts[:-1] if len(part) < 20), Path(name).suffix)


def flip(rng, path, _template, _name):
    data = bytearray(path.read_bytes())
    if not data:
        return "nothing to flip"
    at = rng.randrange(len(data))
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        data[at] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        told = f"flipped byte {at} of {len(data)}"
        at = min(at + rng.randrange(64), len(data) - 1)
    return told


def cut(rng, path, _template, _name):
    size = path.stat().st_size
    keep = rng.randrange(size) if size else 0
    os.truncate(path, keep)
    return f"cut to {keep} of {size}"


def zero(rng, path, _template, _name):
    data = bytearray(path.read_bytes())
    block = rng.choice((512, 4096))
    at = rng.randrange(len(data) // block + 1) * block
    end = min(at + block, len(data))
    data[at:end] = bytes(end - at)
    path.write_bytes(data)
    return f"zeroed {at} to {end} of {len(data)}"


def grow(rng, path, _template, _name):
    with path.open("ab") as file:
        file.write(rng.randbytes(rng.choice((1, 24, 512, 4096))))
    return "grown"


def swap(rng, path, template, name):
    others = [other for other in template.files if other != name and kind_of(other) == kind_of(name)]
    if not others:
        return "nothing to swap with"
    other = rng.choice(others)
    there = path.parents[len(Path(name).parts) - 1] / other
    here, beyond = path.read_bytes(), there.read_bytes()
    path.write_bytes(beyond)
    there.write_bytes(here)
    return f"swapped with {other}"


def age(_rng, path, template, name):
    older = template.older / name
    if not older.exists():
        path.unlink()
        return "as it was before: not there"
    shutil.copyfile(older, path)
    return "as it was before"


def empty(_rng, path, _template, _name):
    path.write_bytes(b"")
    return "emptied"


def remove(_rng, path, _template, _name):
    path.unlink()
    return "removed"


def fifo(_rng, path, _template, _name):
    path.unlink()
    os.mkfifo(path)
    return "a FIFO"


def link(rng, path, template, name):
    path.unlink()
    target = rng.choice(("nowhere", path.name, "/dev/null", str(path.parent)))
    path.symlink_to(target)
    return f"a symlink to {target}"


def folder(_rng, path, _template, _name):
    path.unlink()
    path.mkdir()
    return "a directory"


DAMAGES = (
    flip,
    flip,
    flip,
    flip,
    flip,
    flip,
    cut,
    cut,
    zero,
    zero,
    grow,
    swap,
    age,
    empty,
    remove,
    fifo,
    link,
    folder,
)


# --- A trial ---


class Trial:
    """One copy of the lake, and what is asked of it."""

    def __init__(self, template, seed, root):
        self.template, self.seed = template, seed
        self.rng = Random(seed)
        self.place = root / f"trial{seed}"
        self.said = []
        # Whether something was let go on purpose, or may be in or not: then no answer is known.
        self.loses = False
        self.held = {
            name: Oracle(held.upper, held.since, list(held.updates)) for name, held in template.held.items()
        }

    def run(self):
        """Damage and ask. Raises `Wrong`."""
        shutil.copytree(self.template.folder, self.place)
        try:
            # Kinds are chosen first: there are more parts than markers.
            kinds = sorted({kind_of(name) for name in self.template.files})
            kind = self.rng.choice(kinds)
            name = self.rng.choice([name for name in self.template.files if kind_of(name) == kind])
            damage = self.rng.choice(DAMAGES)
            told = damage(self.rng, self.place / name, self.template, name)
            self.said.append(f"{name}: {told}")
            self._ask(name)
        finally:
            shutil.rmtree(self.place, ignore_errors=True)

    def _try(self, what, do, wrong):
        """An answer; `wrong` says what is wrong with it. None if it was a fitting error."""
        try:
            got = do()
        except FITTING as error:
            self.said.append(f"{what}: {type(error).__name__}: {error}")
            return None
        except TidelakeError as error:
            if self.loses:
                self.said.append(f"{what}: {type(error).__name__}: {error}")
                return None
            raise Wrong(f"{what}: {type(error).__name__} does not tell of damage: {error}") from error
        except Exception as error:
            raise Wrong(f"{what}: a raw error: {error!r}") from error
        if told := wrong(got):
            raise Wrong(f"{what}: {told}")
        self.said.append(f"{what}: right")
        return got

    def _ask(self, name):
        config, place = self.rng.choice((CONFIG, INLINE)), self.place / "lake"
        if self.rng.random() < 0.05:
            self._try(
                "the command line", partial(command_line, self.rng.choice(COMMANDS), place), told_well(name)
            )
        lake = self._try("open", partial(tidelake.open, place, create=False, config=config), any_)
        if lake is None:
            return
        try:
            asked = self._asked(name)
            self._reads(lake, asked)
            if self.rng.random() < 0.25:
                self._check(lake, asked, is_lock=Path(name).name == "lock")
            if self.rng.random() < 0.3:
                self._writes(lake, self.rng.choice([one for one in asked if one in "cd"] or ["c"]))
                self._reads(lake, asked)
        finally:
            self._try("close", lake.close, any_)

    def _asked(self, name):
        """The collections that a file may matter to, and another one now and then."""
        shard = next((part for part in Path(name).parts if part in self.template.names), None)
        found = set(self.template.names.get(shard, ()))
        if not found or self.rng.random() < 0.3:
            found.add("c" if name.startswith("checkpoint") else self.rng.choice(NAMES))
        return sorted(found)

    @property
    def _unanswered(self):
        """How many questions that a check should know about have not been answered."""
        bad = [said for said in self.said if not said.endswith(": right")]
        return sum(not said.startswith("c arrangement") for said in bad)

    def _check(self, lake, asked, *, is_lock):
        failed = self._unanswered > 1  # beside the damage, which is said first
        report = self._try("fsck", lambda: lake.fsck(quick=False), any_)
        if report is None:
            return
        before = self._unanswered
        # What cannot be locked is found by those who write, and nothing that is stored is damaged.
        if failed and report.clean and not is_lock:
            self._reads(lake, asked, every=True)
            if self._unanswered > before:
                raise Wrong("fsck finds nothing, and reads fail")
        if not report.clean and self.rng.random() < 0.5:
            mended = self._try("repair", lambda: lake.fsck(repair=True), any_)
            lost = mended is None or mended.set_aside or any(f.kind == "log-lost" for f in mended.findings)
            self.loses = self.loses or bool(lost)

    def _reads(self, lake, asked, *, every=False):
        if every or self.rng.random() < 0.4:
            self._try("list", lake.list, any_ if self.loses else equal(list(NAMES)))
        for name in asked:
            collection = self._try(f"collection {name}", partial(lake.collection, name), any_)
            if collection is None:
                continue
            questions = self._questions(name, collection)
            for what in questions if every else self.rng.sample(sorted(questions), 2):
                do, expected = questions[what]
                self._try(f"{name} {what}", do, any_ if self.loses else equal(expected))

    def _questions(self, name, collection):
        """What may be asked of a collection, and the answers."""
        held = self.held[name]
        last = held.upper.elements[0] - 1
        at, after = self.rng.randrange(last + 1), self.rng.randrange(last + 1)
        found = {
            "now": (lambda: counted(collection.snapshot(last).read_all()), held.snapshot(last)),
            f"as of {at}": (lambda: counted(collection.snapshot(at).read_all()), held.snapshot(at)),
            f"after {after}": (
                lambda: counted(collection.changes(after, last).read_all()),
                held.changes(after, last),
            ),
            "listened to": (
                lambda: listened(collection, last + 1),
                held.between(tidelake.Frontier.of(0), held.upper),
            ),
        }
        if name == "c":
            found["arrangement"] = (lambda: self._arranged(collection), held.snapshot(last))
        return found

    def _arranged(self, collection):
        made = collection.arrange(
            follow=False, restore=self.place / "checkpoint", directory=self.place, timeout_s=0.1
        )
        try:
            made.catch_up(timeout_s=0.1)
            with made.snapshot() as view:
                return counted(view.range())
        finally:
            made.close()

    def _writes(self, lake, name):
        held = self.held[name]
        at = held.upper.elements[0]
        unknown = []

        def append():
            try:
                lake.collection(name).append(table([(77, f"fresh {at}", 1)], at), upper=at + 1)
            except OutcomeUnknown:
                unknown.append(at)
                raise
            return True

        done = self._try(f"append to {name}", append, any_)
        if unknown:
            self.loses = True  # it may be in, or not
        if done:
            held.append([((77, f"fresh {at}"), at, 1)], tidelake.Frontier.of(at + 1))
        if self.rng.random() < 0.5:
            self._try("maintain", lambda: lake.collection(name).maintain(), any_)
        else:
            self._try("collect", lake.collect, any_)


def any_(_answer):
    """No answer is wrong."""
    return


def equal(expected):
    """What is wrong with an answer that is not the expected one."""
    return lambda got: None if got == expected else f"{got!r} instead of {expected!r}"


COMMANDS = ("ls", "fsck", "show c", "snapshot c", "maintain --once", "holds")


def command_line(command, place):
    """The exit code of a command, and what it said on standard error."""
    word, *rest = command.split()
    arguments = [word, str(place), *rest]
    out, error = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(error):
        try:
            main.main(arguments)
        except SystemExit as left:
            return left.code, error.getvalue()
    return None, error.getvalue()


def told_well(name):
    """What is wrong with the end of a command: it must succeed, or name the damage in one line."""
    # Without its marker a directory is no lake, which is said to be a mistake of the caller.
    fitting = {0, 1, 5, 6} | ({2} if name.endswith("tidelake.json") else set())

    def wrong(answer):
        code, said = answer
        return None if code in fitting and "Traceback" not in said else f"exit code {code}, {said}"

    return wrong


def listened(collection, upper):
    """All updates, as a listener is told them."""
    found = Counter()
    for step in collection.listen(lower=0, until=upper, timeout_s=0.1):
        found.update(counted(step.updates.read_all(), "_time"))
    return found


def trial(template, seed, root):
    """The failure of one trial as text; empty if it was right."""
    one = Trial(template, seed, root)
    try:
        one.run()
    except Wrong as error:
        told = "\n  ".join([f"seed {seed}: {error}", *one.said])
        cause = error.__cause__
        if cause is not None and not isinstance(cause, TidelakeError):
            told += "\n" + "".join(traceback.format_exception(cause))
        return told
    return ""


def run():
    parser = argparse.ArgumentParser()
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--trials", type=int)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--failures", type=int, default=1, help="stop after so many")
    parser.add_argument("--verbose", action="store_true")
    given = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="file-fuzz-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    begun_s, failures, made = time.monotonic(), 0, 0
    try:
        template = make_template(root)
        while (given.trials is None or made < given.trials) and (
            given.seconds is None or time.monotonic() < begun_s + given.seconds
        ):
            seed = given.first + made
            faulthandler.dump_traceback_later(DEADLINE_S, exit=True)
            began_s = time.monotonic()
            told = trial(template, seed, root)
            if given.verbose:
                print(f"{seed}: {time.monotonic() - began_s:.3f} s", flush=True)
            made += 1
            if told:
                print(told, flush=True)
                failures += 1
                if failures >= given.failures:
                    break
        faulthandler.cancel_dump_traceback_later()
    finally:
        shutil.rmtree(root, ignore_errors=True)
    print(f"{made} trials from seed {given.first}, {failures} failures, {time.monotonic() - begun_s:.1f} s")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(run())
