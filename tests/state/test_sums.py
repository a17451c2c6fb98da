"""What descriptions of parts tell of rows: sums of diffs, and hashes of rows."""

from dataclasses import replace

import pytest
from shard_states import hollow, part, run

from tidelake.model.batch import Run
from tidelake.state.core.batchrules import diff_sum, may_have_the_same_rows

LAST = 2**64 - 1


def batch(name, row_hash=None, **kwargs):
    return hollow(0, 1, run(name, row_hash=row_hash, **kwargs))


def test_hashes_of_rows_add_up_modulo_their_number_over_runs_and_batches():
    two = hollow(0, 1, Run((part("a", row_hash=LAST), part("b", row_hash=4))), run("c", row_hash=LAST))
    assert two.runs[0].row_hash == 3
    assert may_have_the_same_rows([two, batch("d", 9)], [batch("e", 11)])
    assert not may_have_the_same_rows([two, batch("d", 9)], [batch("e", 10)])
    assert not may_have_the_same_rows([batch("a", 7)], [])
    assert may_have_the_same_rows([batch("a", 0)], []) and may_have_the_same_rows([], [])


@pytest.mark.parametrize(
    "unknown",
    [
        batch("a"),
        hollow(0, 1, Run((part("a", row_hash=1),), truncated=True)),
        hollow(0, 1, Run((part("a", row_hash=1), part("b")))),
        batch("a", 1, schema_id=1),
    ],
)
def test_rows_of_a_part_without_a_hash_of_a_narrowed_run_or_of_another_schema_are_not_compared(unknown):
    assert may_have_the_same_rows([batch("c", 5), unknown], [batch("d", 5)])
    assert may_have_the_same_rows([batch("d", 5)], [batch("c", 5), unknown])


def test_a_part_tells_its_hash_and_can_be_without_one():
    plain = part("a")
    hashed = part("a", row_hash=LAST)
    assert (plain.row_hash, hashed.row_hash) == (None, LAST)
    assert replace(hashed, rewrite=9).row_hash == LAST


def test_diffs_add_up_unless_one_run_is_narrowed():
    assert diff_sum([batch("a", diff_sum=3), batch("b", diff_sum=-(2**70))]) == 3 - 2**70
    assert diff_sum([batch("a"), hollow(0, 1, Run((part("b"),), truncated=True))]) is None
