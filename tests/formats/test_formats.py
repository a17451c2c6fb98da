"""The bytes of each format are read as what they were, and today's encoder gives the same ones."""

import dataclasses
import io
import json
import shutil
from dataclasses import replace
from pathlib import Path

import format_batches
import make_v1
import make_v2
import make_v3
import make_v4
import make_v5
import make_v6
import make_v7
import make_v8
import pyarrow as pa
import pytest
from format_parts import CASES, encoded, inline, plain, rows_of, stored
from format_values import (
    CLAIM,
    DELTAS,
    ERASED_DELTAS,
    ERASED_STATES,
    FIRST_STATE,
    FREED_DELTAS,
    LATER_DELTAS,
    NEWEST_DELTAS,
    RECORDS,
    RENAMED_DELTAS,
    SHARD,
    SLICED_DELTAS,
    SLICED_STATES,
    STATES,
)

from tidelake.arrangement.arrangement import Arrangement
from tidelake.arrangement.batch.cache import BlockCache
from tidelake.arrangement.batch.files import open_batch
from tidelake.arrangement.batch.keys import Keys
from tidelake.arrangement.checkpoint.checkpoint import CheckpointDirectory
from tidelake.arrangement.checkpoint.saved import Checkpoint
from tidelake.config import Config
from tidelake.data import container
from tidelake.data.events import EventColumns
from tidelake.data.inline import decode_inline
from tidelake.data.part import read_part, verify
from tidelake.errors import CorruptionError, FormatTooNew, UsageError
from tidelake.model.batch import ColumnStats, Part
from tidelake.model.frontier import Frontier
from tidelake.shard.runs.plan import Task, decode_run
from tidelake.shard.writing.batch import SentBatch
from tidelake.shard.writing.uploader import Uploader
from tidelake.shard.writing.upserter import Upserter
from tidelake.state import codec
from tidelake.state.agreed import AS_MADE
from tidelake.state.edits import Edits
from tidelake.state.state import ShardState

V1, V2, V3, V4, V5, V6 = (Path(__file__).parent / f"v{n}" for n in range(1, 7))
MODULES = (make_v1, make_v2, make_v3, make_v4, make_v5, make_v6, make_v7, make_v8)
MADE = {Path(__file__).parent / f"v{n}": made.records() for n, made in enumerate(MODULES, 1)}
NAMES = [(folder, name) for folder, made in MADE.items() for name in sorted(made)]
NAMES = [pytest.param(folder, name, id=f"{folder.name}-{name}") for folder, name in NAMES]


def expected(name, folder=V1):
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


def decoded(name, data):
    kind = RECORDS[name][0] if name in RECORDS else name.partition("-")[0]
    types = {"uploader": Uploader, "batch": SentBatch, "task": Task, "arrangement": Checkpoint}
    match kind:
        case "state":
            return codec.decode_state(data, name)
        case "delta":
            return codec.decode_delta(data, name)
        case "run":
            return decode_run(data)
        case _:
            return codec.decode_record(kind, data, types[kind], name)


@pytest.mark.parametrize("folder", MADE, ids=lambda folder: folder.name)
def test_every_kept_record_has_its_values(folder):
    kept = {path.name for path in (folder / "records").iterdir()}
    assert kept == set(MADE[folder]) == set(expected("records", folder))


FIRST_CHECKPOINT = RECORDS["arrangement"][1]
# Of a state, of its spine and of what is staged, and in none of its records.
DERIVED = {"part_names", "unmerged", "totals"}


def without_derived(found):
    """JSON without the fields that follow from others."""
    if isinstance(found, list):
        return [without_derived(item) for item in found]
    if not isinstance(found, dict):
        return found
    return {key: without_derived(item) for key, item in found.items() if key not in DERIVED}


LATER = {
    name: {
        json.dumps(without_derived(plain(getattr(one, name))))
        for one in (Edits(), FIRST_STATE, FIRST_STATE.spine, FIRST_CHECKPOINT, AS_MADE, CLAIM)
        if hasattr(one, name)
    }
    # A record has the slices among the batches, and where they end.
    for name in (*codec.SINCE, "slices")
} | {
    "slice_rows": {json.dumps(Config().slice_rows)},
    "less": {"null"},
    "hashed": {"false"},
    "renamed": {"[]"},
    "freed": {"false"},
}


