"""Damage to the files of a framed log: what was acknowledged is there, or the log says that it is damaged.

Files are copied while the log that wrote them is open, which is what a kill leaves.
"""

import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelake.errors import CorruptionError, FormatTooNew, SymbolicLink
from tidelake.store.files import SystemFiles
from tidelake.store.framed.frames import FRAME_BYTES, HEADER_BYTES, Header, Published
from tidelake.store.framed.log import FramedVersionLog
from tidelake.store.protocols import Entry
from tiers import examples, rounds

SECTOR = 512
DAMAGES = ("flip", "flip", "cut", "zero", "older log", "older end", "older record")
PLACES_LEAST = 2_000  # that a soak damages
ENTRIES = 30


def data_of(seqno: int) -> bytes:
    return Random(seqno).randbytes(12_000 if seqno % 7 == 5 else 700)


def extend(log: FramedVersionLog, key: str, *seqnos: int) -> None:
    for seqno in seqnos:
        assert log.compare_and_set(key, seqno - 1 if seqno else None, data_of(seqno))


def whole(size: int = ENTRIES) -> list[Entry]:
    return [Entry(seqno, data_of(seqno)) for seqno in range(size)]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """The files of 30 entries, some of many sectors."""
    log = FramedVersionLog(str(tmp_path / "written"))
    extend(log, "k", *range(ENTRIES))
    log.close()
    return tmp_path / "written"


def copied(place: Path, name: str) -> Path:
    copy = place.parent / name
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(place, copy)
    return copy


def ask(root: Path, key: str = "k", *, read_only: bool = False) -> "list[Entry] | CorruptionError":
    """What is in a log, asked in ways that must agree; or how it is damaged."""
    log = FramedVersionLog(str(root), read_only=read_only)
    try:
        found = log.scan(key, 0)
        assert log.head(key) == (found[-1] if found else None)
        assert log.scan(key, found[-1].seqno) == found[-1:]
        assert read_only or not log.compare_and_set(key, found[-1].seqno - 1, b"")
    except CorruptionError as error:
        return error
    finally:
        log.close()
    return found


def judge(root: Path) -> str:
    """An answer is whole, or says that the log is damaged, and changes nothing of that."""
    seen = ask(root, read_only=True)
    first = ask(root)
    if isinstance(first, list):
        assert first == whole(), f"{len(first)} of {ENTRIES} entries are left, and no error says so"
        assert isinstance(seen, list) and seen == first
        return "whole"
    assert str(root / "k") in str(first)
    again = ask(root)
    assert isinstance(again, CorruptionError), "it was damaged, and is not any more"
    assert isinstance(seen, CorruptionError), "who reads only is told as well"
    return "damaged"


