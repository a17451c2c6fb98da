"""Bytes of format 1 are read as what they were, and today's are the same."""

import dataclasses
import json
import shutil
from pathlib import Path

import make_v1
import pytest
from samples import plain

import tidelake
from tidelake.arrangement.arrangement import Arrangement
from tidelake.arrangement.batch import fileformat
from tidelake.arrangement.batch.cache import BlockCache
from tidelake.arrangement.batch.files import open_batch
from tidelake.arrangement.batch.layout import Layout
from tidelake.arrangement.checkpoint.checkpoint import CheckpointDirectory
from tidelake.data.part import container
from tidelake.errors import CorruptionError, FormatTooNew, FormatTooOld
from tidelake.shard.engine.spec import decoded
from tidelake.state.core import codec
from tidelake.state.core.formats import NEWEST
from tidelake.store.marker import decode_marker

V1 = make_v1.V1
NAMES = sorted(path.name for path in (V1 / "records").iterdir())


def expected(name):
    return json.loads((V1 / f"{name}.json").read_text(encoding="utf-8"))


def decode(name, data):
    kind = name.partition("-")[0]
    return (
        codec.decode_unchecked(data, name)
        if kind == "state"
        else decoded(kind, data, make_v1.KINDS[kind], name)
    )


def within(found, kept):
    """What was found, without the fields that came after those that were kept."""
    if isinstance(kept, dict) and isinstance(found, dict) and found.get("") == kept.get(""):
        known = kept if "" in kept else found
        return {key: within(found[key], kept.get(key)) for key in known if key in found}
    if isinstance(kept, list) and isinstance(found, list) and len(kept) == len(found):
        return [within(*pair) for pair in zip(found, kept, strict=True)]
    return found


# --- Records ---


def test_a_record_of_each_kind_is_kept():
    assert (
        set(NAMES) == {*make_v1.KINDS, *(f"{kind}-least" for kind in make_v1.KINDS)} == {*expected("records")}
    )


@pytest.mark.promise(
    "Bytes of format 1 stay readable: records with every field, parts of every type",
    rule="`state/core/codec.py`, `data/part/part.py`, `store/url.py`",
    also=[
        "::test_each_field_says_something_in_a_record_that_is_kept",
        "::test_a_lake_is_read_as_what_it_was_and_goes_on",
        "::test_parts_with_rows_of_every_type_are_described_as_they_were",
    ],
)
@pytest.mark.parametrize("name", NAMES)
def test_a_record_is_read_as_what_it_was_and_gives_the_same_bytes(name):
    data = (V1 / "records" / name).read_bytes()
    value = decode(name, data)
    kept = expected("records")[name]
    assert within(json.loads(json.dumps(plain(value))), kept) == kept
    assert make_v1.encode(name.partition("-")[0], value) == data


@pytest.mark.parametrize("name", NAMES)
def test_a_record_of_another_format_or_a_damaged_one_is_refused(name):
    data = (V1 / "records" / name).read_bytes()
    with pytest.raises(FormatTooNew, match=f"format {NEWEST + 1}"):
        decode(name, data.replace(b" 1 ", b" %d " % (NEWEST + 1), 1))
    for number in (1, 8):
        with pytest.raises(FormatTooOld, match="unreleased version"):
            decode(name, data.replace(b"tidelake:", b"tidelake-", 1).replace(b" 1 ", b" %d " % number, 1))
    with pytest.raises(CorruptionError, match="checksum"):
        decode(name, data[:-2] + bytes([data[-2] ^ 1]) + data[-1:])


def told_fields(value, told):
    """The fields in a value that do not have their default, by type."""
    if dataclasses.is_dataclass(value):
        for one in dataclasses.fields(value):
            part = getattr(value, one.name)
            usual = one.default if one.default_factory is dataclasses.MISSING else one.default_factory()
            told.setdefault((type(value), one.name), False)
            told[type(value), one.name] |= usual is dataclasses.MISSING or part != usual
            told_fields(part, told)
    elif hasattr(value, "values"):
        told_fields(list(value.values()), told)
    elif isinstance(value, list | tuple):
        for one in value:
            told_fields(one, told)
    return told


def test_each_field_says_something_in_a_record_that_is_kept():
    kept = [decode(name, (V1 / "records" / name).read_bytes()) for name in make_v1.KINDS]
    silent = {(type_.__name__, name) for (type_, name), told in told_fields(kept, {}).items() if not told}
    # Settings are as usual but for one; no record can tell of a lake of a later format.
    assert {one for one in silent if one[0] != "Config"} == {("Agreed", "format")}


# --- Other texts and bytes ---


def texts(prefix):
    return [path.read_bytes() for path in sorted((V1 / "texts").glob(f"{prefix}*"))]


def test_texts_are_written_as_they_were():
    for name, data in make_v1.texts().items():
        assert (V1 / "texts" / name).read_bytes() == data


def test_markers_are_read_as_what_they_were():
    found = [decode_marker("x", data) for data in texts("marker")]
    assert [one.encode() for one in found] == texts("marker")
    assert [(one.log, one.place, one.grace_s) for one in found] == [
        ("files", "", 0), ("objects", "s3://b/p", 600), ("postgres", "s3://b/p", 0)
    ]  # fmt: skip


