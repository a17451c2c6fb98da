"""`python -m simulation`: run seeds by hand; see `make sim`."""

import argparse
import sys

from simulation.figures import Figures
from simulation.run import SimulationFailed, shortest, simulate
from tidelake.env import SystemClock


def main() -> int:
    """Run the seeds that the command line names; 1 if one fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many")
    parser.add_argument("--steps", type=int, default=2000, help="store and clock calls of each")
    parser.add_argument("--quick", action="store_true", help="do not look for the shortest run that fails")
    asked = parser.parse_args()
    clock = SystemClock()
    figures, started_s = Figures(), clock.monotonic_s()
    for seed in range(asked.seed, asked.seed + asked.seeds):
        try:
            figures = figures.plus(simulate(seed, asked.steps))
        except SimulationFailed as failed:
            sys.stdout.write(f"{failed if asked.quick else shortest(seed, failed.steps) or failed}\n")
            return 1
    sys.stdout.write(f"{figures}; {clock.monotonic_s() - started_s:.1f} s\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