def without_later(found):
    """JSON without the fields that came later, where they have nothing to say."""
    if isinstance(found, list):
        return [without_later(item) for item in found]
    if not isinstance(found, dict):
        return found
    kept = {key: item for key, item in found.items() if json.dumps(item) not in LATER.get(key, ())}
    less = {key: without_later(item) for key, item in kept.items()}
    # The usual settings of an older format.
    return {
        key: item for key, item in less.items() if key != "agreed" or item != without_later(plain(AS_MADE))
    }


@pytest.mark.parametrize(("folder", "name"), NAMES)
def test_a_record_is_read_as_what_it_was(folder, name):
    value = decoded(name, (folder / "records" / name).read_bytes())
    # By way of JSON, which has no tuples.
    found, kept = json.loads(json.dumps(plain(value))), expected("records", folder)[name]
    assert without_later(without_derived(found)) == without_later(without_derived(kept))


@pytest.mark.parametrize(("folder", "name"), NAMES)
def test_todays_encoder_gives_the_same_bytes(folder, name):
    assert MADE[folder][name] == (folder / "records" / name).read_bytes()


def test_tasks_of_the_version_of_format_4_which_say_everything_are_read_as_well():
    for name in ("task-as-of", "uploader"):
        kind, value = RECORDS[name]
        _, body = codec._record(value, whole=True)
        assert b'"slice_rows":16384' in body and (name == "uploader" or b'"less":null' in body)
        assert decoded(name, codec._header(kind, 1, body) + body) == value


def test_a_task_with_a_setting_that_is_not_as_usual_says_it():
    kind, value = RECORDS["task-as-of"]
    changed = replace(value, spec=replace(value.spec, config=Config(slice_rows=7)))
    sent = codec.encode_record(kind, changed)
    assert b'"slice_rows":7' in sent and decoded("task-as-of", sent) == changed


def test_a_worker_of_the_version_before_can_read_an_upserter_but_for_events_that_leave_values_out():
    upserter = Upserter(RECORDS["uploader"][1].spec, (), Frontier.of(3), EventColumns("seen", None))
    told = json.loads(upserter.to_bytes().partition(b"\n")[2])
    assert told["columns"] == {"order_by": "seen", "delete_column": None}
    untold = replace(upserter, columns=EventColumns(left_out="untold"))
    assert json.loads(untold.to_bytes().partition(b"\n")[2])["columns"]["left_out"] == "untold"
    assert [Upserter.from_bytes(one.to_bytes()) for one in (upserter, untold)] == [upserter, untold]


@pytest.mark.parametrize(("folder", "name"), NAMES)
def test_a_record_has_the_least_format_that_knows_its_fields(folder, name):
    head = (folder / "records" / name).read_bytes().partition(b"\n")[0]
    assert head.split(b" ")[1] == folder.name.encode()[1:]


@pytest.mark.parametrize(("folder", "name"), NAMES)
def test_a_record_of_a_newer_format_is_refused(folder, name):
    head, _, body = (folder / "records" / name).read_bytes().partition(b"\n")
    kind, _, checksum = head.split(b" ")
    newer = b" ".join((kind, b"%d" % (codec.FORMAT + 1), checksum)) + b"\n" + body
    with pytest.raises(FormatTooNew, match=f"format {codec.FORMAT + 1}"):
        decoded(name, newer)


@pytest.mark.parametrize(("folder", "name"), [one for one in NAMES if one.values[0] != V1])
def test_a_newer_field_in_a_record_of_an_older_format_is_damage(folder, name):
    _, _, body = (folder / "records" / name).read_bytes().partition(b"\n")
    kind, older = name.partition("-")[0], int(folder.name[1:]) - 1
    with pytest.raises(CorruptionError, match="does not know"):
        decoded(name, codec._header(kind, older, body) + body)


def changed_fields(values, default):
    """The fields in which some value differs from the default."""
    names = [field.name for field in dataclasses.fields(default)]
    return {name for name in names if any(getattr(v, name) != getattr(default, name) for v in values)}


