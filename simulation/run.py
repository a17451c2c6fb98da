"""Runs one seed of the simulation, or several, and finds the shortest run that fails.

Owns the beginning and the end of a run: it sets up the world, starts clients, restarts them after a crash,
and calls the checks that must pass when all clients are gone.
"""

import gc
import random
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any, TypeGuard

from simulation.checker import Checker
from simulation.clients import NAME, SCHEMA, Client
from simulation.figures import Figures
from simulation.judge import Judge
from simulation.options import Options
from simulation.process import SimulatedProcess
from simulation.rest import check_rest, check_told, check_whole
from simulation.roles import ROLES
from simulation.scheduler import SchedulerLock, Stuck
from simulation.world import World
from tidelake.errors import TidelakeError, TidelakeWarning
from tidelake.process import PerProcess
from tidelake.shard.engine.overlap import sequential

# A context manager that switches a bug on inside its block, for tests of the simulation itself.
Bug = Callable[[], AbstractContextManager[None]]


class SimulationFailed(AssertionError):
    """A seed failed. The message has the command line that repeats it, the error, and the steps before it.

    Attributes:
        seed: the seed of the run.
        steps: the number of steps of the run; the fewest that fail, if it was shrunk.
        error: what was wrong.
    """

    def __init__(self, seed: int, steps: int, error: BaseException, trace: Sequence[str]) -> None:
        lines = "\n".join(trace[-60:])
        super().__init__(
            f"make sim SEED={seed} STEPS={steps}\n{type(error).__name__}: {error}\nthe last steps:\n{lines}"
        )
        self.seed, self.steps, self.error = seed, steps, error


def simulate(seed: int, steps: int, options: Options | None = None) -> Figures:
    """Run one seed for at most `steps` steps. The answer depends on the arguments alone.

    Raises:
        SimulationFailed: an answer was wrong, or a rule was broken.
    """
    world = World(seed, steps, options)
    checker = Checker(
        lambda: (world.scheduler.steps, world.scheduler.now_us),
        world.short_read_us(),
        world.scheduler.fail,
        world.is_present,
        world.named_by,
    )
    error: BaseException | None = None
    with repeatable(world):
        try:
            judge = checker.judges[world.calm_lake(checker).create(NAME, SCHEMA, key=["k"]).id]
            for i, role in enumerate(world.options.roles):
                _start(world, checker, judge, (f"{role}{i}", role))
            world.scheduler.run()
            if world.scheduler.trouble is None and world.lost is not None:
                check_told(world, checker)
            elif world.scheduler.trouble is None:
                check_whole(world, checker, judge)
                check_rest(world, checker)
        except (AssertionError, TidelakeError, Stuck) as caught:
            error = caught
    error = world.scheduler.trouble or error
    if error is not None:
        raise SimulationFailed(seed, world.scheduler.steps, error, list(world.trace.lines)) from error
    return Figures(1, world.scheduler.steps, checker.counts, world.injected, world.trace.digest)


def _start(world: World, checker: Checker, judge: Judge, client: tuple[str, str], life: int = 0) -> None:
    """Start a client, given as (name, role). When its process dies, a new one replaces it after a while."""
    name, role = client
    process = SimulatedProcess(world, checker, f"{name}.{life}" if life else name)
    draw = random.Random(f"{world.seed} {name} {life}")  # noqa: S311
    alive = Client(world, checker, judge, process, draw)

    def work() -> None:
        try:
            ROLES[role](alive)
        finally:
            if process.dead and not world.scheduler.over:
                checker.counts["crashes"] += 1
                _start(world, checker, judge, client, life + 1)

    world.start(process, process.name, work, int(draw.choice((0.01, 0.5, 5.0)) * 1e6) if life else 0)


@contextmanager
def repeatable(world: World) -> Iterator[None]:
    """Make the block repeatable: locks hand the turn on, no real threads start, no cycle collector runs."""

    def lock() -> SchedulerLock:
        return SchedulerLock(world.scheduler)

    shim = SimpleNamespace(**{**vars(threading), "Lock": lock})
    product = [module for name, module in sorted(sys.modules.items()) if _is_product(name)]
    patched = [module for module in product if getattr(module, "threading", None) is threading]
    # What this process makes for itself in the block has locks of the scheduler, and goes with it.
    fresh = [one for module in product for one in vars(module).values() if _is_unmade(one)]
    for module in patched:
        module.threading = shim  # type: ignore[attr-defined]
    gc.collect()
    gc.disable()
    try:
        with warnings.catch_warnings(), sequential():
            # A process that dies leaves batches behind. A merge that fails for good is an error.
            warnings.simplefilter("ignore", ResourceWarning)
            warnings.simplefilter("error", TidelakeWarning)
            yield
    finally:
        for module in patched:
            module.threading = threading  # type: ignore[attr-defined]
        for one in fresh:
            one._made.clear()
        gc.enable()


def _is_product(name: str) -> bool:
    return name.startswith("tidelake.")


def _is_unmade(value: object) -> TypeGuard[PerProcess[Any]]:
    return isinstance(value, PerProcess) and not value._made


def shortest(seed: int, steps: int, bug: Bug = nullcontext) -> SimulationFailed | None:
    """The failure of a seed with the fewest steps, found by halving; None if it does not fail."""
    found = _failure(seed, steps, bug)
    if found is None:
        return None
    low, high = 0, found.steps
    while high - low > 1:
        middle = (low + high) // 2
        failed = _failure(seed, middle, bug)
        if failed is None:
            low = middle
        else:
            found, high = failed, min(middle, failed.steps)
    return found


def _failure(seed: int, steps: int, bug: Bug) -> SimulationFailed | None:
    try:
        with bug():
            simulate(seed, steps)
    except SimulationFailed as failed:
        return failed
    return None


def simulate_all(seeds: Iterable[int], steps: int) -> Figures:
    """Run several seeds, each for at most `steps` steps.

    Raises:
        SimulationFailed: for the first seed that fails, shrunk to the fewest steps that fail.
    """
    figures = Figures()
    for seed in seeds:
        try:
            figures = figures.plus(simulate(seed, steps))
        except SimulationFailed as failed:
            raise (shortest(seed, failed.steps) or failed) from failed.error
    return figures
