"""What a seed decides before the first step: settings, clients, and the rates of faults.

Owns the ranges of the random choices. Must not know how they are carried out.
"""

import random
from dataclasses import dataclass, field, replace
from typing import Literal

from tidelake.config import Config

# Probability of each fault per store call, before the seed scales them.
_RATES = {
    "unavailable": 0.01,
    "unknown, without effect": 0.015,
    "unknown, after the effect": 0.015,
    "unknown, effect later": 0.008,
    "delay": 0.03,
    "slow reply": 0.015,
    "outage": 0.0015,
    "stall": 0.003,
    "crash": 0.002,
    "machine crash": 0.0006,
    "clock jump": 0.002,
}


@dataclass(frozen=True)
class Options:
    """How one run is set up.

    Attributes:
        config: settings that all clients share; so small that merges and rollups are frequent.
        rates: probability of each kind of fault, per store call.
        roles: names of the clients' roles, see `roles.ROLES`; a role may occur several times.
        skew_ms_max: the most by which a wall clock is off, either way.
        on_disk: blobs are files on a disk that loses in a power cut what was not flushed.
        framed: the log is a framed one on that disk; a process may die before any change to its files.
        skipped_flush: a defect of that disk, for tests of the simulation.
        grace_s: how long removed entries stay, if the log lies in an object store; None: it lies in memory.
        refused: the probability that an object store refuses a put for no visible reason.
        loses_tail: at some step the machine crashes, and a log has lost its newest entries. The run ends when
            a client is told so.
    """

    config: Config
    rates: dict[str, float] = field(default_factory=dict)
    roles: tuple[str, ...] = ()
    skew_ms_max: int = 0
    on_disk: bool = False
    framed: bool = False
    skipped_flush: Literal["file", "folder"] | None = None
    loses_tail: bool = False
    grace_s: float | None = None
    refused: float = 0.0

    @classmethod
    def drawn(cls, draw: random.Random) -> "Options":
        """The options of a seed."""
        worse = draw.choice((0.0, 0.5, 1.0, 1.0, 2.0))
        rates = {kind: rate * worse * draw.choice((0, 1, 1, 2)) for kind, rate in _RATES.items()}
        roles = ["writer", "appender", "reader", "maintainer"]
        more = (
            "holder",
            "holder",
            "collector",
            "writer",
            "writer",
            "appender",
            "appender",
            "reader",
            "listener",
            "listener",
            "maintainer",
            "upkeep",
        )
        roles += draw.choices(more, k=draw.randint(1, 5))
        if draw.random() < 0.8:
            roles.append("owner")
        if draw.random() < 0.6:
            roles += ["collector", "holder"]
        if draw.random() < 0.2:
            roles += ["critical"] * draw.randint(1, 2)
        if draw.random() < 0.4:
            roles += ["dropper"] * draw.randint(1, 3)
        if draw.random() < 0.4:
            roles.append("crowd")
        skew_ms = draw.choice((0, 100, 5_000, 60_000))
        if draw.random() < 0.3:
            # Only with true clocks can be judged how long a read without a hold must find its parts.
            skew_ms, rates["clock jump"] = 0, 0.0
        config, on_disk = _config(draw), draw.random() < 0.4
        if draw.random() < 0.4:
            roles += ["forker"] * draw.randint(1, 2)
        if draw.random() < 0.5:
            roles += ["stager"] * draw.randint(1, 3) + ["sealer", "drainer"]
        if draw.random() < 0.4:
            roles += ["teller"] * draw.randint(1, 3)
        if draw.random() < 0.4:
            roles += ["uploader"] * draw.randint(1, 2)
        options = cls(config, rates, tuple(roles), skew_ms, on_disk, loses_tail=draw.random() < 0.05)
        if draw.random() < 0.4:
            return options.on_objects(draw)
        if on_disk and draw.random() < 0.7:
            return replace(options, framed=True, loses_tail=False)
        return options

    def on_objects(self, draw: random.Random) -> "Options":
        """The same with a log in an object store, and clocks that are up to an hour off."""
        grace_s, refused = draw.choice((0.2, 1.0, 5.0)), draw.choice((0.0, 0.02, 0.1))
        return replace(
            self, skew_ms_max=3_600_000, framed=False, loses_tail=False, grace_s=grace_s, refused=refused
        )


def _config(draw: random.Random) -> Config:
    return Config(
        part_target_bytes=draw.choice((1024, 1024, 4096)),
        row_group_rows=draw.choice((2, 4, 16)),
        merge_chunk_rows=16,
        fold_rows=draw.choice((1, 8, 64)),
        inline_part_bytes=draw.choice((0, 0, 200, 4096)),
        inline_total_bytes=draw.choice((1024, 4096, 1024 * 1024)),
        merge_fan_in=draw.choice((2, 3, 4)),
        merge_inputs_min=draw.choice((2, 4)),
        merge_rows_min=draw.choice((0, 4, 1000)),
        merge_budget_s=draw.choice((0.0, 0.05, 0.25)),
        merge_whole_rows=draw.choice((0, 20, 4_000_000)),
        merge_claim_rows=draw.choice((0, 4, 16, 262_144)),
        slice_rows=draw.choice((4, 16, 64, 16_384)),
        lease_s=draw.choice((1.0, 10.0, 60.0)),
        garbage_age_s=draw.choice((2.0, 20.0, 20.0)),
        upload_age_s=draw.choice((20.0, 100.0)),
        merge_claim_s=draw.choice((0.5, 5.0)),
        runs_max=draw.choice((4, 8, 16)),
        rollup_bytes_min=1024,
        retry_deadline_s=draw.choice((0.2, 2.0)),
        wait_timeout_s=1.0,
        poll_interval_s=0.5,
    )
