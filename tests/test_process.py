"""What belongs to one process, beside forks."""

import os
import threading
import warnings
from collections.abc import Callable

from tidelake.process import PerProcess, ProcessOrigin


def in_a_fork(check: Callable[[], bool]) -> bool:
    """The answer of a check that runs in a fork of this process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        code = 2
        try:
            code = 0 if check() else 1
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, 1)
    return code == 0


def test_an_origin_is_here_only_where_it_was_made() -> None:
    origin = ProcessOrigin()
    assert origin.is_here
    assert in_a_fork(lambda: not origin.is_here)
    assert in_a_fork(lambda: ProcessOrigin().is_here)


def test_a_process_makes_its_value_once_and_a_fork_makes_its_own() -> None:
    each: PerProcess[list[int]] = PerProcess(list)
    each.get().append(1)
    assert each.get() == [1]
    assert in_a_fork(lambda: each.get() == [] and each.get() is each.get())
    assert each.get() == [1]


def test_a_value_is_made_beside_a_thread_that_was_making_one_at_the_fork() -> None:
    making, go_on = threading.Event(), threading.Event()

    def make() -> threading.Lock:
        if threading.current_thread() is not threading.main_thread():
            making.set()
            go_on.wait(60)
        return threading.Lock()

    each = PerProcess(make)
    thread = threading.Thread(target=each.get)
    thread.start()
    assert making.wait(60)
    assert in_a_fork(lambda: each.get().acquire(timeout=30))
    own = each.get()
    go_on.set()
    thread.join()
    assert each.get() is own


def test_a_fork_drops_what_its_parent_made() -> None:
    gone: list[int] = []

    class Value:
        def __del__(self) -> None:
            gone.append(1)

    each = PerProcess(Value)
    each.get()
    assert in_a_fork(lambda: isinstance(each.get(), Value) and gone == [1])
    assert gone == []
