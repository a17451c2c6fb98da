"""The findings of a check of a lake (fsck): one value for each thing that is wrong or worth knowing."""

from collections.abc import Callable
from dataclasses import dataclass

# Kinds that are worth knowing but not damage: garbage goes by itself, negative rows and sums that are too
# large are what was written, `mendable` accompanies the finding that it would repair, `kept-aside` is kept
# for people, a ghost has no effect, and the bytes of erased rows go with the garbage.
_NOTES = frozenset(
    {"old-garbage", "negative-rows", "sum-too-large", "mendable", "kept-aside", "ghost-entry", "erased-bytes"}
)


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong or worth knowing.

    Attributes:
        kind: one of `KINDS`, such as `part-damaged`.
        collection: name of the collection; empty for the lake itself, or if the name is not known.
        object: the blob, log entry or shard.
        message: what is wrong, for people, and what it means for reads.
        repaired: whether it was repaired.
    """

    kind: str
    collection: str
    object: str
    message: str
    repaired: bool = False

    @property
    def note(self) -> bool:
        """Whether nothing needs to be done about it."""
        return self.kind in _NOTES

    def __str__(self) -> str:
        where = f"{self.collection}: " if self.collection else ""
        return f"{where}{self.kind}: {self.object}: {self.message}{' (repaired)' if self.repaired else ''}"


Tell = Callable[[str, str, str], None]
"""Called with the kind, the object and the message of a finding."""

KINDS = {
    (
        "`log-missing`, `log-gap`, `log-damaged`, `log-misfit`, `log-behind`, `log-lost`, "
        "`log-unreadable`, `rule-broken`"
    ): (
        "the log is not there; entries are missing, damaged, do not fit, or were lost at the end; no "
        "whole state leads to the newest entry; a state or step breaks a rule"
    ),
    ("`rollup-missing`, `rollup-damaged`, `rollup-differs`"): (
        "the stored state that readers start from is not what the log makes"
    ),
    ("`part-missing`, `part-size`, `part-damaged`, `part-swapped`, `part-unreadable`, `part-schema`"): (
        "an object is not there, has other bytes, those of another part, or cannot be decoded"
    ),
    ("`held-missing`, `held-damaged`"): (
        "events that a stream on Spark holds back are not there, or other ones: the stream stops"
    ),
    (
        "`part-unsorted`, `part-unconsolidated`, `part-rows`, `part-diffs`, `part-keys`, "
        "`part-times`, `part-stats`, `run-unsorted`, `batch-times`"
    ): ("rows are not in order or there twice; a part, run or batch is not what the state says of it"),
    ("`base-differs`"): ("a base does not have the contents that it stands for; a repair forgets it"),
    ("`pinned-missing`"): ("an object that a reader holds, or that is kept for a fork, is gone"),
    ("`fork-unknown`"): ("a fork needs parts of a collection that does not keep them for it: merge the fork"),
    ("`unavailable`, `symbolic-link`"): (
        "the store refuses the log or an object; a link is in the place of a folder or file: move "
        "its target there. The rest of that collection was not checked"
    ),
    ("`catalog-missing`, `catalog-unreadable`, `catalog-row`, `unnamed-shard`"): (
        "names were lost, lead to no shard, or data has none"
    ),
    ("`unknown-format`"): ("another version wrote it"),
    (
        "`leaked-part`, `leaked-rollup`, `unknown-shard`, `unfinished-shard`, `unfinished-fork`, "
        "`half-dropped`, `unknown-object`"
    ): ("something is left over, and older than it should be"),
    ("`set-aside`, `erasure-lost`"): (
        "a repair could not keep this; it left an erasure out whose keys cannot be read: erase again"
    ),
    ("`erasure-pending`"): ("rows are to be erased, and are still there: maintain the collection"),
    ("notes: `mendable`, `kept-aside`, `old-garbage`, `erased-bytes`, `ghost-entry`"): (
        "what `--repair` would do; where something was set aside; garbage, and bytes of erased rows, "
        "that go with maintenance; a late write to a log without effect"
    ),
    ("notes: `negative-rows`, `sum-too-large`"): (
        "rows with [negative multiplicity](#rows-with-negative-multiplicity); diffs whose sum no "
        "int64 holds: append the opposite of some"
    ),
}
"""What a finding of each kind means, for the site."""
