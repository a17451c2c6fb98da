"""Spines under random appends, steps, pressure, full disks, filters, full merges and pauses.

What batches hold in sum is compared with a dictionary after every few operations, through the fold and the
filters that a read applies.
"""

import random
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.arrangement.arrangement_rows import Update
from tests.arrangement.spine_rig import LAYOUT, Rig, row, tiny
from tidelake.arrangement.merge.levels import resting_batches_max
from tidelake.arrangement.read.retention import last_n
from tidelake.data.kernel.consolidate import consolidate
from tidelake.data.kernel.select import select
from tidelake.errors import StoreUnavailable
from tidelake.model.frontier import Frontier
from tidelake.model.query import Fold
from tiers import rounds

KEYS = 40


class Walk:
    """One spine and a list of all updates that were ever appended."""

    def __init__(self, folder: Path, seed: int, *, ranked: bool) -> None:
        self.rng = random.Random(seed)
        self.rig = Rig(folder, tiny(batches_max=14))
        self.spine = self.rig.spine
        self.updates: list[Update] = []
        self.since = 0
        self.least_key = 0
        self.ranked = ranked
        self.paused = False
        if ranked:
            self.spine.retain(lambda filters: filters.with_values(last_n(2)))

    def run(self, operations: int) -> None:
        choices = [
            (self.append, 8),
            (self.step, 12),
            (self.press, 1),
            (self.squeeze, 1),
            (self.advance, 1),
            (self.filter, 0.3),
            (self.merge_nowait, 0.5),
            (self.merge, 0.2),
            (self.pause, 0.5),
            (self.check, 2),
        ]
        does, weights = zip(*choices, strict=True)
        for operation in self.rng.choices(does, weights, k=operations):
            operation()
        self.end()

    def append(self) -> None:
        most = self.rng.choice((1, 3, 10, 60))
        rows = [self.one() for _ in range(self.rng.randint(1, most))]
        try:
            asked = self.rig.append(*rows)
        except StoreUnavailable:
            # What a merge met before; nothing was appended.
            self.rig.machine.free = 1 << 40
            return
        self.updates += rows
        if asked and self.rng.random() < 0.7:
            self.spine.wait()
            full = self.rig.machine.free < 1 << 40
            assert full or self.spine.report().batches < 14

    def one(self) -> Update:
        time = self.since + 1 + self.rng.randint(0, 3)
        if self.ranked:
            # What an N-filter dropped is not to be retracted: see `tidelake.arrangement.read.retention`.
            return row(self.rng.randrange(KEYS), time, 1, self.rng.choice("abcdefg"))
        return row(self.rng.randrange(KEYS), time, self.rng.choice((1, 1, 2, -1)), self.rng.choice("abc"))

    def step(self) -> None:
        self.spine.step()

    def press(self) -> None:
        self.rig.machine.share = self.rng.choice((0.1, 0.1, 0.45, 0.55, 0.65, 0.8, 0.95))

    def squeeze(self) -> None:
        self.rig.machine.free = self.rng.choice((0, 10_000, 1 << 40, 1 << 40))

    def advance(self) -> None:
        self.since += self.rng.randint(1, 3)
        self.spine.advance_since(Frontier.of(self.since))

    def filter(self) -> None:
        self.least_key = min(KEYS, self.least_key + self.rng.randint(0, 3))
        self.spine.retain(lambda filters: filters.with_keys(pc.field("k0") >= self.least_key))

    def merge_nowait(self) -> None:
        # What a merge met before, told once; nothing was asked for.
        with suppress(StoreUnavailable):
            self.spine.merge_nowait()

    def merge(self) -> None:
        if self.paused or self.rig.machine.free < 1 << 40:
            return
        try:
            self.spine.merge()
        except StoreUnavailable:
            # What a merge met before, told once.
            self.spine.merge()
        assert self.spine.is_merged

    def pause(self) -> None:
        (self.spine.resume if self.paused else self.spine.pause)()
        self.paused = not self.paused

    def check(self) -> None:
        try:
            batches, rules = self.spine.held()
        except StoreUnavailable:
            batches, rules = self.spine.held()
        try:
            pieces = [rows for batch in batches for rows in batch.scan()]
            assert len({batch.id for batch in batches}) == len(batches)
        finally:
            for batch in batches:
                batch.release()
        held = rules.retention.visible(folded(pieces, self.since), rules.since)
        assert listed(held) == self.expected()

    def expected(self) -> list[tuple[object, ...]]:
        sums: Counter[tuple[object, ...]] = Counter()
        for (key, value, *_), time, diff in self.updates:
            if key >= self.least_key:  # type: ignore[operator]
                sums[(key, value, max(time, self.since))] += diff
        left = {row: diff for row, diff in sums.items() if diff}
        for key in {key for key, *_ in left} if self.ranked else ():
            live = sorted(value for k, value, time in left if (k, time) == (key, self.since))
            for value in live[:-2]:
                del left[(key, value, self.since)]
        return sorted((*row, diff) for row, diff in left.items())

    def end(self) -> None:
        self.rig.machine.free = 1 << 40
        self.spine.resume()
        self.paused = False
        self.check()
        self.rig.merge_due()
        assert self.spine.at_rest
        assert self.spine.report().batches <= resting_batches_max(self.spine.config.fans)
        self.check()
        try:
            self.spine.merge()
        except StoreUnavailable:
            # What a merge met before, told once.
            self.spine.merge()
        assert self.spine.is_merged
        self.check()
        assert len(self.rig.files()) <= 1
        self.spine.close()
        assert self.rig.files() == []


def folded(pieces: list[pa.RecordBatch], since: int) -> pa.RecordBatch:
    """What a read as of since or later cannot tell from the pieces."""
    moved = [select(rows, Fold(Frontier.of(since)), LAYOUT.domain) for rows in pieces]
    table = consolidate(pa.Table.from_batches(moved, LAYOUT.arrow), LAYOUT.schema, LAYOUT.domain)
    return table.combine_chunks().to_batches()[0] if table.num_rows else LAYOUT.empty


def listed(rows: pa.RecordBatch) -> list[tuple[object, ...]]:
    columns = [rows.column(name).to_pylist() for name in ("k0", "v", "_time", "_diff")]
    return list(zip(*columns, strict=True))


@pytest.mark.promise(
    "Merges do not change the contents, under any pressure, full disks, pauses and full merges",
    rule="`arrangement/merge/schedule.py`, `arrangement/merge/merger.py`",
    also=["arrangement/merge/test_spine.py::test_threads_merge_while_others_append_and_read"],
)
@pytest.mark.grows
@pytest.mark.parametrize("ranked", [False, True])
def test_a_spine_holds_what_was_appended_whatever_merges(tmp_path, rng, ranked, record_property):
    """Two short walks, then long ones while there is time."""
    first = rng.getrandbits(40)
    for number in rounds(full=10, soak=600, least=2):
        print(f"seed {first + number}")
        place = tmp_path / str(number)
        place.mkdir()
        Walk(place, first + number, ranked=ranked).run(200 if number < 2 else 3000)
    record_property("figures", f"seeds {first} to {first + number}")
