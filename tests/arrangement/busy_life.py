"""A busy life: threads append, read, and do all that may be done to an arrangement, at once.

Every append brings a row of its own, so that a snapshot says which appends it has; the model of just these
answers for it. Filters and since are those that the snapshot was taken under. What is saved, restored and
forked meanwhile is looked at in the same way.
"""

import shutil
import threading
from collections import Counter
from contextlib import closing
from functools import lru_cache
from random import Random

import pyarrow as pa
import pyarrow.compute as pc

from tests.arrangement.arrangement_model import Best, Model, between
from tests.arrangement.spine_rig import SetMachine, tiny
from tidelake.arrangement.arrangement import Arrangement
from tidelake.arrangement.batch.layout import Layout
from tidelake.arrangement.checkpoint.home import Home
from tidelake.arrangement.merge.spine import AsyncSpine
from tidelake.arrangement.read.retention import top_n
from tidelake.data.kernel.types import schema_from_arrow
from tidelake.env import Env
from tidelake.model.time import TimeDomain

WRITERS = 2
READERS = 3
KEYS = 40
# From here on are the keys of which every append brings one.
MARKS = 1000
SCHEMA = pa.schema([("w", pa.int64()), ("k", pa.int64()), ("v", pa.int64())])


class BusyLife:
    """One life; the same seed gives the same appends, but never the same order of things.

    Args:
        seed: of all choices.
        folder: for files.
        appends: of each writer.
        ranked: whether an N-filter is set, and nothing is retracted.
    """

    def __init__(self, seed, folder, appends, *, ranked):
        self.seed, self.folder, self.appends, self.ranked = seed, folder, appends, ranked
        self.machine = SetMachine()
        env = Env()
        config = tiny(
            batches_max=30,
            idle_s=0.01,
            merge_workers=2,
            memory_budget_bytes=1 << 20,
            cache_bytes=20_000,
            process_budget_bytes=100 << 20,
        )
        layout = Layout(schema_from_arrow(SCHEMA, ["w", "k"]), TimeDomain())
        home = Home(folder / "live", env.ids.fresh())
        spine = AsyncSpine(layout, config, directory=home.path, env=env, machine=self.machine)
        self.arrangement = Arrangement(spine, home, env, env.ids.fresh())
        if ranked:
            self.arrangement.retain_values(top_n(2, "v"))
        # By version of the filters the least key that is kept.
        self.least = {self._version(self.arrangement): 0}
        self.updates = [self._updates(Random(f"{seed} {writer}"), writer) for writer in range(WRITERS)]
        self.modelled = lru_cache(maxsize=64)(self._model)
        self.failures = []
        self.writing = WRITERS
        # Twice for each append there is something to disturb, on average; writers wait for it.
        self.disturbed = threading.Semaphore(0)
        self.did = Counter()
        self.saved = (0,) * WRITERS

    def run(self):
        """Let it all happen; raises what any of them came upon."""
        works = [
            *((self._write, writer) for writer in range(WRITERS)),
            *((self._read, reader) for reader in range(READERS)),
            (self._disturb, 0),
        ]
        threads = [threading.Thread(target=self._guarded, args=work) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.failures:
            raise self.failures[0]
        self.machine.share = 0.0
        self.arrangement.resume()
        self.arrangement.merge()
        with self.arrangement.snapshot() as snapshot:
            assert self._look(snapshot, Random(0)) == (self.appends,) * WRITERS
        self.arrangement.close()
        assert list((self.folder / "live").iterdir()) == []

    def _guarded(self, work, number):
        try:
            work(number)
        except BaseException as error:
            self.failures.append(error)
        finally:
            self.writing -= work == self._write

    @property
    def _over(self):
        return not self.writing or self.failures

    def _updates(self, rng, writer):
        """By append: [(key, value, time, diff)]."""
        found = []
        for i in range(self.appends):
            some = [((writer, MARKS + i), (i,), i, 1)]
            for _ in range(rng.choice((0, 1, 3, 12))):
                diff = 1 if self.ranked else rng.choice((1, 1, 2, -1, -2))
                some.append(((writer, rng.randrange(KEYS)), (rng.randrange(9),), i + rng.randrange(3), diff))
            found.append(some)
        return found

    # Those who work at once

    def _write(self, writer):
        rng = Random(f"{self.seed} {writer} calls")
        for some in self.updates[writer]:
            self.disturbed.acquire()
            if self.failures:
                return
            columns = zip(*((*key, *value, time, diff) for key, value, time, diff in some), strict=True)
            names = [*SCHEMA.names, "_time", "_diff"]
            table = pa.table(dict(zip(names, map(list, columns), strict=True)))
            if rng.random() < 0.5:
                self.arrangement.append(table)
            elif self.arrangement.append_nowait(table):
                self.arrangement.wait()

    def _read(self, reader):
        rng = Random(f"{self.seed} {reader} reads")
        seen = (0,) * WRITERS
        while not self._over:
            with self.arrangement.snapshot() as snapshot:
                for _ in range(rng.choice((1, 3))):
                    now = self._look(snapshot, rng)
                    assert all(a <= b for a, b in zip(seen, now, strict=True)), (seen, now)
                    seen = now

    def _disturb(self, _):
        rng = Random(f"{self.seed} disturbs")
        does = {
            self._press: 6,
            self._advance: 4,
            self._filter: 4,
            self._pause: 2,
            self._resume: 3,
            self._merge_nowait: 2,
            self._consolidate: 1,
            self._save: 1,
            self._fork: 1,
        }
        try:
            while not self._over:
                (chosen,) = rng.choices(list(does), does.values())
                chosen(rng)
                self.did[chosen.__name__] += 1
                self.disturbed.release(WRITERS // 2)
        finally:
            self.disturbed.release(WRITERS * self.appends)

    def _press(self, rng):
        self.machine.share = rng.choice((0.0, 0.0, 0.55, 0.65, 0.8, 0.95))

    def _advance(self, rng):
        with self.arrangement.snapshot() as snapshot:
            reached = min(self._appended(snapshot))
        since = self.arrangement.since.elements[0]
        self.arrangement.advance_since(max(since, reached - rng.choice((0, 1, 5))))

    def _filter(self, rng):
        version = self._version(self.arrangement)
        least = self.least[version] + (rng.random() < 0.2)
        # Before any reader can come upon it.
        self.least[version + 1] = least
        self.arrangement.retain_keys(pc.field("k") >= least)

    def _pause(self, rng):
        self.arrangement.pause()
        if rng.random() < 0.8:
            self.arrangement.resume()

    def _resume(self, _):
        self.arrangement.resume()

    def _merge_nowait(self, _):
        self.arrangement.merge_nowait()

    def _consolidate(self, _):
        self.arrangement.resume()
        self.arrangement.merge()

    def _save(self, rng):
        self.arrangement.save(self.folder / "saved")
        filters = self.arrangement._spine.retention
        with Arrangement.restore(self.folder / "saved", directory=self.folder / "again") as again:
            assert self._version(again) == 0
            # What a filter dropped is gone or not; set again, it is not seen.
            again.retain_keys(filters.keys if filters.keys is not None else pc.scalar(True))
            if self.ranked:
                again.retain_values(filters.values)
            with again.snapshot() as snapshot:
                now = self._look(snapshot, Random(1), self.least[filters.version])
        assert all(a <= b for a, b in zip(self.saved, now, strict=True)), (self.saved, now)
        self.saved = now
        if rng.random() < 0.1:
            shutil.rmtree(self.folder / "saved")

    def _fork(self, rng):
        with closing(self.arrangement.fork()) as fork:
            for _ in range(3):
                with fork.snapshot() as snapshot:
                    now = self._look(snapshot, rng)
                fork.merge()
            fork.append(pa.table({"w": [9], "k": [2 * MARKS], "v": [0], "_time": [10**6]}))
            assert fork.lookup(pa.table({"w": [9], "k": [2 * MARKS]})).num_rows == 1
            with fork.snapshot() as snapshot:
                assert self._appended(snapshot) == now

    # Looks

    def _version(self, arrangement):
        return arrangement._spine.retention.version

    def _appended(self, snapshot):
        """How many appends of each writer a snapshot has; they are the first ones."""
        found = []
        for writer in range(WRITERS):
            marks = snapshot.range((writer, MARKS), (writer, 2 * MARKS))["k"].to_pylist()
            assert marks == list(range(MARKS, MARKS + len(marks)))
            found.append(len(marks))
        return tuple(found)

    def _model(self, appended, since, least):
        model = Model(keeps_key=lambda key: key[1] >= least)
        if self.ranked:
            model.best = Best(2, greatest=True, by=0)
        for writer, count in enumerate(appended):
            for some in self.updates[writer][:count]:
                model.append(some)
        model.advance_since(since)
        return model

    def _look(self, snapshot, rng, least=None):
        """Ask something; how many appends of each writer are in it."""
        appended = self._appended(snapshot)
        since = snapshot.since.elements[0]
        if least is None:
            least = self.least[snapshot.retention.version]
        model = self.modelled(appended, since, least)
        as_of = rng.choice((None, since, since + 1, since + 4))
        there = model.contents(as_of)
        asks = rng.choice((self._range, self._lookup, self._sample, self._walk))
        asks(snapshot, rng, there, as_of)
        self.did[asks.__name__] += 1
        return appended

    def _range(self, snapshot, rng, there, as_of):
        limit, reverse = rng.choice((None, 5)), rng.random() < 0.5
        lower = rng.choice((None, (0, rng.randrange(KEYS)), (1,)))
        upper = rng.choice((None, (1, rng.randrange(KEYS)), (1,)))
        found = snapshot.range(lower, upper, limit=limit, reverse=reverse, as_of=as_of)
        assert plain(found) == between(there, lower, upper, limit, reverse)

    def _lookup(self, snapshot, rng, there, as_of):
        asked = {(rng.randrange(WRITERS), rng.randrange(KEYS)) for _ in range(rng.choice((1, 4, 50)))}
        keys = pa.table({"w": [w for w, _ in asked], "k": [k for _, k in asked]})
        assert plain(snapshot.lookup(keys, as_of)) == [row for row in there if row[0] in asked]

    def _sample(self, snapshot, rng, there, as_of):
        keys = {key for key, _, _ in there}
        found = [tuple(row.values()) for row in snapshot.sample_keys(7, as_of=as_of).to_pylist()]
        assert len(found) == min(7, len(keys)) and set(found) <= keys
        if rng.random() < 0.3:
            assert snapshot.key_count(as_of) == len(keys)

    def _walk(self, snapshot, rng, there, as_of):
        cursor = snapshot.cursor(as_of)
        found = []
        if rng.random() < 0.5:
            while cursor.key_valid:
                cursor.map_values(lambda value, weight: found.append((cursor.key, value, weight)))
                cursor.step_key()
            assert found == there
            return
        cursor.fast_forward()
        while cursor.key_valid:
            cursor.fast_forward_values()
            while cursor.val_valid:
                found.append((cursor.key, cursor.value, cursor.weight))
                cursor.step_value_reverse()
            cursor.step_key_reverse()
        assert found == there[::-1]


def plain(table):
    """[(key, value, weight)] of an answer."""
    return [((row["w"], row["k"]), (row["v"],), row["_diff"]) for row in table.to_pylist()]
