"""Small steps of a tail that was away: their rows come from what one read of the slice has kept."""

from random import Random

import pyarrow as pa
import pytest
from shards import Place

import inside
from tables import SCHEMA
from tidelake.config import Config
from tidelake.model.frontier import Frontier
from tidelake.model.query import Updates
from tidelake.shard.reading import readahead
from tidelake.shard.runs import plan
from tidelake.shard.runs.plan import run_task
from tidelake.state.core.backlog import Limits
from tiers import some

ORDER = [(name, "ascending") for name in ("id", "v", "_time", "_diff")]


def sliced(rng, last=40):
    """At rest: slices of some times each, and updates at most times."""
    config = Config(slice_rows=16, inline_part_bytes=rng.choice([0, 4096]), row_group_rows=8)
    lake = Place().lake(config=config)
    c = lake.create("c", SCHEMA, key=["id"])
    for upper in range(5, last + 1, 5):
        times = [rng.randrange(upper - 5, upper) for _ in range(12)]
        columns = {
            "id": [rng.randrange(9) for _ in times],
            "v": [rng.choice(["x", "ü", None]) for _ in times],
        }
        c.append(
            pa.table({**columns, "_time": times, "_diff": [rng.choice([-1, 1, 2]) for _ in times]}),
            upper=upper,
        )
    assert c.maintain(thorough=True).complete and c.state().spine.slices
    return lake, c


def given_by(tail, how, start, end):
    asked = Updates(start, end)
    if how == "read":
        return tail.read(asked, start).read_all()
    planned = tail.plan(asked, start, 2)
    batches = [batch for task in planned.tasks for batch in run_task(task)] if planned else []
    return pa.Table.from_batches(batches) if batches else None


def followed(tail, how, limits, last):
    """The rows of all steps from time 1 on, one after the other."""
    start, found = tail.begin(Frontier.of(1)), []
    while start != last and (end := tail.step(start, limits)) != start:
        found.append(given_by(tail, how, start, end))
        start = end
    return pa.concat_tables(table for table in found if table is not None)


@pytest.fixture
def running(monkeypatch):
    """Tasks of a lake in memory, carried out here."""
    return lambda lake: monkeypatch.setattr(plan, "stores_of", lambda spec: inside.stores(lake))


@pytest.mark.parametrize("how", ["read", "plan"])
@pytest.mark.parametrize(
    "shown", [{}, {"columns": ["id"]}, {"columns": ["v"], "where": "id > 3 AND v = 'x'"}]
)
@pytest.mark.parametrize("seed", some(range(4), 2))
def test_small_steps_give_what_a_read_of_all_gives(running, how, shown, seed):
    rng = Random(seed)
    lake, c = sliced(rng)
    running(lake)
    limits = rng.choice([Limits(times=1), Limits(times=3), Limits(rows=4)])
    found = followed(c.tail(poll_s=0.0, **shown), how, limits, c.upper)
    expected = c.updates(1, c.upper, **shown).read_all()
    order = [by for by in ORDER if by[0] in expected.column_names]
    assert found.schema == expected.schema and expected.num_rows
    assert found.sort_by(order).equals(expected.combine_chunks().sort_by(order))


@pytest.mark.parametrize("how", ["read", "plan"])
@pytest.mark.parametrize(("module", "bound"), [(readahead, "_KEPT_BYTES"), (plan, "_HELD_BYTES")])
def test_what_is_too_large_to_be_kept_or_sent_is_read_in_each_step(running, monkeypatch, how, module, bound):
    monkeypatch.setattr(module, bound, 1)
    lake, c = sliced(Random(5))
    running(lake)
    tail = c.tail(poll_s=0.0)
    found = followed(tail, how, Limits(times=1), c.upper)
    assert found.sort_by(ORDER).equals(c.updates(1, c.upper).read_all().combine_chunks().sort_by(ORDER))
    assert (tail._ahead._batches == []) == (module is readahead)


@pytest.mark.parametrize("how", ["read", "plan"])
def test_what_was_kept_before_a_change_of_the_schema_is_read_again(running, how):
    lake, c = sliced(Random(3))
    running(lake)
    tail = c.tail(poll_s=0.0)
    start = tail.begin(Frontier.of(1))
    end = tail.step(start, Limits(times=1))
    assert given_by(tail, how, start, end).num_rows
    assert tail._ahead._batches, "more is kept"
    c.evolve(SCHEMA.append(pa.field("n", pa.int64())))
    later = tail.step(end, Limits(times=1))
    found = given_by(tail, how, end, later)
    assert found.equals(c.updates(end, later).read_all()) and found["n"].null_count == found.num_rows > 0


@pytest.mark.parametrize("how", ["read", "plan"])
def test_a_step_that_is_kept_in_part_is_read_whole(running, how):
    lake, c = sliced(Random(4))
    running(lake)
    tail = c.tail(poll_s=0.0)
    start = tail.begin(Frontier.of(1))
    end = tail.step(start, Limits(times=1))
    later = tail.step(end, Limits(times=1))
    given_by(tail, how, end, later)
    assert tail._ahead._batches
    # As a stream that begins again from its checkpoint asks for it.
    for lower, upper in ((start, later), (later, c.upper), (start, c.upper)):
        assert (
            given_by(tail, how, lower, upper)
            .sort_by(ORDER)
            .equals(c.updates(lower, upper).read_all().combine_chunks().sort_by(ORDER))
        )


def test_nothing_is_kept_once_a_tail_is_left_or_of_a_large_step():
    _, c = sliced(Random(1))
    tail = c.tail(poll_s=0.0)
    start = tail.begin(Frontier.of(1))
    end = tail.step(start, Limits())
    tail.read(Updates(start, end), start).read_all()
    assert tail._ahead._batches == [], "the step takes all that it decodes"
    end = tail.step(start, Limits(times=1))
    for leave in (tail.leave, tail.stop, tail.release):
        tail.read(Updates(start, end), start).read_all()
        assert tail._ahead._batches
        leave()
        assert tail._ahead._batches == []
