"""A name that was read from stored bytes leads to no other folder, whatever has written the bytes."""

import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelake.arrangement.checkpoint.saved import Checkpoint
from tidelake.errors import CorruptionError, InternalError
from tidelake.model.names import PlainName, is_object, is_plain
from tidelake.shard.engine.history import History
from tidelake.shard.runs.plan import SelectedTask, Task, decode_run
from tidelake.shard.writing.batch import SentBatch
from tidelake.shard.writing.builder import Uploader
from tidelake.shard.writing.replacement import Replacement
from tidelake.shard.writing.shufflespill import ShuffleSpill
from tidelake.shard.writing.upserter import Upserter
from tidelake.state.core import codec
from tidelake.state.core.namechecks import check_names, name_check
from tidelake.store.marker import Marker, decode_marker
from tiers import examples

RECORDS = sorted((Path(__file__).parent.parent / "formats").glob("v*/records/*"))
TYPES = {"batch": SentBatch, "task": Task, "uploader": Uploader, "arrangement": Checkpoint}
HOSTILE = (
    "../../planted/cron",
    "..",
    ".",
    "",
    "/etc/cron.d/x",
    "a/../../b",
    "a//b",
    "a\x00b",
    "~tmp/x",
    "a\n",
    "\u202ea",
    "..\\x",
    "x" * 300,
)
# Fields whose texts, or keys of whose objects, lead to objects, files or logs.
TEXTS = ("shard_id", "collection_id", "group")
KEYS = ("forks", "memberships", "latest")


def decoded(kind, data):
    match kind:
        case "state":
            return codec.decode_unchecked(data, kind)
        case "delta":
            return codec.decode_delta(data, kind)
        case "run":
            return decode_run(data)
        case _:
            codec.learn(TYPES[kind])
            return codec.decode_record(kind, data, TYPES[kind], kind)


def is_named(text, at):
    """Whether a text at a path in the JSON of a record is a name."""
    if not text:
        return False
    if text.count("/") == 2 and ("/parts/" in text or "/rollups/" in text):
        return True
    of_rollup = at[-1:] == ("id",) and at[-2:-1] in (("rollup",), ("base",))
    of_batch = at[:1] == ("batches",) and at[-1] == "name"
    of_decision = at[-2:-1] == ("members",) and isinstance(at[-1], int)
    return of_rollup or of_batch or of_decision or at[-1] in TEXTS


def with_other_names(value, name, at=()):
    """Copies of a JSON value, in each of which one name is another one."""
    match value:
        case str():
            # Without a group its id is empty.
            if is_named(value, at) and (name or at[-1] != "group"):
                yield name
        case list():
            for i, one in enumerate(value):
                for other in with_other_names(one, name, (*at, i)):
                    yield [*value[:i], other, *value[i + 1 :]]
        case dict():
            for key, one in value.items():
                if at[-1:] and (at[-1] in KEYS or is_named(key, (*at[:-1], ""))):
                    yield {name if k == key else k: v for k, v in value.items()}
                for other in with_other_names(one, name, (*at, key)):
                    yield value | {key: other}


@pytest.mark.promise(
    "A name that is read from stored or sent bytes leads to no other folder: in states, log "
    "entries, tasks, batches, checkpoints of arrangements, the marker, the catalog. A batch, and "
    "rows that Spark's tasks hand over, name objects of their shard only",
    rule=(
        "`PlainName` and `ObjectName` in `model/names.py`, where records are decoded: "
        "`state/core/namechecks.py`"
    ),
    also=[
        "::test_a_path_of_plain_names_stays_below_its_folder",
        "::test_a_forged_id_of_a_lake_or_a_shard_is_damage",
        "shard/writing/test_batches.py::test_a_batch_that_names_a_part_of_another_shard_is_refused",
        "shard/writing/test_shufflespill.py::test_only_runs_of_the_shard_are_read_or_deleted",
    ],
)
def test_no_record_with_a_forged_name_is_read():
    hostile, forged = itertools.cycle(HOSTILE), {}
    for path in RECORDS:
        head, _, body = path.read_bytes().partition(b"\n")
        kind, format_ = head.split()[0].decode().removeprefix("tidelake:"), int(head.split()[1])
        if kind not in (*TYPES, "state", "delta", "run"):
            continue
        for _ in range(2):
            for wrong in with_other_names(json.loads(body), next(hostile)):
                text = json.dumps(wrong, separators=(",", ":"), ensure_ascii=False).encode()
                data = codec._header(kind, format_, text) + text
                with pytest.raises(CorruptionError, match=r"is not (a plain name|the name of an object)"):
                    decoded(kind, data)
                forged[kind] = forged.get(kind, 0) + 1
    assert {*forged} == {*TYPES, "state", "delta", "run"} and min(forged.values()) > 2


@pytest.mark.parametrize("sent", [Replacement, SelectedTask, ShuffleSpill, Upserter])
def test_the_names_in_whatever_processes_send_each_other_are_checked(sent):
    assert name_check(sent) is not None


@settings(max_examples=examples(100))
@given(st.one_of(st.text(), st.lists(st.sampled_from(["..", ".", "", "a", "~", "\\"])).map("/".join)))
def test_a_path_of_plain_names_stays_below_its_folder(name):
    if is_object(name):
        parts = Path("/root", name).parts
        assert parts[:2] == ("/", "root") and ".." not in parts and len(parts) == 3 + name.count("/")
    assert is_plain(name) == (is_object(name) and "/" not in name)


@pytest.mark.parametrize("name", [name for name in HOSTILE if name])
def test_a_forged_id_of_a_lake_or_a_shard_is_damage(name):
    with pytest.raises(CorruptionError, match="plain name"):
        decode_marker("marker", Marker(name).encode())
    with pytest.raises(CorruptionError, match="plain name"):
        History(name, None, None)


@dataclass(frozen=True)
class Several:
    names: tuple[int | PlainName, PlainName]


@dataclass(frozen=True)
class Within:
    inner: "tuple[Inner, ...]"
    by_name: dict[PlainName, int | None]


@dataclass(frozen=True)
class Inner:
    name: PlainName | None = None
    again: "Inner | None" = None
    other: Annotated[str, "no rule"] = ".."


def test_names_are_found_wherever_a_type_has_them():
    check_names(Within((Inner("a"), Inner(None)), {"b": None}))
    for wrong in (Within((Inner("a"), Inner("")), {}), Within((), {"a/b": 1})):
        with pytest.raises(ValueError, match="is not a plain name"):
            check_names(wrong)


def test_a_type_whose_names_would_not_be_found_is_refused():
    with pytest.raises(InternalError, match="would not be found"):
        name_check(Several)


@pytest.mark.parametrize("data", [b"[" * 100_000, b"{", b"\xff", b"1" * 100_000, b""])
def test_a_marker_that_is_not_json_is_damaged(data):
    with pytest.raises(CorruptionError, match="marker"):
        decode_marker("marker", data)
