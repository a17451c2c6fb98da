"""Rules about the code as a whole that no type checker knows. The layers are checked by `make check`."""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

import tidelake

SOURCE = Path(__file__).resolve().parent.parent / "src"
MODULES = sorted(SOURCE.glob("tidelake/**/*.py"))


@dataclass(frozen=True)
class Ban:
    """A name that may not be used in `src`, apart from the modules that are its door."""

    name: str
    instead: str
    doors: tuple[str, ...] = ()


CLOCK = "env.Clock: tests and the simulation decide what time it is"
RANDOM = "env.IdSource, or a seed handed in: a failing run must be repeatable"
POOL = (
    "env.Spawner or shard.overlap, which end their threads: one made before a fork never answers in the child"
)
COMMANDS = "a plain function, or the command line: a process started below outlives a killed Spark worker"
PLAIN = "a format of our own, with a checksum: a pickle runs code when read, and breaks when a class moves"
SETTINGS = "config.Config: what a process does must not depend on where it was started"
PROCESS = "process.ProcessOrigin or process.PerProcess: one place knows what a fork is"
REPORT = "env.Recorder for counts, a returned report or a `TidelakeWarning` for the rest"

BANS = (
    *(Ban(f"time.{x}", CLOCK, ("env.py",)) for x in ("time", "time_ns", "sleep")),
    *(Ban(f"time.{x}", CLOCK, ("env.py", "cli/")) for x in ("monotonic", "monotonic_ns", "perf_counter")),
    *(
        Ban(f"datetime.{x}", CLOCK)
        for x in ("datetime.now", "datetime.utcnow", "datetime.today", "date.today")
    ),
    Ban("random", RANDOM),
    Ban("secrets", RANDOM, ("web/guard.py", "web/serve.py")),  # a token must not be repeatable
    Ban("uuid.uuid1", RANDOM),
    Ban("uuid.uuid4", RANDOM),
    Ban("os.urandom", RANDOM, ("env.py",)),
    Ban("threading.Thread", POOL, ("env.py", "shard/engine/overlap.py")),
    Ban("threading.Timer", POOL),
    Ban("concurrent.futures", POOL, ("store/",)),
    Ban("asyncio", POOL, ("store/objects/",)),  # its loop has a thread of `env.ThreadSpawner`
    Ban("multiprocessing", POOL),
    Ban("os.fork", COMMANDS),
    Ban("os.system", COMMANDS),
    # The three write temporary files, whose names have the process id.
    Ban(
        "os.getpid",
        PROCESS,
        ("process.py", "cli/output.py", "feeds/rejects.py", "store/framed/log.py", "store/scratch.py"),
    ),
    Ban("subprocess", COMMANDS, ("spark/session.py",)),  # the session asks Java for its version
    # The address of a log may be secret, so workers find it in their environment.
    # PySpark has no other way to be told how it writes an error down.
    Ban("os.environ", SETTINGS, ("cli/", "spark/session.py", "spark/source/sentences.py", "store/access.py")),
    Ban("os.getenv", SETTINGS, ("cli/", "spark/session.py")),
    Ban("logging", REPORT, ("env.py", "spark/session.py")),  # where it is set up; which quiets Py4J
    *(Ban(x, PLAIN) for x in ("pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve")),
)


def _name(module: Path) -> str:
    return module.relative_to(SOURCE / "tidelake").as_posix()


def _tree(module: Path) -> ast.Module:
    return ast.parse(module.read_text(encoding="utf-8"), filename=str(module))


def _imports(tree: ast.AST) -> Iterator[tuple[str, str, int]]:
    """Each import, wherever it stands, as (name in the module, what it stands for, line)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                bound = alias.asname or alias.name.partition(".")[0]
                yield bound, alias.name if alias.asname else bound, node.lineno
                yield "", alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}", node.lineno


def _used(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Everything imported that the code names, in full: `from time import sleep as s; s` is `time.sleep`."""
    origin = {}
    for bound, full, line in _imports(tree):
        origin[bound] = full
        yield full, line
    for node in ast.walk(tree):
        path, inner = [], node
        while isinstance(inner, ast.Attribute):
            path.append(inner.attr)
            inner = inner.value
        if path and isinstance(inner, ast.Name) and inner.id in origin:
            yield ".".join([origin[inner.id], *reversed(path)]), node.lineno


