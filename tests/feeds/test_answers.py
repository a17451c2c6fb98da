"""The answer of a worker: what comes back, and what a driver of another version says."""

from dataclasses import fields

import pyarrow as pa
import pytest

from tidelake.errors import CorruptionError, FormatTooNew, InvalidUpdates
from tidelake.feeds import answers
from tidelake.feeds.answers import Answer, answered, decoded_answer, encoded_answer, total, weighing
from tidelake.feeds.reports import Counts


def full() -> Answer:
    """Every field has a value of its own."""
    answer = Answer()
    for n, one in enumerate(fields(Answer), 3):
        if one.name == "counts":
            counts = {name: n for n, name in enumerate(answers._COUNTED, 100)}
            answer.counts = Counts(**counts)
            continue
        usual = getattr(answer, one.name)
        kinds = {
            "uploads": (b"a",),
            "held": (b"b", b"c"),
            "advances": True,
            "rejects_to": "d",
            "taken_bytes": 0,
        }
        texts = ("é", str(n)) if usual == () else n
        setattr(answer, one.name, kinds.get(one.name, texts))
    return answer


def test_an_answer_comes_back_as_it_was_with_the_fault() -> None:
    answer = full()
    assert decoded_answer(encoded_answer(answer, "f")) == (answer, "f")
    assert decoded_answer(encoded_answer(Answer(), None)) == (Answer(), None)


def test_answers_add_up_with_the_size_of_their_rows() -> None:
    def work(answer: Answer) -> bytes:
        answer.count(updates=2)
        return b"upload"

    rows = [weighing(next(answered(work)), size) for size in (5, 7)]
    assert total(pa.Table.from_batches(rows)) == Answer(
        uploads=(b"upload",) * 2, counts=Counts(updates=4), taken_bytes=12
    )


def test_a_fault_of_one_task_is_the_error_of_all() -> None:
    def fails(answer: Answer) -> bytes:
        raise InvalidUpdates("no such row")

    rows = [next(answered(work)) for work in (fails, lambda _: b"")]
    with pytest.raises(InvalidUpdates, match="no such row"):
        total(pa.Table.from_batches(rows))


def test_an_answer_of_a_newer_worker_is_refused_and_so_is_what_is_none() -> None:
    told = encoded_answer(full(), None)
    newer = told.replace(b" 1\n", b" 2\n", 1)
    with pytest.raises(FormatTooNew, match=r"the answer of a task.*format 2"):
        decoded_answer(newer)
    for other in (b"", b"tidelake-answer 1\n" + told, told.replace(b" 1\n", b"\n", 1), answers._MAGIC):
        with pytest.raises(CorruptionError, match="no format number"):
            decoded_answer(other)
