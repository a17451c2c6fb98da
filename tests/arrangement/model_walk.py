"""A random life of arrangements beside their models: every step is done to both, and every answer compared.

A step is a call of the arrangement, or a move of a cursor. The same seed gives the same life.
"""

import shutil
from collections import Counter
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.compute as pc

from tests.arrangement.arrangement_model import Best, Model, ModelCursor, between, ranked
from tests.arrangement.arrangement_rows import KEYS, layout
from tests.arrangement.spine_rig import NoThreads, SetMachine, tiny
from tidelake.arrangement.arrangement import Arrangement
from tidelake.arrangement.checkpoint.home import Home
from tidelake.arrangement.checkpoint.saving import restored
from tidelake.arrangement.merge.spine import AsyncSpine
from tidelake.arrangement.read.retention import bottom_n, last_n, top_n
from tidelake.env import Env
from tidelake.testing.oracle import NAN, canonical

TEXTS = ("a", "b", None)
NUMBERS = (0.5, -1.0, None, float("nan"))
KEY_FILTERS = {
    "int": [
        (pc.field("k0") >= least, lambda key, least=least: _at_least(key[0], least)) for least in (-3, 0, 2)
    ],
    "pair": [
        (pc.field("k1") >= least, lambda key, least=least: _at_least(key[1], least)) for least in (-3, 0, 2)
    ],
    "float": [
        (pc.field("k0") >= least, lambda key, least=least: _at_least(key[0], least)) for least in (-3, 0, 2)
    ],
    "text": [
        (pc.field("k0") >= least, lambda key, least=least: _at_least(key[0], least)) for least in ("", "b")
    ],
}
VALUE_FILTERS = [
    (pc.field("x").is_valid(), lambda value: value[1] is not None),
    (
        pc.field("x").is_valid() & (pc.field("v") == "a"),
        lambda value: value[1] is not None and value[0] == "a",
    ),
]
BEST = [
    (last_n, lambda n: Best(n, greatest=True)),
    (lambda n: top_n(n, "x"), lambda n: Best(n, greatest=True, by=1)),
    (lambda n: bottom_n(n, ["x"]), lambda n: Best(n, greatest=False, by=1)),
]


class Differs(AssertionError):
    pass


def _at_least(value, least):
    return value is not None and value is not NAN and value >= least


def plain(row):
    return tuple(canonical(value) for value in row)


def real(row):
    """Values as they are handed in."""
    return tuple(float("nan") if value is NAN else value for value in row)


class Pair:
    """An arrangement and its model."""

    def __init__(self, arrangement, model, machine):
        self.arrangement, self.model, self.machine = arrangement, model, machine
        self.retained_keys = self.retained_values = None
        self.levels = [0, 0]
        self.paused = False