def test_texts_of_spark_are_read_as_what_they_were():
    pytest.importorskip("pyspark")
    from tidelake.cdc.times.heldevents import split
    from tidelake.feeds.answers import decoded_answer
    from tidelake.spark.source.offsets import from_json

    assert [from_json(json.loads(data)) for data in texts("offset")] == make_v1.offsets()
    assert [split(data.decode())[1] for data in texts("surveyed")] == make_v1.held()
    found = [split(data.decode())[1] for data in texts("held")]
    for one, known in zip(found, make_v1.held(), strict=True):
        assert (one.progress, one.rows, one.objects) == (known.progress, known.rows, known.objects)
        assert not one.is_surveyed and all(span.first < 0 for span in one.spans)
    answer = dataclasses.replace(make_v1.answer(), taken_bytes=0)
    assert decoded_answer(*texts("answer")) == (answer, "fault")


# --- A lake ---


def test_a_lake_is_read_as_what_it_was_and_goes_on(tmp_path):
    place = tmp_path / "lake"
    shutil.copytree(V1 / "lake", place)
    found = json.loads(json.dumps(make_v1.contents(place)))
    kept = expected("lake")
    assert found.keys() == kept.keys()
    for name in kept:
        assert within(found[name], kept[name]) == kept[name]
    with tidelake.open(place, create=False) as opened:
        assert opened.upgrade().before == 1
        for name in ("orders", "fork", "history", "a"):
            c = opened.collection(name)
            before = c.snapshot().read_all().select(c.schema.names)
            c.append(before.slice(0, 1))
            c.maintain()
            assert c.snapshot().read_all().select(c.schema.names) == before
        assert opened.fsck().clean


def test_parts_with_rows_of_every_type_are_described_as_they_were(tmp_path):
    shutil.copytree(V1 / "lake", tmp_path / "kept")
    make_v1.every_types(tmp_path / "made")
    made = make_v1.described(tmp_path / "made")
    assert json.loads(json.dumps(made)) == expected("parts")
    assert json.loads(json.dumps(make_v1.described(tmp_path / "kept"))) == expected("parts")


def test_a_part_of_a_newer_format_is_refused(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(container, "FORMAT", 2)
        make_v1.every_types(tmp_path / "made")
    with tidelake.open(tmp_path / "made") as opened, pytest.raises(FormatTooNew, match="format 2"):
        opened.collection("keys stored").snapshot().read_all()


# --- Checkpoints of arrangements ---


@pytest.fixture
def saved(tmp_path):
    shutil.copytree(V1 / "arrangement", tmp_path / "saved")
    return tmp_path / "saved"


def batches(saved):
    """The batch files of a checkpoint."""
    found = CheckpointDirectory(saved).find()
    layout = Layout(found.schema, found.domain)
    paths = [saved / "batches" / batch.name for batch in found.batches]
    return [open_batch(str(path), layout, BlockCache(0), delete=False) for path in paths]


def test_a_checkpoint_is_restored_as_what_it_was_and_goes_on(saved, tmp_path):
    assert make_v1.arranged(saved, tmp_path) == expected("arrangement")
    with Arrangement.restore(saved) as again:
        again.advance_since(20)
        assert again.save(saved).is_new


def test_todays_checkpoint_says_the_same_but_for_what_lz4_makes_of_the_rows(saved, tmp_path):
    """The compressed bytes depend on the version of Arrow."""
    made = tmp_path / "made"
    make_v1.arrangement(made, tmp_path)

    def described(path):
        found = CheckpointDirectory(path).find()
        return dataclasses.replace(
            found, batches=[dataclasses.replace(one, size_bytes=0) for one in found.batches]
        )

    assert described(made) == described(saved)
    kinds, blocks = set(), 0
    for then, now in zip(batches(saved), batches(made), strict=True):
        assert now._filter.words.tolist() == then._filter.words.tolist()
        assert (now._contents.index.firsts, now._contents.index.lasts) == (
            then._contents.index.firsts, then._contents.index.lasts
        )  # fmt: skip
        assert now._contents.starts.tolist() == then._contents.starts.tolist()
        kinds.add(now._filter.kind)
        blocks = max(blocks, now.blocks)
    assert kinds == {"bitmap", "bloom"} and blocks > 1


@pytest.mark.parametrize(("number", "error"), [(2, FormatTooNew), (0, CorruptionError)])
def test_a_checkpoint_with_a_batch_file_of_another_format_is_refused(saved, tmp_path, number, error):
    file = min((saved / "batches").iterdir())
    data = file.read_bytes()
    at = -len(fileformat.MAGIC) - 4
    file.write_bytes(data[:at] + number.to_bytes(4, "little") + fileformat.MAGIC)
    with pytest.raises(error), Arrangement.restore(saved, directory=tmp_path):
        pass


def test_the_kept_files_stay_small():
    assert sum(path.stat().st_size for path in Path(V1).rglob("*") if path.is_file()) < 1_200_000
