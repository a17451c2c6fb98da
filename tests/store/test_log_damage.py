"""Damage to the files of a log: what was acknowledged is there, or the log says that it is damaged.

Files are copied while the log that wrote them is open, which is what a crash leaves.
"""

import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelake.errors import CorruptionError, TidelakeError
from tidelake.store import wal
from tidelake.store.protocols import Entry
from tidelake.store.sqlite import SqliteVersionLog
from tidelake.store.sqlite_database import note, witness_of
from tidelake.store.witness import LINK_BYTES, Acknowledged
from tiers import examples, rounds

SECTOR = 512


def data_of(seqno: int, size: int = 700) -> bytes:
    return Random(seqno).randbytes(size)


def extend(log: SqliteVersionLog, key: str, *seqnos: int, size: int = 700) -> None:
    for seqno in seqnos:
        assert log.compare_and_set(key, seqno - 1 if seqno else None, data_of(seqno, size))


@pytest.fixture
def crashed(tmp_path: Path) -> Path:
    """The files of 30 entries, some of several pages, as a crash leaves them."""
    log = SqliteVersionLog(str(tmp_path / "before"))
    for seqno in range(30):
        extend(log, "k", seqno, size=12_000 if seqno % 7 == 5 else 700)
    shutil.copytree(tmp_path / "before", tmp_path / "crashed")
    log.close()
    return tmp_path / "crashed"


def file_of(root: Path, suffix: str, key: str = "k") -> Path:
    (found,) = (root / key).glob(f"*{suffix}")
    return found


def ask(root: Path, key: str = "k") -> "list[Entry] | CorruptionError":
    """What is in a log, asked in three ways that must agree; or how it is damaged."""
    log = SqliteVersionLog(str(root))
    try:
        found = log.scan(key, 0)
        assert log.head(key) == (found[-1] if found else None)
        assert log.scan(key, found[-1].seqno) == found[-1:]
        assert not log.compare_and_set(key, found[-1].seqno - 1, b"")
    except CorruptionError as error:
        return error
    finally:
        log.close()
    return found


def whole(size: int = 30) -> list[Entry]:
    return [Entry(seqno, data_of(seqno, 12_000 if seqno % 7 == 5 else 700)) for seqno in range(size)]


def judge(root: Path, *, may_be_older: bool = False) -> str:
    """An answer is whole, or says that the log is damaged, and changes nothing of that."""
    first = ask(root)
    if isinstance(first, list):
        entries = first
        if not may_be_older:
            assert entries == whole(), f"of 30 entries {len(entries)} are left, and no error says so"
        else:
            assert entries in (whole(), whole(29))
        return "whole" if len(entries) == 30 else "older"
    assert str(root / "k") in str(first)
    again = ask(root)
    assert isinstance(again, CorruptionError), "it was damaged, and is not any more"
    return "damaged"


