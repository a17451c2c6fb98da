"""The bytes of each format are read as what they were, and today's encoder gives the same ones."""

import dataclasses
import io
import json
import shutil
from pathlib import Path

import format_batches
import make_v1
import pyarrow as pa
import pytest
from format_parts import CASES, encoded, inline, plain, rows_of, stored
from format_values import ALL_DELTAS, ALL_RECORDS, ALL_STATES, SHARD

from tidelake.arrangement.arrangement import Arrangement
from tidelake.arrangement.batch.cache import BlockCache
from tidelake.arrangement.batch.files import open_batch
from tidelake.arrangement.batch.keys import Keys
from tidelake.arrangement.checkpoint.checkpoint import CheckpointDirectory
from tidelake.arrangement.checkpoint.saved import Checkpoint
from tidelake.data import container
from tidelake.data.inline import decode_inline
from tidelake.data.part import read_part, verify
from tidelake.errors import CorruptionError, FormatTooNew
from tidelake.model.batch import ColumnStats, Part
from tidelake.shard.runs.plan import Task, decode_run
from tidelake.shard.writing.batch import SentBatch
from tidelake.shard.writing.uploader import Uploader
from tidelake.state import codec
from tidelake.state.edits import Edits
from tidelake.state.formats import FIRST, NEWEST
from tidelake.state.state import ShardState

V1 = Path(__file__).parent / "v1"
MADE = make_v1.records()


def expected(name):
    return json.loads((V1 / f"{name}.json").read_text(encoding="utf-8"))


def decoded(name, data):
    kind = ALL_RECORDS[name][0] if name in ALL_RECORDS else name.partition("-")[0]
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


def test_every_kept_record_has_its_values():
    kept = {path.name for path in (V1 / "records").iterdir()}
    assert kept == set(MADE) == set(expected("records"))


# Of a state, of its spine and of what is staged, and in none of its records.
DERIVED = {"part_names", "unmerged", "totals"}


def without_derived(found):
    """JSON without the fields that follow from others."""
    if isinstance(found, list):
        return [without_derived(item) for item in found]
    if not isinstance(found, dict):
        return found
    return {key: without_derived(item) for key, item in found.items() if key not in DERIVED}


@pytest.mark.parametrize("name", MADE)
def test_a_record_is_read_as_what_it_was(name):
    value = decoded(name, (V1 / "records" / name).read_bytes())
    # By way of JSON, which has no tuples.
    found, kept = json.loads(json.dumps(plain(value))), expected("records")[name]
    assert without_derived(found) == without_derived(kept)


@pytest.mark.parametrize("name", MADE)
def test_todays_encoder_gives_the_same_bytes(name):
    assert MADE[name] == (V1 / "records" / name).read_bytes()


@pytest.mark.parametrize("name", MADE)
def test_a_record_has_the_least_format_that_knows_its_fields(name):
    assert MADE[name].partition(b"\n")[0].split(b" ")[1] == b"%d" % FIRST


@pytest.mark.parametrize("name", MADE)
def test_a_record_of_a_newer_format_is_refused(name):
    head, _, body = (V1 / "records" / name).read_bytes().partition(b"\n")
    kind, _, checksum = head.split(b" ")
    newer = b" ".join((kind, b"%d" % (NEWEST + 1), checksum)) + b"\n" + body
    with pytest.raises(FormatTooNew, match=f"format {NEWEST + 1}"):
        decoded(name, newer)


def changed_fields(values, default):
    """The fields in which some value differs from the default."""
    names = [field.name for field in dataclasses.fields(default)]
    return {name for name in names if any(getattr(v, name) != getattr(default, name) for v in values)}


def test_the_kept_records_set_every_field_of_edits_and_states():
    edits = [step for one in ALL_DELTAS.values() for step in one.steps]
    assert changed_fields(edits, Edits()) == {f.name for f in dataclasses.fields(Edits)}
    names = {f.name for f in dataclasses.fields(ShardState)} - DERIVED
    assert {name for name in names if not any(getattr(state, name) for state in ALL_STATES.values())} == set()


def test_rows_of_every_type_have_the_hashes_that_they_had():
    assert make_v1.hashes() == expected("hashes")


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
    kept = [path for path in V1.rglob("*") if path.is_file()]
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
        return dataclasses.replace(found, batches=batches)

    assert described(now) == described(then)


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
