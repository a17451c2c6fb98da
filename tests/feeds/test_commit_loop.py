"""When a write of Spark is tried again."""

from pathlib import Path

import pytest

from tidelake.errors import UpdateBeforeLower, UploadExpired, UpperMismatch
from tidelake.feeds.loop import CommitPoint, TriedWrite, committed
from tidelake.model.frontier import Frontier

SOURCE = Path(__file__).parents[2] / "src" / "tidelake"


class Told(TriedWrite[str]):
    """An attempt that is told what is there, and what each try comes to."""

    def __init__(self, newest: list[int], tries: list[Exception | str], **how: bool) -> None:
        self._newest, self._tries, self.tried = iter(newest), iter(tries), list[int]()
        self.forgot = 0
        self.fixed, self.remakes = how.get("fixed", False), how.get("remakes", True)

    def newest(self) -> CommitPoint:
        return CommitPoint(Frontier.of(0), next(self._newest))

    def once(self, at: CommitPoint) -> str:
        self.tried.append(at.seqno)
        match next(self._tries):
            case str(done):
                return done
            case error:
                raise error

    def forget(self) -> None:
        self.forgot += 1


CONFLICTS = (UpperMismatch(1, 2), UpdateBeforeLower(1, 2))


@pytest.mark.promise(
    "A write that another writer outruns is tried again on what is new, whichever way it comes; an "
    "error that no other writer has caused is the caller's",
    rule="`committed` in `feeds/loop.py`",
    also=[
        "::test_an_error_that_no_other_writer_has_caused_is_the_callers",
        "::test_there_is_one_commit_loop",
    ],
)
@pytest.mark.parametrize("error", CONFLICTS)
def test_it_is_tried_again_on_what_is_new(error: Exception) -> None:
    told = Told([1, 2, 4], [error, error, "in"])
    assert committed(told) == "in" and told.tried == [1, 2, 4] and not told.forgot


@pytest.mark.parametrize("error", CONFLICTS)
def test_an_error_that_no_other_writer_has_caused_is_the_callers(error: Exception) -> None:
    told = Told([1, 2, 2], [error, error])
    with pytest.raises(type(error)):
        committed(told)
    assert told.tried == [1, 2]


@pytest.mark.parametrize("error", CONFLICTS)
def test_a_write_at_a_given_upper_is_tried_once(error: Exception) -> None:
    told = Told([1], [error], fixed=True)
    with pytest.raises(type(error)):
        committed(told)


def test_a_write_gives_up_after_the_most_tries() -> None:
    told = Told([1, 2, 3, 4], [CONFLICTS[0]] * 3)
    told.tries_max = 3
    with pytest.raises(UpperMismatch):
        committed(told)
    assert told.tried == [1, 2, 3]


def test_what_was_stored_before_rows_were_erased_is_stored_again_if_the_rows_are_here() -> None:
    erased, old = UploadExpired("a", 1, 2, erased=True), UploadExpired("a", 1, 2)
    told = Told([1, 1], [erased, "in"])
    assert committed(told) == "in" and told.forgot == 1
    for error, how in ((erased, {"remakes": False}), (old, {})):
        with pytest.raises(UploadExpired):
            committed(Told([1, 1], [error, "in"], **how))


def test_there_is_one_commit_loop() -> None:
    conflicts = ("UpperMismatch", "UpdateBeforeLower", "UploadExpired")
    found = {
        path.name
        for room in ("feeds", "spark")
        for path in (SOURCE / room).rglob("*.py")
        for line in path.read_text().splitlines()
        if line.strip().startswith("except") and any(name in line for name in conflicts)
    }
    assert found == {"loop.py"}