def test_the_kept_records_set_every_field_of_edits_and_states():
    made = (DELTAS, LATER_DELTAS, NEWEST_DELTAS, SLICED_DELTAS, RENAMED_DELTAS, ERASED_DELTAS, FREED_DELTAS)
    deltas = [edits for deltas in made for edits in deltas.values()]
    assert changed_fields(deltas, Edits()) == {f.name for f in dataclasses.fields(Edits)}
    names = {f.name for f in dataclasses.fields(ShardState)} - DERIVED
    full = replace(SLICED_STATES["full"], erasures=ERASED_STATES["erased"].erasures, closed_ms=1)
    unset = {name for name in names if not getattr(full, name)}
    assert unset == {"dropped"} and STATES["tombstone"].dropped


def test_the_kept_records_of_the_first_format_set_all_fields_that_it_knows():
    deltas = changed_fields(DELTAS.values(), Edits())
    assert deltas == {f.name for f in dataclasses.fields(Edits)} - set(codec.SINCE)
    full = STATES["full"]
    names = {f.name for f in dataclasses.fields(ShardState)} - DERIVED
    unset = {name for name in names if not getattr(full, name)}
    # The settings of a lake that says nothing of them are the usual ones.
    assert unset | {"agreed"} == {"dropped", *names & set(codec.SINCE)} and full.agreed == AS_MADE


def test_rows_of_every_type_have_the_hashes_that_they_had():
    assert make_v6.hashes() == expected("hashes", V6)


# --- Parts ---


def stats_from(found):
    bounds = (found[side] and bytes.fromhex(found[side]["hex"]) for side in ("lower", "upper"))
    return ColumnStats(*bounds, found["null_count"])


def part_from(found):
    """A description from its JSON: what the state of an old lake gives for its part."""
    fields = {name: value for name, value in found.items() if name}
    for name in ("key_lower", "key_upper"):
        fields[name] = fields[name] and bytes.fromhex(fields[name]["hex"])
    fields["stats"] = {int(id_): stats_from(stats) for id_, stats in fields["stats"].items()}
    for name in ("time_lower", "time_upper"):
        fields[name] = tuple(fields[name]) if isinstance(fields[name], list) else fields[name]
    fields["time_counts"] = tuple(map(tuple, fields["time_counts"]))
    return Part(**fields)


@pytest.mark.parametrize("case", CASES)
def test_a_part_is_read_as_what_it_was(case):
    found, data = expected("parts")[case], (V1 / "parts" / f"{case}.parquet").read_bytes()
    part = part_from(found["part"])
    verify(data, part)
    _, schema, domain = rows_of(case)
    rows = pa.concat_batches(read_part(io.BytesIO(data), part, schema, domain, batch_rows=1000))
    assert encoded(rows) == found["rows"]
    assert encoded(rows_of(case)[0]) == found["rows"]


@pytest.mark.parametrize("case", CASES)
def test_an_inline_part_is_read_as_what_it_was_and_gives_the_same_bytes(case):
    """Inline parts had statistics of their columns once."""
    found, data = expected("parts")[case], (V1 / "parts" / f"{case}.inline").read_bytes()
    part = dataclasses.replace(part_from(found["inline"]), inline=data)
    _, schema, domain = rows_of(case)
    assert encoded(decode_inline(part, schema, domain)) == found["rows"]
    assert part.stats
    assert inline(case) == dataclasses.replace(part, stats={})


@pytest.mark.parametrize("case", CASES)
def test_the_description_of_a_part_is_the_same_but_for_the_bytes(case):
    """Parquet's bytes depend on the version of pyarrow; what the state says of the rows does not."""
    then, now = part_from(expected("parts")[case]["part"]), stored(case)[0]
    assert dataclasses.replace(now, size_bytes=then.size_bytes, checksum=then.checksum) == then


def test_the_kept_parts_have_every_type():
    kinds = {str(c.type).partition("[")[0].partition("<")[0] for c in rows_of("types")[1].columns}
    assert {"int8", "uint64", "float16", "decimal32", "decimal256", "date64", "time32", "duration"} <= kinds
    assert {"timestamp", "string", "binary", "fixed_size_binary", "bool", "list", "struct"} <= kinds
    assert len(kinds) == 28  # as many as docs/formats.md lists


