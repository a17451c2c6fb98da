"""How much was done in runs of the simulation, for people to read."""

import json
from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Figures:
    """What was done in one run, or in several.

    Attributes:
        seeds: number of runs.
        steps: number of store and clock calls.
        counts: how often clients did or were told each thing.
        injected: number of faults by kind.
        digest: digest of the trace of one run; equal runs have equal digests.
    """

    seeds: int = 0
    steps: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    injected: Counter[str] = field(default_factory=Counter)
    digest: int = 0

    def plus(self, other: "Figures") -> "Figures":
        """The sum of both, without digest."""
        return Figures(
            self.seeds + other.seeds,
            self.steps + other.steps,
            self.counts + other.counts,
            self.injected + other.injected,
        )

    def to_json(self) -> str:
        """The figures as JSON, for `from_json` in another process."""
        return json.dumps([self.seeds, self.steps, self.counts, self.injected])

    @classmethod
    def from_json(cls, text: str) -> "Figures":
        """The figures that `to_json` wrote, without the digest."""
        seeds, steps, counts, injected = json.loads(text)
        return cls(seeds, steps, Counter(counts), Counter(injected))

    def __str__(self) -> str:
        def listed(counts: Counter[str]) -> str:
            return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"

        return (
            f"simulation: seeds {self.seeds}, steps {self.steps}; {listed(self.counts)}; "
            f"faults {self.injected.total()}: {listed(self.injected)}"
        )
