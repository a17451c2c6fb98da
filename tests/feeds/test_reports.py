"""Counts: one list, summed over its fields."""

from dataclasses import fields, replace

from tidelake.feeds.reports import Counts, IngestReport, WrittenBatch
from tidelake.model.frontier import Frontier


def full(number: int) -> Counts:
    """Every field has a value of its own."""
    made = Counts()
    for n, one in enumerate(fields(Counts), number):
        usual = getattr(made, one.name)
        value = {f"t{n}": n, "both": n} if usual == {} else [f"c{n}"] if usual == [] else n
        made = replace(made, **{one.name: value})
    return made


def test_every_count_is_summed() -> None:
    a, b = full(1).counts(), full(100).counts()
    both = full(1).plus(full(100)).counts()
    assert both.keys() == a.keys() and len(a) == 15
    for name, found in both.items():
        if isinstance(found, dict):
            assert found == {**a[name], **b[name], "both": a[name]["both"] + b[name]["both"]}
        else:
            assert found == a[name] + b[name]


def test_a_run_counts_its_batches_and_tells_what_is_held_back_last() -> None:
    first = WrittenBatch(0, False, Frontier.of(1), **replace(full(1), held=7).counts())
    again = WrittenBatch(0, True, Frontier.of(2))
    last = WrittenBatch(1, False, Frontier.of(3), held=2, updates=5)
    run = IngestReport().then(first).then(again)
    assert (run.batches, run.already, run.held, run.upper) == (1, 1, 7, Frontier.of(2))
    run = run.then(last)
    assert (run.batches, run.already, run.held, run.upper) == (2, 1, 2, Frontier.of(3))
    assert run.updates == full(1).updates + 5 and run.created == full(1).created