class ModelWalk:
    """One life.

    Args:
        seed: of all choices.
        folder: for files.
        kind: of keys.
        ranked: whether N-filters are set; then nothing is ever retracted, since what a filter dropped may
            come back or not when what outranked it goes.
        threads: whether merges run beside; else only when a step says so.
    """

    def __init__(
        self, seed: int, folder: Path, kind: str = "int", *, ranked: bool = False, threads: bool = False
    ) -> None:
        self.rng = Random(f"{seed} {kind} {ranked}")
        self.folder, self.kind, self.ranked = folder, kind, ranked
        self.layout = layout(kind)
        self.width = len(KEYS[kind])
        self.env = Env() if threads else Env(spawner=NoThreads())
        self.pairs = [self._fresh()]
        self.held = []
        self.saved = None
        self.steps = 0
        self.did = Counter()

    def close(self):
        for pair in self.pairs:
            pair.arrangement.close()
        for snapshot, _ in self.held:
            snapshot.close()

    def run(self, steps):
        """So many steps, at least."""
        doing = {
            self.append: 30,
            self.step: 30,
            self.lookup: 20,
            self.range: 8,
            self.sample: 3,
            self.count: 3,
            self.walk: 12,
            self.press: 5,
            self.advance: 6,
            self.filter: 2,
            self.merge_nowait: 2,
            self.merge: 1,
            self.pause: 1,
            self.save: 4,
            self.restore: 2,
            self.fork: 1,
            self.drop_fork: 1,
            self.hold: 3,
            self.look_back: 3,
        }
        weights = list(doing.values())
        while self.steps < steps:
            does = self.rng.choices(list(doing), weights)[0]
            self.did[does.__name__] += 1
            self.steps += 1
            does(self.rng.choice(self.pairs))

    # What changes them

    def append(self, pair):
        rng = self.rng
        updates = []
        for _ in range(rng.choice((0, 1, 1, 2, 5, 12, 40))):
            time = pair.model.since + rng.choice((-2, 0, 1, 2, 3, 6))
            diff = rng.choice((1, 1, 2)) if self.ranked else rng.choice((1, 1, 1, 2, -1, -2))
            value = (rng.choice(TEXTS), rng.choice(NUMBERS))
            updates.append((self._key(), plain(value), max(time, 0), diff))
        table = self._table(updates)
        if rng.random() < 0.5:
            pair.arrangement.append(table)
        elif pair.arrangement.append_nowait(table):
            pair.arrangement.wait()
        pair.model.append(updates)

    def step(self, pair):
        for _ in range(self.rng.choice((1, 1, 3, 20))):
            pair.arrangement._spine.step()

    def press(self, pair):
        pair.machine.share = self.rng.choice((0.0, 0.0, 0.55, 0.65, 0.8, 0.95))

    def advance(self, pair):
        pair.model.advance_since(pair.model.since + self.rng.choice((0, 1, 1, 3)))
        pair.arrangement.advance_since(pair.model.since)

    def filter(self, pair):
        """Another filter, not weaker than the one before."""
        if self.rng.random() < 0.5:
            if pair.levels[0] < len(KEY_FILTERS.get(self.kind, ())):
                pair.retained_keys = KEY_FILTERS[self.kind][pair.levels[0]]
                pair.levels[0] += 1
        elif self.ranked:
            rule, best = self.rng.choice(BEST) if pair.retained_values is None else pair.retained_values[2]
            n = 2 if pair.retained_values is None else self.rng.choice((1, pair.retained_values[1].n))
            n = n if pair.retained_values is None else min(n, pair.retained_values[1].n)
            pair.retained_values = (rule(n), best(n), (rule, best))
        elif pair.levels[1] < len(VALUE_FILTERS):
            pair.retained_values = VALUE_FILTERS[pair.levels[1]]
            pair.levels[1] += 1
        self._set_filters(pair)

    def merge_nowait(self, pair):
        pair.arrangement.merge_nowait()

    def merge(self, pair):
        if not pair.paused:
            pair.arrangement.merge()
            # It may be on its way to disk, and is not at rest then.
            self._same(pair.arrangement.report().batches <= 1, True)

    def pause(self, pair):
        pair.paused = not pair.paused
        pair.arrangement.pause() if pair.paused else pair.arrangement.resume()

    # Checkpoints and forks

    def save(self, pair):
        first = self.pairs[0]
        before = None if self.saved is None else self.saved[1]
        saved = first.arrangement.save(self.folder / "saved")
        self._same(saved.left, "")
        state = (sorted(first.model.updates.items(), key=str), first.model.since)
        if not saved.is_new:
            self._same(state, before)
        self.saved = (first.model.copy(), state, self._filters(first))

    def restore(self, pair):
        if self.saved is None:
            return
        first = self.pairs[0]
        filters = self._filters(first)
        first.arrangement.close()
        machine = SetMachine()
        spine, home, found = restored(
            self.folder / "saved",
            None,
            directory=self.folder / "live",
            config=tiny(),
            env=self.env,
            machine=machine,
        )
        arrangement = Arrangement(spine, home, self.env, found.content, found.arrangement)
        self.pairs[0] = again = Pair(arrangement, self.saved[0].copy(), machine)
        # Filters are not saved. Those of now are not weaker than those that held when it was saved.
        again.retained_keys, again.retained_values, again.levels = filters
        self._set_filters(again)

    def fork(self, pair):
        if len(self.pairs) < 3:
            fork = Pair(pair.arrangement.fork(), pair.model.copy(), pair.machine)
            fork.retained_keys, fork.retained_values, fork.levels = self._filters(pair)
            self.pairs.append(fork)

    def drop_fork(self, pair):
        """One of them ends: the others go on, also if it was the one that they were forked from."""
        if len(self.pairs) > 1:
            gone = self.pairs.pop(self.rng.randrange(len(self.pairs)))
            gone.arrangement.close()
            # The checkpoints were of the first one.
            if gone is not self.pairs[0]:
                self._forget_saved(gone)

    def _forget_saved(self, gone):
        if self.saved is not None:
            self.saved = None
            shutil.rmtree(self.folder / "saved")

    # What looks at them

    def hold(self, pair):
        if len(self.held) < 3:
            self.held.append((pair.arrangement.snapshot(), pair.model.copy()))

    def look_back(self, pair):
        """What a snapshot of long ago holds is what it held."""
        if self.held:
            snapshot, model = self.held.pop(self.rng.randrange(len(self.held)))
            with snapshot:
                self._look(snapshot, model)

    def lookup(self, pair):
        self._look(pair.arrangement, pair.model)

    def range(self, pair):
        rng = self.rng
        asked = {
            "lower": rng.choice((None, self._prefix())),
            "upper": rng.choice((None, self._prefix())),
            "limit": rng.choice((None, None, 0, 1, 7)),
            "reverse": rng.random() < 0.5,
        }
        as_of = self._as_of(pair.model)
        expected = between(pair.model.contents(as_of), **asked)
        for bound in ("lower", "upper"):
            asked[bound] = None if asked[bound] is None else real(asked[bound])
        self._same(self._rows(pair.arrangement.range(as_of=as_of, **asked)), expected)

    def count(self, pair):
        as_of = self._as_of(pair.model)
        keys = {row[0] for row in pair.model.contents(as_of)}
        self._same(pair.arrangement.key_count(as_of), len(keys))

    def sample(self, pair):
        as_of, n = self._as_of(pair.model), self.rng.choice((0, 1, 3, 100))
        keys = {row[0] for row in pair.model.contents(as_of)}
        found = self._keys(pair.arrangement.sample_keys(n, self.rng.randrange(100), as_of))
        self._same(len(set(found)), len(found))
        self._same(found, sorted(found, key=ranked))
        self._same(set(found) <= keys, True)
        self._same(len(found), min(n, len(keys)))
        parts = self.rng.choice((1, 2, 5))
        bounds = self._keys(pair.arrangement.partition_keys(parts, self.rng.randrange(100), as_of))
        self._same(bounds, sorted(set(bounds), key=ranked))
        self._same(len(bounds) < parts and set(bounds) <= keys, True)

    def walk(self, pair):
        """A cursor, every method of which is called now and then."""
        as_of = self._as_of(pair.model)
        model = ModelCursor(pair.model, as_of)
        with pair.arrangement.cursor(as_of) as cursor:
            self._compare(cursor, model)
            for _ in range(self.rng.choice((3, 10, 30))):
                self.steps += 1
                self._move(cursor, model)
                self._compare(cursor, model)

    def _move(self, cursor, model):
        rng = self.rng
        key = self._key()
        value = plain((rng.choice(TEXTS), rng.choice(NUMBERS)))
        move = rng.choice(
            (
                "step", "step", "step_reverse", "step_reverse", "seek", "seek_reverse", "seek_with",
                "seek_with_reverse", "exact", "exact", "rewind", "fast_forward",
                "value step", "value step", "value step_reverse", "value seek", "value seek_reverse",
                "value seek_with", "value seek_with_reverse", "value rewind", "value fast_forward",
            )
        )  # fmt: skip
        self.did[move] += 1
        what, target, places = (
            ("value", value, model.values) if move.startswith("value") else ("key", key, None)
        )
        name = move.removeprefix("value ")
        if name == "exact":
            if model.may_ask(key):
                self._same(cursor.seek_key_exact(real(key)), model.seek_exact(key))
            return
        if name in ("rewind", "fast_forward"):
            getattr(cursor, name if what == "key" else f"{name}_values")()
            args = ()
        elif name.startswith("step"):
            getattr(cursor, name.replace("step", f"step_{what}"))()
            args = ()
        elif "with" in name:

            def predicate(row):
                return ranked(row) <= ranked(target) if "reverse" in name else ranked(row) >= ranked(target)

            getattr(cursor, name.replace("seek", f"seek_{what}"))(lambda row: predicate(plain(row)))
            args = (predicate,)
        else:
            getattr(cursor, name.replace("seek", f"seek_{what}"))(real(target))
            args = (target,)
        if places is None:
            model.move(name, *args)
        else:
            getattr(places, name)(*args)

    def _compare(self, cursor, model):
        self._same(cursor.key_valid, model.keys.valid)
        total, before = cursor.position()
        self._same(0 <= before <= total, True)
        if not model.keys.valid:
            self._same(cursor.val_valid, False)
            return
        self._same(plain(cursor.key), model.key)
        seen = []
        cursor.map_values(lambda value, weight: seen.append((plain(value), weight)))
        self._same(seen, list(model.rows[model.key].items()))
        self._same(cursor.val_valid, model.values.valid)
        if model.values.valid:
            value = model.values.item
            self._same((plain(cursor.value), cursor.weight), (value, model.weight))
            if model.weight > 0:
                self._same(cursor.weight_checked(), model.weight)
            times = []
            cursor.map_times(lambda time, diff: times.append((time, diff)))
            self._same(times, model.model.times(model.key, value, model.as_of))
            through = model.model.since + self.rng.randrange(4)
            times.clear()
            cursor.map_times_through(through, lambda time, diff: times.append((time, diff)))
            last = through if model.as_of is None else min(through, model.as_of)
            self._same(times, model.model.times(model.key, value, last))

    def _look(self, source, model):
        as_of = self._as_of(model)
        keys = [self._key() for _ in range(self.rng.choice((0, 1, 1, 3, 20)))]
        table = self._table([(key, ("a", None), 0, 1) for key in keys]).select(list(self.layout.key_names))
        expected = [row for row in model.contents(as_of) if row[0] in keys]
        self._same(self._rows(source.lookup(table, as_of)), expected)

    # Values

    def _fresh(self):
        machine = SetMachine()
        home = Home(self.folder / "live", self.env.ids.fresh())
        spine = AsyncSpine(self.layout, tiny(), directory=home.path, env=self.env, machine=machine)
        return Pair(Arrangement(spine, home, self.env, self.env.ids.fresh()), Model(), machine)

    def _key(self):
        return plain([self.rng.choice(values) for _, values in KEYS[self.kind]])

    def _prefix(self):
        return self._key()[: self.rng.randint(1, self.width)]

    def _as_of(self, model):
        return self.rng.choice((None, model.since + self.rng.randrange(6)))

    def _filters(self, pair):
        return pair.retained_keys, pair.retained_values, list(pair.levels)

    def _set_filters(self, pair):
        if pair.retained_keys is not None:
            pair.arrangement.retain_keys(pair.retained_keys[0])
            pair.model.keeps_key = pair.retained_keys[1]
        if pair.retained_values is not None:
            pair.arrangement.retain_values(pair.retained_values[0])
            if self.ranked:
                pair.model.best = pair.retained_values[1]
            else:
                pair.model.keeps_value = pair.retained_values[1]

    def _table(self, updates):
        names = self.layout.arrow.names
        columns = [
            *([real(key)[i] for key, *_ in updates] for i in range(self.width)),
            *([real(value)[i] for _, value, *_ in updates] for i in range(2)),
            [time for _, _, time, _ in updates],
            [diff for *_, diff in updates],
        ]
        arrays = [pa.array(c, f.type) for c, f in zip(columns, self.layout.arrow, strict=True)]
        return pa.table(dict(zip(names, arrays, strict=True)))

    def _rows(self, table):
        rows = zip(*(column.to_pylist() for column in table.itercolumns()), strict=True)
        return [(plain(row[: self.width]), plain(row[self.width : -1]), row[-1]) for row in rows]

    def _keys(self, table):
        return [plain(row) for row in zip(*(c.to_pylist() for c in table.itercolumns()), strict=True)]

    def _same(self, found, expected):
        if found != expected:
            raise Differs(f"after {self.steps} steps: {found!r} is not {expected!r}")