def flipped(path: Path, at: int, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[at % len(content)] ^= 1 << bit
    path.write_bytes(content)


def each_copy(crashed: Path, name: str) -> Path:
    place = crashed.parent / name
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(crashed, place)
    return place


@pytest.mark.grows
def test_no_flipped_bit_in_the_write_ahead_log_hides_what_was_acknowledged(crashed: Path) -> None:
    size = file_of(crashed, "-wal").stat().st_size
    found = set()
    heads = [32 + 4120 * frame + at for frame in (0, 3, size // 4120 - 1) for at in (0, 5, 9, 17)]

    @settings(max_examples=examples(1_000))
    @given(st.sampled_from([0, 9, 17, 25, *heads]) | st.integers(0, size - 1), st.integers(0, 7))
    def judged(at: int, bit: int) -> None:
        place = each_copy(crashed, "flipped")
        flipped(file_of(place, "-wal"), at, bit)
        found.add(judge(place))

    judged()
    assert "damaged" in found


@pytest.mark.grows
def test_without_a_witness_damage_before_the_last_transaction_is_seen(crashed: Path) -> None:
    content = file_of(crashed, "-wal").read_bytes()
    with wal.open_wal(str(file_of(crashed, "-wal"))) as file:
        header = wal.read_header(content[:32])
        assert header is not None
        commits = [frame.start for frame in wal.frames(file, header) if frame.commits]
    file_of(crashed, ".witness").unlink()

    @settings(max_examples=examples(500))
    @given(st.integers(0, len(content) - 1), st.integers(0, 7))
    def judged(at: int, bit: int) -> None:
        place = each_copy(crashed, "flipped")
        flipped(file_of(place, "-wal"), at, bit)
        # What the last two transactions may look like after a power cut is not told from that.
        seen = judge(place, may_be_older=at >= commits[-2])
        assert at >= commits[-2] or seen == "damaged"

    judged()


@pytest.mark.grows
def test_no_flipped_bit_in_a_database_or_its_witness_hides_what_was_acknowledged(crashed: Path) -> None:
    log = SqliteVersionLog(str(crashed))
    assert log.scan("k", 0) == whole()
    log.close()  # all pages are in the database now
    sizes = {suffix: file_of(crashed, suffix).stat().st_size for suffix in (".db", ".witness")}

    @settings(max_examples=examples(1_500))
    @given(st.sampled_from([*sizes]), st.integers(0, 2**30), st.integers(0, 7))
    def judged(suffix: str, at: int, bit: int) -> None:
        place = each_copy(crashed, "flipped")
        flipped(file_of(place, suffix), at, bit)
        seen = judge(place)
        assert suffix == ".db" or seen == "whole", "a torn witness says nothing"

    judged()


@pytest.mark.parametrize("suffix", ["-wal", ".db", ".witness", "-shm"])
@pytest.mark.parametrize("how", ["cut", "half", "zeroed block", "gone", "pipe", "link", "folder"])
def test_a_file_that_is_cut_gone_or_something_else(crashed: Path, suffix: str, how: str) -> None:
    path = file_of(crashed, suffix)
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
            path.rename(crashed / "outside")
            path.symlink_to(crashed / "outside")
        case "folder":
            path.unlink()
            path.mkdir()
    seen = judge(crashed)
    if suffix == "-wal" or (suffix == ".db" and how in ("cut", "gone", "pipe", "link", "folder")):
        assert seen == "damaged"
    harmless = {".witness": how != "link", "-shm": how in ("cut", "half", "zeroed block", "gone")}
    if harmless.get(suffix):
        assert seen == "whole"


@pytest.mark.parametrize("suffix", ["-wal", ".db"])
def test_an_older_file_in_the_place_of_one_is_damage(tmp_path: Path, suffix: str) -> None:
    log = SqliteVersionLog(str(tmp_path / "log"))
    extend(log, "k", *range(10))
    shutil.copytree(tmp_path / "log", tmp_path / "older")
    extend(log, "k", *range(10, 20))
    shutil.copytree(tmp_path / "log", tmp_path / "newer")
    log.close()
    shutil.copy(file_of(tmp_path / "older", suffix), file_of(tmp_path / "newer", suffix))
    found = ask(tmp_path / "newer")
    if suffix == "-wal":
        assert isinstance(found, CorruptionError) and "ends at entry 9, but entry 19 was" in str(found)
    else:  # the write-ahead log has all of it
        assert isinstance(found, list) and len(found) == 20


def test_nothing_is_appended_to_a_log_that_has_lost_what_was_acknowledged(tmp_path: Path) -> None:
    log = SqliteVersionLog(str(tmp_path))
    extend(log, "k", *range(10))
    # Another process has acknowledged entries, and this one does not see them.
    note(str(file_of(tmp_path, ".db")), Acknowledged(19, bytes(LINK_BYTES)))
    with pytest.raises(CorruptionError, match="ends at entry 9, but entry 19 was"):
        log.compare_and_set("k", 9, b"ten")
    log.close()


def test_the_log_of_another_key_in_the_place_of_one_is_damage(tmp_path: Path) -> None:
    log = SqliteVersionLog(str(tmp_path))
    extend(log, "k", *range(10))
    for seqno in range(20):
        assert log.compare_and_set("other", seqno - 1 if seqno else None, b"other %d" % seqno)
    log.close()
    shutil.copy(file_of(tmp_path, ".db", "other"), file_of(tmp_path, ".db"))
    found = ask(tmp_path)
    assert isinstance(found, CorruptionError) and "is not the one that was acknowledged" in str(found)


def test_a_log_is_believed_without_a_witness_with_an_older_one_and_with_that_of_another(
    tmp_path: Path,
) -> None:
    log = SqliteVersionLog(str(tmp_path / "log"))
    extend(log, "k", *range(5))
    extend(log, "other", *range(9))
    witness = file_of(tmp_path / "log", ".witness")
    older = witness.read_bytes()
    extend(log, "k", *range(5, 8))
    other = file_of(tmp_path / "log", ".witness", "other").read_bytes()
    log.close()
    for content in (older, other, older[:-1], b"", bytes(48)):
        witness.write_bytes(content)
        found = ask(tmp_path / "log")
        assert isinstance(found, list) and len(found) == 8
    witness.unlink()
    again = SqliteVersionLog(str(tmp_path / "log"))
    assert len(again.scan("k", 0)) == 8 and not witness.exists()
    assert again.truncate("k", 6) == 6
    extend(again, "k", 8)
    again.close()
    assert witness.read_bytes()[8:16] == (8).to_bytes(8, "big")
    found = ask(tmp_path / "log")
    assert isinstance(found, list) and [entry.seqno for entry in found] == [6, 7, 8]


def change(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA writable_schema = ON")
    connection.execute(statement)
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entries SET data = CAST(data AS TEXT) WHERE seqno = {}",
        "UPDATE entries SET data = 'plain text' WHERE seqno = {}",
        "UPDATE entries SET data = 1.5 WHERE seqno = {}",
        "UPDATE entries SET data = 7 WHERE seqno = {}",
        "UPDATE entries SET data = x'00' WHERE seqno = {}",
        "UPDATE entries SET link = x'00' WHERE seqno = {}",
        "UPDATE entries SET link = NULL WHERE seqno = {}",
        "UPDATE entries SET link = 1 WHERE seqno = {}",
        "UPDATE entries SET seqno = -5 WHERE seqno = {}",
        "DELETE FROM entries WHERE seqno >= {}",
        "DELETE FROM entries",
        "DROP TABLE entries",
        "PRAGMA user_version = 0",
        "PRAGMA application_id = 1",
        "UPDATE sqlite_master SET sql = 'CREATE TABLE entries (seqno, data, link)'",
        "UPDATE sqlite_master SET sql = CAST(x'435245FF' AS TEXT)",
        "UPDATE sqlite_master SET rootpage = 7",
        "INSERT INTO entries (seqno, data) VALUES (9223372036854775807, x'00')",
    ],
)
@pytest.mark.parametrize("seqno", [0, 4, 9])
def test_no_raw_error_comes_of_a_damaged_table(tmp_path: Path, statement: str, seqno: int) -> None:
    log = SqliteVersionLog(str(tmp_path))
    extend(log, "k", *range(10))
    log.close()
    path = file_of(tmp_path, ".db")
    change(path, statement.format(seqno))
    if "-5" in statement and seqno == 0:
        return  # what is left looks like a log that was truncated, and a reader of entry 0 misses it
    again = SqliteVersionLog(str(tmp_path))
    with pytest.raises(CorruptionError, match=str(path)):
        again.scan("k", 0)
    calls: list[Callable[[], object]] = [
        lambda: again.head("k"),
        lambda: again.scan("k", seqno, 1),
        lambda: again.compare_and_set("k", 9, b"x"),
        lambda: again.truncate("k", 3),
        lambda: again.delete("k"),
    ]
    for call in calls:
        try:
            call()
        except TidelakeError:
            continue
    again.close()


def test_a_log_that_is_gone_but_for_its_witness_is_damage_and_can_be_deleted(tmp_path: Path) -> None:
    log = SqliteVersionLog(str(tmp_path))
    extend(log, "k", *range(3))
    log.close()
    file_of(tmp_path, ".db").unlink()
    assert isinstance(ask(tmp_path), CorruptionError)
    again = SqliteVersionLog(str(tmp_path))
    with pytest.raises(CorruptionError, match="missing"):
        again.compare_and_set("k", None, b"another")
    assert list(again.keys()) == ["k"]
    assert again.delete("k")
    assert list(again.keys()) == [] and again.head("k") is None
    extend(again, "k", 0)
    again.close()


# --- Power cuts ---


@pytest.mark.grows
def test_no_power_cut_is_taken_for_damage(tmp_path: Path) -> None:
    """After any number of commits, any sectors of what came since the last flush may be on the disk."""
    log = SqliteVersionLog(str(tmp_path / "log"))
    extend(log, "k", 0, 1, size=300)
    flushed = tmp_path / "0"
    shutil.copytree(tmp_path / "log", flushed)
    states = [(1, (tmp_path / "log" / "k").iterdir(), flushed)]
    sizes = [300, 9_000, 300, 30_000, 300, 300, 5_000, 300]
    for number, size in enumerate(sizes, 2):
        extend(log, "k", number, size=size)
        shutil.copytree(tmp_path / "log", tmp_path / str(number - 1))
        states.append((number, (tmp_path / "log" / "k").iterdir(), tmp_path / str(number - 1)))
    log.close()
    sides = [place for _, _, place in states]

    @settings(max_examples=examples(600))
    @given(
        st.integers(1, len(sides) - 1), st.randoms(use_true_random=False), st.sampled_from([0.0, 0.5, 0.9])
    )
    def judged(after: int, draw: Random, rate: float) -> None:
        before, begun = sides[after - 1], sides[after]
        place = each_copy(before, "cut")
        # Some sectors of the frames of the transaction that was under way, and perhaps an older witness.
        old, new = file_of(before, "-wal").read_bytes(), file_of(begun, "-wal").read_bytes()
        content = bytearray(old.ljust(len(new), b"\0"))
        for start in range(0, len(new), SECTOR):
            if draw.random() < rate:
                content[start : start + SECTOR] = new[start : start + SECTOR]
        file_of(place, "-wal").write_bytes(
            content[: draw.choice([len(content), draw.randrange(len(old), len(new) + 1)])]
        )
        file_of(place, "-shm").unlink()
        witness = file_of(place, ".witness")
        witness.write_bytes(
            draw.choice([witness.read_bytes(), file_of(sides[0], ".witness").read_bytes(), b""])
        )
        found = ask(place)
        assert isinstance(found, list), found
        assert len(found) in (after + 1, after + 2)

    judged()


def test_what_is_left_of_transactions_that_failed_is_not_taken_for_damage(tmp_path: Path) -> None:
    """They are written over from their beginning, so their last frames stay, and the one that commits."""
    log = SqliteVersionLog(str(tmp_path / "log"))
    extend(log, "k", 0, 1, 2, size=300)
    shutil.copytree(tmp_path / "log", tmp_path / "start")
    log.close()
    failed = []
    for number, size in enumerate((40_000, 25_000, 12_000)):
        place = tmp_path / f"failed{number}"
        shutil.copytree(tmp_path / "start", place)
        one = SqliteVersionLog(str(place))
        assert one.compare_and_set("k", 2, bytes([number]) * size)
        failed.append(file_of(place, "-wal").read_bytes())
        one.close()
    place = tmp_path / "start"
    log = SqliteVersionLog(str(place))
    extend(log, "k", 3, size=300)
    content = file_of(place, "-wal").read_bytes()
    shutil.copytree(place, tmp_path / "crashed")
    log.close()
    for layer in sorted(failed, key=len):
        content += layer[len(content) :]
    path = file_of(tmp_path / "crashed", "-wal")
    path.write_bytes(content)
    assert wal.lost(str(path)) is None
    found = ask(tmp_path / "crashed")
    assert isinstance(found, list) and len(found) == 4


def test_frames_of_an_earlier_generation_count_for_nothing(tmp_path: Path) -> None:
    log = SqliteVersionLog(str(tmp_path / "log"))
    extend(log, "k", *range(20))
    connection = log._pool._handles["k"].database.connection  # type: ignore[union-attr]
    assert connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()[0] == 0
    extend(log, "k", 20)
    shutil.copytree(tmp_path / "log", tmp_path / "crashed")
    log.close()
    path = file_of(tmp_path / "crashed", "-wal")
    assert path.stat().st_size > 10 * 4120 and wal.lost(str(path)) is None
    found = ask(tmp_path / "crashed")
    assert isinstance(found, list) and len(found) == 21


# --- Format 1 ---


def make_format_1(path: Path, entries: int) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA application_id = 0x71DE1A4E")
    connection.execute("PRAGMA user_version = 1")
    connection.execute("CREATE TABLE entries (seqno INTEGER PRIMARY KEY, data BLOB NOT NULL)")
    for seqno in range(entries):
        connection.execute("INSERT INTO entries VALUES (?, ?)", (seqno, data_of(seqno)))
    connection.execute("PRAGMA journal_mode = WAL")
    connection.close()


def test_a_log_of_format_1_is_read_and_goes_on_with_links(tmp_path: Path) -> None:
    (tmp_path / "k").mkdir()
    path = tmp_path / "k" / "0123.db"
    make_format_1(path, 5)
    logs = [SqliteVersionLog(str(tmp_path)) for _ in range(2)]
    for log in logs:
        assert log.scan("k", 0) == [Entry(seqno, data_of(seqno)) for seqno in range(5)]
        assert log.head("k") == Entry(4, data_of(4))
    assert not os.path.exists(witness_of(str(path)))
    extend(logs[0], "k", 5)
    extend(logs[1], "k", 6)
    extend(logs[0], "k", 7)
    for log in logs:
        assert log.scan("k", 3) == [Entry(seqno, data_of(seqno)) for seqno in range(3, 8)]
        log.close()
    change(path, "UPDATE entries SET data = (SELECT data FROM entries WHERE seqno = 1) WHERE seqno = 6")
    assert isinstance(ask(tmp_path), CorruptionError)


# --- Mending ---


def mended(root: Path, starts: "tuple[int, ...]" = ()) -> "tuple[list[Entry], tuple[int, int] | None]":
    """What is left of a damaged log, and which entries are lost by what the repair says."""
    log = SqliteVersionLog(str(root))
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
    again = SqliteVersionLog(str(root))
    assert again.head("k") == Entry(answer.head + 1, b"goes on")
    again.close()
    return found, answer.lost


@pytest.mark.grows
def test_what_is_sound_of_a_damaged_write_ahead_log_is_taken_back_and_what_is_lost_is_said(
    crashed: Path, rng: Random
) -> None:
    size = file_of(crashed, "-wal").stat().st_size
    nothing_lost = 0
    for _ in rounds(fast=2, full=10, soak=60, least=10):
        place = each_copy(crashed, "flipped")
        flipped(file_of(place, "-wal"), rng.randrange(size), rng.randrange(8))
        if judge(place) == "whole":
            continue
        found, lost = mended(place)
        assert found == whole(len(found)) and (lost is None or lost == (len(found), 29))
        assert (lost is None) == (len(found) == 30)
        nothing_lost += lost is None
    assert nothing_lost, "later frames hold the pages of a damaged one, mostly"


@pytest.mark.parametrize("entry", [0, 1, 5, 28])
def test_an_entry_that_was_changed_is_not_taken_back(crashed: Path, entry: int) -> None:
    path = file_of(crashed, "-wal")
    # The newest copy of it.
    flipped(path, path.read_bytes().rindex(data_of(entry)[:64]) + 3)
    assert judge(crashed) == "damaged"
    found, lost = mended(crashed)
    assert found == whole(len(found)) and lost == (None if len(found) == 30 else (len(found), 29))


def test_a_page_number_beyond_what_was_ever_written_needs_no_room(crashed: Path) -> None:
    path = file_of(crashed, "-wal")
    content = bytearray(path.read_bytes())
    frame = 32 + (len(content) - 32) // 4120 // 2 * 4120
    content[frame : frame + 4] = (0xFFFFFF).to_bytes(4, "big")  # 64 GiB
    path.write_bytes(content)
    found, _ = mended(crashed)
    assert found == whole(len(found))


def test_an_older_write_ahead_log_is_taken_for_all_there_is_only_by_a_repair(tmp_path: Path) -> None:
    log = SqliteVersionLog(str(tmp_path / "log"))
    extend(log, "k", *range(10))
    shutil.copytree(tmp_path / "log", tmp_path / "older")
    extend(log, "k", *range(10, 20))
    shutil.copytree(tmp_path / "log", tmp_path / "newer")
    log.close()
    shutil.copy(file_of(tmp_path / "older", "-wal"), file_of(tmp_path / "newer", "-wal"))
    found, lost = mended(tmp_path / "newer")
    assert found == [Entry(seqno, data_of(seqno)) for seqno in range(10)] and lost == (10, 19)


@pytest.mark.parametrize("starts", [(), (20,)])
def test_of_a_damaged_database_what_a_reader_can_begin_from_is_kept(
    tmp_path: Path, starts: "tuple[int, ...]"
) -> None:
    log = SqliteVersionLog(str(tmp_path))
    extend(log, "k", *range(30))
    log.close()
    path = file_of(tmp_path, ".db")
    content = bytearray(path.read_bytes())
    at = content.index(data_of(12)) // 4096 * 4096
    content[at : at + 4096] = bytes(4096)
    path.write_bytes(content)
    assert isinstance(ask(tmp_path), CorruptionError)
    found, lost = mended(tmp_path, starts)
    if starts:
        assert found[-1] == Entry(29, data_of(29)) and found[0].seqno <= 21 and lost is None
    else:
        assert found == [Entry(seqno, data_of(seqno)) for seqno in range(len(found))] and lost == (
            len(found),
            29,
        )


def test_a_log_of_which_nothing_is_sound_stays_as_it_is(tmp_path: Path) -> None:
    log = SqliteVersionLog(str(tmp_path))
    extend(log, "k", *range(3))
    log.close()
    path = file_of(tmp_path, ".db")
    path.write_bytes(b"no database" * 1000)
    before = sorted(path.parent.iterdir())
    again = SqliteVersionLog(str(tmp_path))
    with pytest.raises(CorruptionError, match="not a database"):
        again.mend("k", ())
    again.close()
    assert sorted(path.parent.iterdir()) == before


def test_a_repair_that_is_killed_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    log = SqliteVersionLog(str(tmp_path / "log"))
    extend(log, "k", *range(10))
    log.close()
    path = file_of(tmp_path / "log", ".db")
    change(path, "DELETE FROM entries WHERE seqno > 6")
    rename = os.rename
    for steps in range(3):
        place = each_copy(tmp_path / "log", f"killed{steps}")
        left = steps

        def killing(old: str, new: str) -> None:
            nonlocal left
            if not left:
                raise Killed
            left -= 1
            rename(old, new)

        monkeypatch.setattr(os, "rename", killing)
        one = SqliteVersionLog(str(place))
        with pytest.raises(Killed):
            one.mend("k", ())
        one.close()
        monkeypatch.setattr(os, "rename", rename)
        assert isinstance(ask(place), CorruptionError)
        found, lost = mended(place)
        assert found == [Entry(seqno, data_of(seqno)) for seqno in range(7)] and lost == (7, 9)
