import threading
import time

import pytest

from tidelake.shard.overlap import prefetch


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