def flip(path: Path, at: int, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[at % len(content)] ^= 1 << bit
    path.write_bytes(content)


def used_bytes(place: Path) -> int:
    known = Published.decode((place / "k" / "published").read_bytes())
    assert known is not None
    return known.end


@pytest.mark.promise(
    "A log that has lost acknowledged entries is damage, and never gives an older answer: a record "
    "names the newest durable entry, and is never ahead of the log",
    rule="`KeyFile.recover`, `KeyFile.entries`",
    also=[
        "::test_a_record_that_is_damaged_older_or_of_another_log_says_nothing",
        "::test_an_older_log_in_the_place_of_one_is_damage",
    ],
)
@pytest.mark.grows
def test_no_flipped_bit_hides_what_was_acknowledged(written: Path) -> None:
    size, found = used_bytes(written), set()

    @settings(max_examples=examples(2_000))
    @given(
        st.integers(0, HEADER_BYTES + FRAME_BYTES) | st.integers(0, size - 1),
        st.integers(0, 7),
        st.booleans(),
    )
    def judged(at: int, bit: int, has_record: bool) -> None:
        place = copied(written, "flipped")
        if not has_record:
            (place / "k" / "published").unlink()
        flip(place / "k" / "log", at, bit)
        if has_record or at < size - 12_000:  # what is torn at the end is not told from that without a record
            found.add(judge(place))
        else:
            assert not isinstance(ask(place), list) or ask(place) == whole(len(ask(place)))

    judged()
    assert "damaged" in found


def damage(place: Path, older: Path, how: str, draw: Random) -> None:
    """Damage a copy of the files in one place, in some way."""
    path = place / "k" / "log"
    content, at = bytearray(path.read_bytes()), draw.randrange(used_bytes(place))
    match how:
        case "flip":
            flip(path, at, draw.randrange(8))
        case "cut":
            path.write_bytes(content[:at])
        case "zero":
            start = at // SECTOR * SECTOR
            content[start : start + SECTOR] = bytes(len(content[start : start + SECTOR]))
            path.write_bytes(content)
        case "older log":
            shutil.copy(older / "k" / "log", path)
        case "older end":
            path.write_bytes(content[:at] + (older / "k" / "log").read_bytes()[at:])
        case "older record":
            shutil.copy(older / "k" / "published", place / "k" / "published")


@pytest.mark.grows
def test_no_damage_at_any_place_hides_what_was_acknowledged(
    tmp_path: Path, rng: Random, record_property: Callable[[str, object], None]
) -> None:
    log = FramedVersionLog(str(tmp_path / "written"))
    extend(log, "k", *range(10))
    older = copied(tmp_path / "written", "older")
    extend(log, "k", *range(10, ENTRIES))
    log.close()
    found: Counter[tuple[str, str]] = Counter()
    for _ in rounds(fast=0.3, full=5, soak=60, least=12, soak_until=lambda: found.total() >= PLACES_LEAST):
        place, how = copied(tmp_path / "written", "damaged"), rng.choice(DAMAGES)
        damage(place, older, how, rng)
        found[how, judge(place)] += 1
    assert {answer for how, answer in found if how.startswith("older")} == {"damaged", "whole"}
    record_property("figures", f"{found.total()} places, none of which gave a wrong answer: {dict(found)}")


@pytest.mark.grows
def test_a_record_that_is_damaged_older_or_of_another_log_says_nothing(written: Path, rng: Random) -> None:
    log = FramedVersionLog(str(written.parent / "other"))
    extend(log, "k", *range(9))
    other = (written.parent / "other" / "k" / "published").read_bytes()
    older = [other]
    for seqno in (9, 10, 11):
        extend(log, "k", seqno)
        older.append((written.parent / "other" / "k" / "published").read_bytes())
    log.close()
    for record in older[:-1]:
        (written.parent / "other" / "k" / "published").write_bytes(record)
        assert ask(written.parent / "other") == whole(12)
    for content in (b"", bytes(96), other[:-1], other):
        place = copied(written, "record")
        (place / "k" / "published").write_bytes(content)
        if content == other:
            assert isinstance(ask(place), CorruptionError) or ask(place) == whole()
        else:
            assert judge(place) == "whole"
    for _ in rounds(fast=0.5, full=5, soak=60, least=20):
        place = copied(written, "record")
        flip(place / "k" / "published", rng.randrange(96), rng.randrange(8))
        assert judge(place) == "whole"


@pytest.mark.promise(
    "Any damage to a file of a log raises `CorruptionError`, which names the file",
    rule="`damaged` in `store/framed/keyfile.py`",
    also=["::test_a_log_that_is_gone_but_for_its_record_is_damage_and_can_be_deleted"],
)
@pytest.mark.parametrize("name", ["log", "published", "lock"])
@pytest.mark.parametrize("how", ["cut", "half", "zeroed block", "gone", "pipe", "link", "folder"])
def test_a_file_that_is_cut_gone_or_something_else(written: Path, name: str, how: str) -> None:
    path = written / "k" / name
    content = path.read_bytes()
    match how:
        case "cut":
            path.write_bytes(b"")
        case "half":
            path.write_bytes(content[: len(content) // 2])
        case "zeroed block":
            middle = len(content) // 2 // SECTOR * SECTOR
            path.write_bytes(content[:middle] + bytes(SECTOR) + content[middle + SECTOR :])
        case "gone":
            path.unlink()
        case "pipe":
            path.unlink()
            os.mkfifo(path)
        case "link":
            path.rename(written / "outside")
            path.symlink_to(written / "outside")
        case "folder":
            path.unlink()
            path.mkdir()
    log = FramedVersionLog(str(written))
    if how == "link":
        with pytest.raises(SymbolicLink):
            log.compare_and_set("k", ENTRIES - 1, b"")
    elif name == "log":
        assert judge(written) == "damaged"
    elif name == "published" or how not in ("pipe", "folder"):
        assert judge(written) == "whole"
    log.close()


def test_an_older_log_in_the_place_of_one_is_damage(tmp_path: Path) -> None:
    log = FramedVersionLog(str(tmp_path / "log"))
    extend(log, "k", *range(10))
    shutil.copytree(tmp_path / "log", tmp_path / "older")
    extend(log, "k", *range(10, 20))
    log.close()
    shutil.copy(tmp_path / "older" / "k" / "log", tmp_path / "log" / "k" / "log")
    found = ask(tmp_path / "log")
    assert isinstance(found, CorruptionError) and "entry 19, which was acknowledged" in str(found)


@pytest.mark.promise(
    "Each entry continues the hash of the one before, so another log in the place of this one is damage",
    rule="`link` in `store/framed/frames.py`",
)
def test_the_log_of_another_key_in_the_place_of_one_is_damage(tmp_path: Path) -> None:
    log = FramedVersionLog(str(tmp_path))
    extend(log, "k", *range(10))
    for seqno in range(20):
        assert log.compare_and_set("other", seqno - 1 if seqno else None, b"other %d" % seqno)
    log.close()
    shutil.copy(tmp_path / "other" / "log", tmp_path / "k" / "log")
    found = ask(tmp_path)
    assert isinstance(found, CorruptionError) and "it is another log" in str(found)


def test_a_log_that_is_gone_but_for_its_record_is_damage_and_can_be_deleted(tmp_path: Path) -> None:
    log = FramedVersionLog(str(tmp_path))
    extend(log, "k", *range(3))
    log.close()
    (tmp_path / "k" / "log").unlink()
    assert isinstance(ask(tmp_path), CorruptionError)
    again = FramedVersionLog(str(tmp_path))
    with pytest.raises(CorruptionError, match="missing"):
        again.compare_and_set("k", None, b"another")
    assert list(again.keys()) == ["k"]
    assert again.delete("k")
    assert list(again.keys()) == [] and again.head("k") is None
    extend(again, "k", 0)
    again.close()


def test_a_newer_file_is_too_new(tmp_path: Path) -> None:
    log = FramedVersionLog(str(tmp_path))
    extend(log, "k", 0)
    log.close()
    path = tmp_path / "k" / "log"
    content = path.read_bytes()
    header = Header.decode(content)
    assert header is not None
    path.write_bytes(Header(header.file, 0, header.before, 2).encode() + content[HEADER_BYTES:])
    with pytest.raises(FormatTooNew, match="'k' has format 2"):
        FramedVersionLog(str(tmp_path)).head("k")


# --- What a power cut or a kill leaves ---


@pytest.mark.promise(
    "Neither a power cut nor the leftovers of a killed process are taken for damage",
    rule="`KeyFile.recover`",
    also=[
        "::test_what_a_killed_writer_left_is_taken_in_by_the_next_process",
        "::test_an_entry_whose_flush_failed_counts_only_if_it_is_flushed_later",
    ],
)
@pytest.mark.grows
def test_no_torn_write_is_taken_for_damage(written: Path) -> None:
    """Any sectors of an entry that was under way may be on the disk, with an older record or none."""
    log = FramedVersionLog(str(copied(written, "more")))
    extend(log, "k", ENTRIES)
    log.close()
    place = written.parent / "more"
    begun = (place / "k" / "log").read_bytes()
    start, end = used_bytes(written), used_bytes(place)
    before = (written / "k" / "log").read_bytes().ljust(len(begun), b"\0")

    @settings(max_examples=examples(600))
    @given(st.randoms(use_true_random=False), st.sampled_from([0.0, 0.5, 0.9]), st.booleans())
    def judged(draw: Random, rate: float, has_record: bool) -> None:
        torn = copied(written, "torn")
        content = bytearray(before)
        for at in range(start // SECTOR * SECTOR, end, SECTOR):
            if draw.random() < rate:
                content[at : at + SECTOR] = begun[at : at + SECTOR]
        cut = draw.choice([len(content), draw.randrange(start, len(content) + 1)])
        (torn / "k" / "log").write_bytes(content[:cut])
        if not has_record:
            (torn / "k" / "published").unlink()
        found = ask(torn)
        assert found in (whole(), whole(ENTRIES + 1)), found

    judged()


def test_what_a_killed_writer_left_is_taken_in_by_the_next_process(tmp_path: Path) -> None:
    log = FramedVersionLog(str(tmp_path / "log"))
    extend(log, "k", *range(5))
    record = (tmp_path / "log" / "k" / "published").read_bytes()
    for seqno in (5, 6):
        extend(log, "k", seqno)
        place = copied(tmp_path / "log", "killed")
        (place / "k" / "published").write_bytes(record)
        assert ask(place) == whole(seqno + 1)
    log.close()


class Flushes:
    def __init__(self) -> None:
        self.fails = False

    def __call__(self, descriptor: int) -> None:
        if self.fails:
            raise OSError(5, "Input/output error")
        os.fsync(descriptor)


def test_an_entry_whose_flush_failed_counts_only_if_it_is_flushed_later(tmp_path: Path) -> None:
    flushes = Flushes()
    log = FramedVersionLog(str(tmp_path), files=SystemFiles(flushes))
    extend(log, "k", *range(5))
    flushes.fails = True
    with pytest.raises(Exception, match="may have happened"):
        log.compare_and_set("k", 4, b"lost")
    assert log.head("k") == whole(5)[-1]
    flushes.fails = False
    assert log.compare_and_set("k", 4, b"again")
    assert log.head("k") == Entry(5, b"again")
    log.close()


# --- Mending ---


def mended(root: Path, starts: "tuple[int, ...]" = ()) -> "tuple[list[Entry], tuple[int, int] | None]":
    """What is left of a damaged log, and which entries are lost by what the repair says."""
    log = FramedVersionLog(str(root))
    try:
        answer = log.mend("k", starts)
        assert answer is not None
        assert log.mend("k", starts) is None
        found = log.scan("k", 0)
        assert (found[0].seqno, found[-1].seqno) == (answer.first, answer.head)
        assert log.compare_and_set("k", answer.head, b"goes on")
        assert log.truncate("k", answer.head) == len(found) - 1
    finally:
        log.close()
    assert Path(answer.kept).exists()
    again = FramedVersionLog(str(root))
    assert again.head("k") == Entry(answer.head + 1, b"goes on")
    again.close()
    return found, answer.lost


@pytest.mark.promise(
    "`fsck --repair` recovers the sound entries of a log, says which acknowledged entries are lost, "
    "and keeps the damaged file; a repair or truncation that is killed at any call loses nothing "
    "and is begun again",
    rule="`store/framed/salvage.py`, `FramedVersionLog.mend`",
    also=[
        "::test_an_entry_is_taken_back_if_the_links_beside_it_prove_it",
        "::test_of_a_damaged_log_what_a_reader_can_begin_from_is_kept",
        "::test_what_is_killed_at_any_call_loses_nothing_and_is_gone_on_with",
        "kills/test_killed_at_every_change.py::test_a_repair_of_a_log_keeps_what_is_sound",
        "lake/test_lost_tails.py::test_a_repair_takes_back_what_is_sound_and_says_what_is_lost",
    ],
)
@pytest.mark.grows
def test_what_is_sound_of_a_damaged_log_is_taken_back_and_what_is_lost_is_said(
    written: Path, rng: Random
) -> None:
    nothing_lost = 0
    for _ in rounds(fast=1, full=10, soak=60, least=10):
        place = copied(written, "flipped")
        # Without entry 0 no reader can begin.
        flip(
            place / "k" / "log",
            rng.randrange(HEADER_BYTES + FRAME_BYTES + 704, used_bytes(written)),
            rng.randrange(8),
        )
        if judge(place) == "whole":
            continue
        found, lost = mended(place)
        assert found == whole(len(found)) and (lost is None or lost == (len(found), ENTRIES - 1))
        assert (lost is None) == (len(found) == ENTRIES)
        nothing_lost += lost is None
    place = copied(written, "header")
    flip(place / "k" / "log", 9)
    assert mended(place) == (whole(), None)


@pytest.mark.parametrize("entry", [0, 1, 5, 28, 29])
@pytest.mark.parametrize("where", ["header", "data"])
def test_an_entry_is_taken_back_if_the_links_beside_it_prove_it(
    written: Path, entry: int, where: str
) -> None:
    path = written / "k" / "log"
    at = path.read_bytes().index(data_of(entry)[:64])
    flip(path, at - 30 if where == "header" else at + 3)
    assert judge(written) == "damaged"
    if where == "header":
        assert mended(written) == (whole(), None)
    elif entry:
        assert mended(written) == (whole(entry), (entry, ENTRIES - 1))
    else:
        with pytest.raises(CorruptionError, match="damaged"):
            FramedVersionLog(str(written)).mend("k", ())


@pytest.mark.parametrize("starts", [(), (20,)])
def test_of_a_damaged_log_what_a_reader_can_begin_from_is_kept(
    written: Path, starts: "tuple[int, ...]"
) -> None:
    path = written / "k" / "log"
    content = bytearray(path.read_bytes())
    at = content.index(data_of(12)[:64])
    content[at : at + 300] = bytes(300)
    path.write_bytes(content)
    found, lost = mended(written, starts)
    if starts:
        assert found == whole()[13:] and lost is None
    else:
        assert found == whole(12) and lost == (12, ENTRIES - 1)


def test_an_older_log_is_taken_for_all_there_is_only_by_a_repair(tmp_path: Path) -> None:
    log = FramedVersionLog(str(tmp_path / "log"))
    extend(log, "k", *range(10))
    shutil.copytree(tmp_path / "log", tmp_path / "older")
    extend(log, "k", *range(10, 20))
    log.close()
    shutil.copy(tmp_path / "older" / "k" / "log", tmp_path / "log" / "k" / "log")
    assert mended(tmp_path / "log") == (whole(10), (10, 19))


def test_a_log_of_which_nothing_is_sound_stays_as_it_is(tmp_path: Path) -> None:
    log = FramedVersionLog(str(tmp_path))
    extend(log, "k", *range(3))
    log.close()
    path = tmp_path / "k" / "log"
    path.write_bytes(b"no frames at all" * 1000)
    before = sorted(path.parent.iterdir())
    again = FramedVersionLog(str(tmp_path))
    with pytest.raises(CorruptionError, match="header is damaged"):
        again.mend("k", ())
    again.close()
    assert sorted(path.parent.iterdir()) == before


class Killed(BaseException):
    pass


class KillingFiles(SystemFiles):
    """Ends the process at its so-manieth call that changes something."""

    def __init__(self, left: int) -> None:
        super().__init__()
        self.left = left

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Killed


def _killing(name: str) -> Callable[..., object]:
    def call(self: KillingFiles, *arguments: object) -> object:
        self._count()
        return getattr(super(KillingFiles, self), name)(*arguments)

    return call


for _name in ("create", "pwrite", "fsync", "datasync", "link", "rename", "unlink"):
    setattr(KillingFiles, _name, _killing(_name))


@pytest.mark.parametrize("does", ["mend", "truncate"])
def test_what_is_killed_at_any_call_loses_nothing_and_is_gone_on_with(written: Path, does: str) -> None:
    if does == "mend":
        path = written / "k" / "log"
        flip(path, path.read_bytes().index(data_of(20)[:64]) + 9)
    calls = 0
    while True:
        place = copied(written, "killed")
        log = FramedVersionLog(str(place), files=KillingFiles(calls))
        try:
            _ = log.mend("k", ()) if does == "mend" else log.truncate("k", 12)
            break
        except Killed:
            calls += 1
        if does == "truncate":
            assert ask(place) in (whole(), whole()[12:])
        elif isinstance(ask(place), CorruptionError):
            assert mended(place) == (whole(20), (20, ENTRIES - 1))
        else:
            assert ask(place) == whole(20)
    assert calls > 5
