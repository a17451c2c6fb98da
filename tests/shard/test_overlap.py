import threading
import time

import pytest

from tidelake.shard.overlap import prefetch, prefetch_all


def threads():
    return [t for t in threading.enumerate() if t.name == "tidelake-prefetch"]


def test_items_come_in_order_and_the_thread_ends():
    assert list(prefetch(range(100), 3)) == list(range(100))
    assert not threads()


def test_an_error_comes_after_the_items_before_it():
    def source():
        yield 1
        raise KeyError("lost")

    items = prefetch(source())
    assert next(items) == 1
    with pytest.raises(KeyError, match="lost"):
        next(items)
    assert not threads()


def test_closing_early_stops_the_thread_and_closes_the_source():
    made, closed = [], []

    def source():
        try:
            for i in range(1000):
                made.append(i)
                yield i
        finally:
            closed.append(threading.current_thread().name)

    items = prefetch(source(), 2)
    assert next(items) == 0
    items.close()
    assert len(made) <= 4
    assert closed == ["tidelake-prefetch"]
    assert not threads()


def test_it_runs_ahead_by_its_depth_only():
    made = []

    def source():
        for i in range(100):
            made.append(i)
            yield i

    items = prefetch(source(), 2)
    next(items)
    time.sleep(0.05)
    assert 2 <= len(made) <= 4
    items.close()


def test_no_thread_starts_before_the_first_item_is_asked_for():
    items = prefetch(range(3))
    assert not threads()
    items.close()


def test_many_sources_give_their_items_in_order_and_are_closed_at_the_end():
    closed = []

    def source(i):
        try:
            yield from range(i * 100, i * 100 + i)
        finally:
            closed.append(i)

    with prefetch_all([source(i) for i in range(20)], 3) as ahead:
        # The last first: nobody may wait for those before it.
        for i in reversed(range(10, 20)):
            assert list(ahead[i]) == list(range(i * 100, i * 100 + i))
        assert next(ahead[5]) == 500
    assert sorted(closed) == list(range(20))
    assert not [t for t in threading.enumerate() if t.name == "tidelake-prefetch"]


def test_an_error_of_one_of_many_sources_comes_after_its_items():
    def failing():
        yield 1
        raise ValueError("no more")

    with prefetch_all([failing(), iter([7, 8])], 2) as ahead:
        assert next(ahead[0]) == 1
        with pytest.raises(ValueError, match="no more"):
            next(ahead[0])
        assert list(ahead[1]) == [7, 8]
    with prefetch_all([], 2) as ahead:
        assert ahead == []
