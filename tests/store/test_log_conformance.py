"""What every `VersionLog` must do."""

from collections.abc import Callable
from pathlib import Path

import pytest
from store_kit import check_one_gets_each_seqno, fill

from tidelake.errors import UsageError
from tidelake.store.protocols import Entry, VersionLog


class TestLog:
    def test_a_missing_key_is_empty_and_stays_missing(self, log: VersionLog, tmp_path: Path) -> None:
        assert log.head("a") is None
        assert log.scan("a", 0) == []
        assert not log.compare_and_set("a", 0, b"x")
        assert not log.compare_and_set("a", 7, b"x")
        assert not log.delete("a")
        assert list(log.keys()) == []
        assert list(tmp_path.iterdir()) == []

    def test_seqnos_are_contiguous_from_zero(self, log: VersionLog) -> None:
        entries = fill(log, "s/1", 10)
        assert log.scan("s/1", 0) == entries
        assert log.head("s/1") == entries[-1]

    def test_another_expectation_is_a_mismatch(self, log: VersionLog) -> None:
        fill(log, "a", 3)
        for expected in (None, 0, 1, 3, 4, 2**63, 2**80):
            assert not log.compare_and_set("a", expected, b"no")
        assert log.head("a") == Entry(2, b"2")
        assert log.compare_and_set("a", 2, b"yes")

    def test_a_scan_starts_and_ends_where_it_is_told(self, log: VersionLog) -> None:
        entries = fill(log, "a", 6)
        assert log.scan("a", 2) == entries[2:]
        assert log.scan("a", 2, 3) == entries[2:5]
        assert log.scan("a", 4, 100) == entries[4:]
        assert log.scan("a", 0, 0) == []
        assert log.scan("a", 6) == []
        assert log.scan("a", 2**70, 2**70) == []
        assert log.scan("a", -5, 2**70) == entries

    def test_newer_entries_follow_one_that_was_read(self, log: VersionLog) -> None:
        entries = fill(log, "a", 6)
        assert log.newer("a", -1) == entries
        assert log.newer("a", 2) == entries[3:]
        assert log.newer("a", 2, 4) == entries[3:5]
        assert log.newer("a", 4, 4) == log.newer("a", 5) == []
        assert log.newer("a", 2, 5) == entries[3:]

    def test_no_reader_goes_on_from_what_was_truncated(self, log: VersionLog) -> None:
        entries = fill(log, "a", 6)
        log.truncate("a", 3)
        assert log.newer("a", 1) in (None, entries[2:])  # the store may remove them later
        assert log.newer("a", 2) == entries[3:]
        assert log.newer("a", 5) == []

    def test_no_reader_goes_on_from_a_deleted_key(self, log: VersionLog) -> None:
        fill(log, "a", 6)
        log.delete("a")
        assert log.newer("a", 2) is None
        assert log.newer("a", 5) is None

    def test_truncation_removes_what_is_older(self, log: VersionLog) -> None:
        entries = fill(log, "a", 6)
        assert log.truncate("a", 0) == 0
        assert log.truncate("a", 4) == 4
        assert log.truncate("a", 4) == 0
        assert log.truncate("a", 1) == 0
        assert log.scan("a", 0) == entries[4:]
        assert log.truncate("a", 5) == 1
        assert log.head("a") == entries[5]
        assert not log.compare_and_set("a", None, b"x")
        for expected in range(5):
            assert not log.compare_and_set("a", expected, b"x")
        assert log.compare_and_set("a", 5, b"6")
        assert log.scan("a", 0) == [entries[5], Entry(6, b"6")]

    def test_a_truncation_beyond_the_head_or_of_no_key_is_refused(self, log: VersionLog) -> None:
        fill(log, "a", 3)
        with pytest.raises(UsageError, match="greater than the newest entry"):
            log.truncate("a", 3)
        with pytest.raises(UsageError, match="'b'"):
            log.truncate("b", 0)
        assert len(log.scan("a", 0)) == 3
        assert log.compare_and_set("a", 2, b"goes on")

    def test_a_deleted_key_starts_anew_or_never(self, log: VersionLog) -> None:
        fill(log, "a/b", 3)
        fill(log, "a/c", 1)
        assert log.delete("a/b")
        assert not log.delete("a/b")
        assert log.head("a/b") is None
        assert list(log.keys()) == ["a/c"]
        assert not log.compare_and_set("a/b", 2, b"x")
        anew = log.compare_and_set("a/b", None, b"new")
        assert log.scan("a/b", 0) == [Entry(0, b"new")] * anew
        assert list(log.keys()) == ["a/b"] * anew + ["a/c"]

    def test_keys_ascend_and_have_the_prefix(self, log: VersionLog) -> None:
        names = ["b", "a/1", "a-b", "a/10", "a", "a.b", "a=x", "A", "a0"]
        for key in names:
            fill(log, key, 1)
        assert list(log.keys()) == sorted(names)
        assert list(log.keys("a/")) == ["a/1", "a/10"]
        assert list(log.keys("a/1")) == ["a/1", "a/10"]
        assert list(log.keys("c")) == []

    @pytest.mark.parametrize("key", ["", "..", "../x", "a//b", "/a", "a/", "ä", "a~b", "a\0", "x" * 241])
    def test_a_key_that_is_not_safe_is_refused(self, log: VersionLog, key: str) -> None:
        for call in (
            lambda: log.head(key),
            lambda: log.scan(key, 0),
            lambda: log.compare_and_set(key, None, b""),
            lambda: log.truncate(key, 0),
            lambda: log.delete(key),
        ):
            with pytest.raises(UsageError, match="bad name"):
                call()

    def test_negative_arguments_are_refused(self, log: VersionLog) -> None:
        fill(log, "a", 1)
        with pytest.raises(UsageError, match="expected=-1"):
            log.compare_and_set("a", -1, b"")
        with pytest.raises(UsageError, match="limit=-1"):
            log.scan("a", 0, -1)

    def test_the_longest_key_fits(self, log: VersionLog) -> None:
        fill(log, "x" * 240, 2)
        assert list(log.keys()) == ["x" * 240]

    def test_data_of_any_size_comes_back(self, log: VersionLog) -> None:
        big = bytes(range(256)) * 4096
        assert log.compare_and_set("a", None, b"")
        assert log.compare_and_set("a", 0, big)
        assert log.scan("a", 0) == [Entry(0, b""), Entry(1, big)]

    def test_of_eight_threads_one_gets_each_seqno(self, log: VersionLog) -> None:
        check_one_gets_each_seqno(lambda: log, 8, 15)


def test_what_was_written_is_there_after_closing(
    make_log: Callable[[str], VersionLog], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if "memory" in request.node.name:
        pytest.skip("a memory log ends with its object")
    log = make_log(str(tmp_path))
    entries = {key: fill(log, key, 5) for key in ("a", "b/c", "d")}
    log.close()
    log.close()
    again = make_log(str(tmp_path))
    assert list(again.keys()) == sorted(entries)
    assert {key: again.scan(key, 0) for key in entries} == entries
    again.close()