def test_a_part_of_a_newer_format_is_refused(monkeypatch):
    _, schema, domain = rows_of("keys")
    with monkeypatch.context() as patch:
        patch.setattr(container, "FORMAT", 2)
        part, data = stored("keys")
    with pytest.raises(FormatTooNew, match="format 2"):
        next(read_part(io.BytesIO(data), part, schema, domain, batch_rows=10))


def test_a_kept_record_that_is_damaged_is_refused():
    data = bytearray((V1 / "records" / "delta-append").read_bytes())
    data[-2] ^= 1
    with pytest.raises(CorruptionError):
        decoded("delta-append", bytes(data))
    assert SHARD in str(expected("records")["delta-append"])


def test_the_kept_files_stay_small():
    kept = [path for folder in MADE for path in folder.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in kept) < 900_000


# --- Checkpoints of arrangements ---


def test_a_checkpoint_is_restored_as_what_it_was(tmp_path):
    shutil.copytree(V1 / "arrangement", tmp_path / "saved")
    assert make_v1.arranged(tmp_path / "saved", tmp_path) == expected("arrangement")


def test_todays_checkpoint_says_the_same_but_for_the_bytes(tmp_path):
    """Arrow's bytes depend on its version; what the list says of the rows does not."""
    make_v1.arrangement(tmp_path / "saved", tmp_path)
    then, now = (CheckpointDirectory(path).find() for path in (V1 / "arrangement", tmp_path / "saved"))

    def described(found):
        batches = tuple(dataclasses.replace(batch, size_bytes=0) for batch in found.batches)
        # Ids of arrangements came later.
        return dataclasses.replace(found, batches=batches, arrangement="")

    assert described(now) == described(then)


def test_a_checkpoint_from_before_there_were_ids_is_gone_on_from_by_who_restored_it(tmp_path):
    shutil.copytree(V1 / "arrangement", tmp_path / "saved")
    before = {path: path.read_bytes() for path in (tmp_path / "saved").rglob("*") if path.is_file()}
    with Arrangement.restore(tmp_path / "saved") as again:
        other = Arrangement.create(again.schema, key=again.key)
        with other, pytest.raises(UsageError, match="checkpoints of another arrangement"):
            other.save(tmp_path / "saved")
        assert {path: path.read_bytes() for path in before} == before
        for time in (20, 21, 22):
            again.advance_since(time)
            assert again.save(tmp_path / "saved").is_new
    with Arrangement.restore(tmp_path / "saved") as third:
        third.advance_since(23)
        assert third.save(tmp_path / "saved").is_new


def test_a_checkpoint_of_a_newer_batch_file_is_refused(tmp_path):
    shutil.copytree(V1 / "arrangement", tmp_path / "saved")
    file = min((tmp_path / "saved" / "batches").iterdir())
    data = file.read_bytes()
    file.write_bytes(data[:-12] + (2).to_bytes(4, "little") + data[-8:])
    with pytest.raises(FormatTooNew), Arrangement.restore(tmp_path / "saved", directory=tmp_path):
        pass


@pytest.mark.parametrize("kind", format_batches.KINDS)
def test_a_batch_of_an_arrangement_is_read_as_what_it_was(kind):
    of, rows = format_batches.layout(kind), format_batches.rows(kind)
    batch = open_batch(str(V1 / "batches" / f"{kind}.batch"), of, BlockCache(1 << 20), delete=False)
    assert pa.Table.from_batches(batch.scan()).equals(pa.Table.from_batches([rows]))
    assert (batch._filter.kind, batch.blocks > 1, batch.negative_rows) == (kind, True, 1)
    keys = Keys.sorted_from(rows, of)
    assert batch.may_hold(keys).all()
    assert batch.lookup(keys).equals(rows)
    batch.release()


@pytest.mark.parametrize("kind", format_batches.KINDS)
def test_a_batch_is_written_as_it_was_but_for_what_lz4_makes_of_it(kind, tmp_path):
    of = format_batches.layout(kind)
    files = (V1 / "batches" / f"{kind}.batch", format_batches.write(kind, tmp_path))
    kept, made = (open_batch(str(path), of, BlockCache(0), delete=False)._contents for path in files)
    assert made.filter.words.tolist() == kept.filter.words.tolist()
    assert (made.index.firsts, made.index.lasts) == (kept.index.firsts, kept.index.lasts)
    assert made.starts.tolist() == kept.starts.tolist()
