"""A shard of many small batches, with slices and bases, that commands are run on."""

from shard_states import F, Shard, run
from writes import append

from tidelake.model.batch import Run
from tidelake.state.upkeep import basing
from tidelake.state.upkeep.basing import Made, add_base, request
from tidelake.state.upkeep.slices import cut_slices
from tidelake.state.write.write import Exactly


class SlicedShard(Shard):
    """Each batch holds one time: that of its number, if all came by `add`."""

    def add(self, *rows, negative=0):
        """A batch for each number of rows; so many rows of each are retractions."""
        for count in rows:
            (at,) = self.state.upper.elements
            diffs = {"negative_rows": negative, "diff_sum": count - 2 * negative}
            held = () if not count else (run(f"p{at}", at, at, rows=count, **diffs),)
            self.do(append, held, Exactly(F(at), F(at + 1)))

    def cut(self, least):
        """Cut slices; how many."""
        return self.do(cut_slices, least=least).result

    @property
    def slices(self):
        return [(held.id.lo, held.id.hi) for held in self.state.spine.slices]

    @property
    def levels(self):
        return [(member.id.lo, member.id.hi) for member in self.state.spine.levels()]

    def made(self, hi, rows=1, saves=0, asked=None):
        """A base before an insertion, of one row unless told; 0: an empty one."""
        asked = request(self.state, hi, saves) if asked is None else asked
        total = sum(batch.diff_sum for batch in basing.inputs(self.state, asked))
        name = f"b{hi}" + "'" * sum(made.startswith(f"b{hi}") for made in self.every_name)
        runs = (run(name, asked.base, asked.base, rows=rows, diff_sum=total),) if rows else ()
        return Made(asked, runs, self.state.seqno)

    def base(self, hi, rows=1, saves=0):
        """Make a base; how it fits."""
        return self.do(add_base, self.made(hi, rows, saves)).result

    @property
    def every_name(self):
        return [part.name for part in self.state.parts()] + [*self.garbage]

    @property
    def bases(self):
        return [base.hi for base in self.state.bases]


def names(batches):
    return [part.name for batch in batches for part in batch.parts()]


def counted(name, counts, **fields):
    """A run that says how many rows have each time."""
    times, rows = [time for time, _ in counts], sum(count for _, count in counts)
    fields = {"diff_sum": rows} | fields
    return Run((*run(name, times[0], times[-1], rows=rows, time_counts=tuple(counts), **fields).parts,))
