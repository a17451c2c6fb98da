"""A shard whose parts have rows: what is stored, what is live, and merges that are really carried out.

A part is a dict `{(key, time): diff}` under its name. Everything that its description says of the rows is
counted from them.
"""

from collections import Counter
from random import Random

from shard_states import Shard, part
from writes import append

from tidelake.model import time as times
from tidelake.model.batch import Part, Run
from tidelake.model.frontier import Frontier
from tidelake.state.core.commands import Commit
from tidelake.state.life.holds import advance_since
from tidelake.state.spine.merging import MergeResult, Policy, chosen, everything, requests
from tidelake.state.spine.space import must_merge_all
from tidelake.state.upkeep.maintenance import apply_merge, collapse_levels
from tidelake.state.write.write import When


def summed(updates) -> dict:
    """Updates `((key, time), diff)`, consolidated."""
    sums = Counter()
    for at, diff in updates:
        sums[at] += diff
    return {at: diff for at, diff in sums.items() if diff}


def counted(rows: dict, random: Random) -> tuple[tuple[int, int], ...]:
    """`Part.time_counts`: exactly the least time first, the others in as many steps as it happens."""
    at = sorted(Counter(time for _, time in rows).items())
    found = at[:1]
    for time, count in at[1:]:
        if len(found) > 1 and random.random() < 0.5:
            found[-1] = (found[-1][0], found[-1][1] + count)
        else:
            found.append((time, count))
    return tuple(found)


class RealShard(Shard):
    def __init__(self, domain, random: Random):
        super().__init__(domain)
        self.random = random
        self.stored: dict[str, dict] = {}
        self.history: list = []

    @property
    def domain(self):
        return self.state.domain

    @property
    def since(self) -> Frontier:
        return self.state.since

    def append(self, when: When, runs: int, draw):
        """Append so many runs of what `draw()` gives, an update each time."""
        made = [
            self._run(summed(draw() for _ in range(self.random.choice([1, 1, 3, 30])))) for _ in range(runs)
        ]
        before = set(self.names)
        outcome = self.do(append, tuple(run for run in made if run), when)
        assert isinstance(outcome, Commit)
        self.history += [
            update for run in self.runs if run.parts[0].name not in before for update in self.rows_of(run)
        ]

    def downgrade(self, since: Frontier):
        self.do(advance_since, since)

    def rows_of(self, run: Run):
        """The updates of a run as a reader sees them: with rewritten times, folded as far as the run is."""
        for p in run.parts:
            for (key, time), diff in self.stored[p.name].items():
                yield (key, time if p.rewrite is None else times.join(time, p.rewrite)), diff

    def merge(self, request):
        """Carry a request out: advance, consolidate, write, put in place."""
        runs = chosen(list(self.state.spine.range(request.id)), request.positions)
        updates = [update for run in runs for update in self.rows_of(run)]
        assert len(runs) == request.sources and sum(run.rows for run in runs) == request.rows
        output = self._run(self.folded(updates))
        result = MergeResult(request.id, request.positions, request.inputs, self.since, output)
        assert self.do(apply_merge, result).result.applied

    def folded(self, updates) -> dict:
        return summed(((key, self.since.advance(time)), diff) for (key, time), diff in updates)

    @property
    def runs(self):
        return [run for member in self.state.spine for run in member.batch.runs]

    @property
    def rows(self):
        return [update for run in self.runs for update in self.rows_of(run)]

    def maintain(self, policy: Policy, *, thorough: bool) -> int:
        """Merge what the state says is to be merged, until it says no more. Returns how many merges."""
        allowed = 3 * len(self.runs) + 2 * len(self.state.spine) + 3
        for merges in range(allowed):
            asked = next(requests(self.state.spine, policy), None)
            if asked is None:
                if not must_merge_all(self.state.spine, self.since, thorough=thorough):
                    return merges
                self.do(collapse_levels)
                asked = everything(self.state.spine, policy)
                assert asked is not None
            assert asked.sources <= policy.fan_in or policy.fold_rows
            self.merge(asked)
        raise AssertionError(f"not done after {allowed} merges")

    def _run(self, rows: dict) -> Run | None:
        """The rows as a run of one or two parts, parted between two keys."""
        if not rows:
            return None
        keys = sorted({key for key, _ in rows})
        cut = self.random.choice(keys)
        halves = [
            {at: d for at, d in rows.items() if at[0] < cut},
            {at: d for at, d in rows.items() if at[0] >= cut},
        ]
        return Run(tuple(self._part(half) for half in halves if half))

    def _part(self, rows: dict) -> Part:
        name = f"p{len(self.stored)}"
        self.stored[name] = rows
        at = [times.parts(time) for _, time in rows]
        ints = isinstance(next(iter(rows))[1], int)
        first, last = (tuple(f(c) for c in zip(*at, strict=True)) for f in (min, max))
        return part(
            name,
            first[0] if ints else first,
            last[0] if ints else last,
            len(rows),
            sum(rows.values()),
            negative_rows=sum(d < 0 for d in rows.values()),
            time_counts=counted(rows, self.random) if ints else (),
        )