def broken_bans(tree: ast.AST, module: str) -> set[str]:
    """What a module does that is banned there, with the line and the replacement."""
    bans = [b for b in BANS if not module.startswith(b.doors)]
    return {
        f"{module}:{line}: {ban.name} is banned; use {ban.instead}"
        for name, line in _used(tree)
        for ban in bans
        if f"{name}.".startswith(f"{ban.name}.")
    }


def loaded_by(code: str) -> tuple[set[str], int]:
    """What `code` loads in a fresh process, top level and without the standard library; and its threads."""
    script = (
        "import json, sys, threading\nbefore = set(sys.modules)\n"
        f"{code}\n"
        "new = {m.partition('.')[0] for m in set(sys.modules) - before}\n"
        "print(json.dumps([sorted(new - sys.stdlib_module_names), threading.active_count()]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    modules, threads = json.loads(done.stdout)
    return set(modules), threads


# Where an environment is made: with a lake, for an arrangement without one, for a worker with only a spec;
# and the clock of a disk that tests simulate. Everything else takes the one that it is given.
WORLDS = {
    "lake/api/lake.py": {"Env"},
    "arrangement/arrangement.py": {"Env"},
    "shard/engine/spec.py": {"Env"},
    "store/framed/log.py": {"SystemClock"},  # of a log that is opened alone, for its wait for a lock
    "store/objects/driver.py": {"ThreadSpawner"},  # the one thread of the loop of a process
}


def test_an_environment_is_made_in_few_places() -> None:
    found: dict[str, set[str]] = {}
    for module in MODULES:
        for node in ast.walk(_tree(module)):
            made = [node.func, *node.args] if isinstance(node, ast.Call) else []
            names = {one.id for one in made if isinstance(one, ast.Name)}
            if names & {"Env", "SystemClock", "ThreadSpawner"} and module.name != "env.py":
                found.setdefault(_name(module), set()).update(names & {"Env", "SystemClock", "ThreadSpawner"})
    assert found == WORLDS


@pytest.mark.promise("`import tidelake` loads nothing else and starts no thread")
def test_importing_tidelake_loads_nothing_else_and_starts_no_thread() -> None:
    assert loaded_by("import tidelake") == ({"tidelake"}, 1)


def test_a_lake_opens_without_the_spark_extra_and_loads_no_cloud_driver(tmp_path: Path) -> None:
    # pyarrow loads pandas where it finds it, so the packages of the extra are hidden, not just looked for.
    hide = (
        "class Hidden:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name.partition('.')[0] in ('pandas', 'py4j', 'pyspark'):\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Hidden())\n"
    )
    modules, _ = loaded_by(f"{hide}import tidelake\ntidelake.open({str(tmp_path / 'lake')!r})")
    allowed = {"msgspec", "numpy", "pvectorc", "pyarrow", "pyrsistent", "tidelake", "typing_extensions"}
    # Compiled modules show up with names of their compiler's own.
    assert {m for m in modules if not m.startswith(("_", "cython"))} <= allowed


# What a first read has no use for: to import it takes a good part of the time of a short process.
UNREAD = (
    "arrangement",
    "cli",
    "data.ingest.upsert",
    "data.json",
    "data.part.part",
    "data.query.where",
    "data.sql",
    "exporters",
    "lake.admin.copying",
    "lake.admin.fsck",
    "lake.api.distributed",
    "lake.api.embedded",
    "lake.api.readers",
    "lake.api.upkeep",
    "lake.api.writer",
    "lake.arguments.tokens",
    "lake.catalog.forking",
    "lake.groups",
    "shard.care",
    "shard.reading.commits",
    "shard.reading.critical",
    "shard.reading.negatives",
    "shard.reading.reader",
    "shard.reading.tail",
    "shard.runs.plan",
    "shard.runs.upload",
    "shard.upkeep.collector",
    "shard.upkeep.compactor",
    "shard.upkeep.drainer",
    "shard.upkeep.eraser",
    "shard.upkeep.maintain",
    "shard.upkeep.measure",
    "shard.upkeep.reports",
    "shard.writing",
    "spark",
    "state.group.deciding",
    "state.life.copying",
    "state.life.erasing",
    "state.life.mending",
    "state.write.write",
    "store.objects.blobs",
    "store.objects.driver",
    "store.objects.log",
    "store.postgres",
    "tables",
    "views",
    "web",
)


def test_a_first_read_of_a_fresh_process_imports_only_what_it_needs(tmp_path: Path) -> None:
    path = tmp_path / "lake"
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False)])
    tidelake.open(path).create("c", schema, key=["k"]).append(pa.table({"k": [1]}, schema))
    script = (
        "import json, sys, tidelake\n"
        f"assert tidelake.open({str(path)!r})['c'].snapshot().read_all().num_rows == 1\n"
        "print(json.dumps([name[9:] for name in sys.modules if name.startswith('tidelake.')]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    loaded = json.loads(done.stdout)
    assert "shard.runs.read" in loaded
    assert [name for name in loaded if f"{name}.".startswith(tuple(f"{one}." for one in UNREAD))] == []


def test_importing_the_command_line_does_not_load_spark() -> None:
    modules, threads = loaded_by("import tidelake.cli.main")
    assert not modules & {"pyspark", "py4j", "pandas"}
    assert threads == 1


@pytest.mark.promise(
    "Clock, randomness, threads, pickles and environment are used in named places only (threads: "
    "`shard/engine/overlap.py`, `env.py`); no `assert` checks data"
)
@pytest.mark.parametrize("module", MODULES, ids=_name)
class TestEveryModule:
    def test_says_what_it_owns(self, module: Path) -> None:
        assert ast.get_docstring(_tree(module)), (
            f"{_name(module)} needs a docstring: what it owns, what it must not know"
        )

    def test_uses_the_doors(self, module: Path) -> None:
        broken = broken_bans(_tree(module), _name(module))
        assert not broken, "\n".join(sorted(broken))

    def test_raises_instead_of_asserting(self, module: Path) -> None:
        lines = [node.lineno for node in ast.walk(_tree(module)) if isinstance(node, ast.Assert)]
        assert not lines, f"{_name(module)}: `python -O` removes assert, raise an error in lines {lines}"


@pytest.mark.parametrize(
    ("code", "banned"),
    [
        ("import time\ntime.sleep(1)", "time.sleep"),
        ("import time as t\nx = t.time", "time.time"),
        ("from time import sleep as pause", "time.sleep"),
        ("from datetime import datetime\ndatetime.now()", "datetime.datetime.now"),
        ("import datetime as d\nd.date.today()", "datetime.date.today"),
        ("from uuid import uuid4", "uuid.uuid4"),
        ("import numpy, random", "random"),
        ("from random import choice", "random"),
        ("import os\nos.environ['X']", "os.environ"),
        ("def f():\n    import concurrent.futures", "concurrent.futures"),
        ("from concurrent.futures import ThreadPoolExecutor", "concurrent.futures"),
        ("import threading\nclass T(threading.Thread): ...", "threading.Thread"),
        ("import pickle", "pickle"),
    ],
)
def test_a_banned_call_is_found(code: str, banned: str) -> None:
    assert {b.split()[1] for b in broken_bans(ast.parse(code), "lake/api/lake.py")} == {banned}


def test_harmless_code_is_let_through() -> None:
    code = "import time, threading\ntime.gmtime()\nthreading.Lock()\nrandom = 1\nrandom.x"
    assert not broken_bans(ast.parse(code), "lake/api/lake.py")
    assert not broken_bans(ast.parse("import time\ntime.sleep(1)"), "env.py")


def _importers() -> dict[str, set[str]]:
    """By module, as a path below the package without `.py`, the modules that import it."""
    found: dict[str, set[str]] = {}
    for path in MODULES:
        if path.name == "__init__.py":
            continue
        for node in ast.walk(_tree(path)):
            if isinstance(node, ast.ImportFrom) and node.module:
                names = {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            elif isinstance(node, ast.Import):
                names = {alias.name for alias in node.names}
            else:
                continue
            for name in names:
                module = name.removeprefix("tidelake.").replace(".", "/")
                found.setdefault(module, set()).add(_name(path).removesuffix(".py"))
    return found


# A module that only one module of its folder imports belongs into that one, or has a reason to stand alone.
# A `*` stands for one name, so a pattern of a folder is none of the folders below.
ALONE = {
    "lake/api/*": "a part of Collection or Lake, by what a caller wants; classes that users meet",
    "shard/runs/*": "one of the caches that share a budget",
    "store/*": "one kind of store, or one layer around every call, which open_stores puts together",
    "store/framed/*": "the bytes of a log, one open file, which are open, what is saved of a damaged one",
    "store/objects/*": "what one layer over the driver knows: places, options, errors, the loop",
    "store/postgres/*": "what the errors of the driver mean, without the statements that meet them",
    "cli/*": "a group of commands or what they print, loaded when it is called",
    "spark/source/*": "what Spark asks of the format for one kind of query; texts is how values are spelled",
    "cdc/dialects/fieldnumbers": "how tools write positions and times, for those that have several",
    "cdc/wire/*": "what one kind of bytes or schemas means, tried by itself",
    "cdc/*": "what is decided about rows, files or rejects, without the job that does it",
    "feeds/*": "what is decided about rows, files or rejects, without the job that does it",
    "spark/envelopes/*": "what is decided about rows, files or rejects, without the job that does it",
    "spark/jobs/*": "what is decided about rows, files or rejects, without the job that does it",
    "spark/writing/*": "what is decided about rows, files or rejects, without the job that does it",
    "spark/reading/*": "what is decided about rows, files or rejects, without the job that does it",
    "spark/statements/*": "what is decided about rows, files or rejects, without the job that does it",
    "data/kernel/codes": "an algorithm on arrays, tried by itself",
    "data/part/rowhash": "an algorithm on arrays, tried by itself",
    "data/json/base64": "an algorithm on arrays, tried by itself",
    "data/ingest/pythonrows": "what Arrow would lose of Python's objects, tried by itself",
    "data/answer/pandasframe": "which types of pandas hold which values, tried by itself",
    "state/core/batchrules": "the rules of batches and bases, apart from when they are checked",
    "state/core/namechecks": "the way from a type to the names in it, tried by itself",
    "arrangement/*": "a structure of the index, with an invariant of its own",
    "arrangement/*/*": "a structure of the index, with an invariant of its own",
    "shard/engine/fairshare": "a policy of waiting, tried by itself",
    "shard/runs/filters": "what a process keeps of filters, with a bound of its own",
    "tables/*": "one format each, which is loaded only if its library is there; the casts of types",
    "views/*": "what one clause, stage or kind of function means, tried by itself",
    "views/query/*": "what one clause, stage or kind of function means, tried by itself",
    "spark/views/*": "what Spark says of a text, and how it carries one out",
    "web/*": "what the page says, to whom, and how it listens; each is tried by itself",
    "shard/reading/durable": "the lease that outlives its process; tail is who follows with it",
    "shard/reading/readahead": "what a tail keeps for its next steps, with a bound of its own",
    "shard/writing/mergetree": "the policy of the merges of a builder, tried by itself",
    "shard/care/leftovers": "the judgement of a listing",
    "shard/care/basechecks": "bases made again and compared",
    "lake/groups/attempt": "one attempt of a transaction, with its own invariant",
    "lake/groups/draft": "what may be in a transaction",
    "lake/groups/groupwriter": "numbered transactions; most users need none",
}


def test_a_module_with_one_importer_beside_it_says_why_it_stands_alone() -> None:
    importers = _importers()
    alone = [
        module
        for module in (_name(path).removesuffix(".py") for path in MODULES)
        if len(importers.get(module, ())) == 1 and Path(*importers[module]).parent == Path(module).parent
    ]
    assert "shard/engine/fairshare" in alone
    told = {m for m in alone for p in ALONE if Path(m).match(p) and m.count("/") == p.count("/")}
    assert not {*alone} - told, "put each into its importer, or tell the reason in ALONE"


def test_tests_reach_a_shard_or_the_names_of_a_lake_by_one_door() -> None:
    door = SOURCE.parent / "tests" / "inside.py"
    found = [
        f"{path.relative_to(door.parent)}:{node.lineno}"
        for path in sorted(door.parent.rglob("*.py"))
        if path != door
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.Attribute) and node.attr in {"_shard", "_catalog"}
        if not (isinstance(node.value, ast.Name) and node.value.id == "self")
    ]
    assert not found, "take inside.shard and inside.catalog"
