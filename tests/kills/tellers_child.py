"""A process that transfers between accounts of one lake until it is killed.

Usage: tellers_child.py PLACE KIND NAME. It tells `ready`, and `in N TIME` when transfer N is in at a time.
"""

import itertools
import sys
import time
from dataclasses import replace

import pyarrow as pa
from kills_child import again, tell
from places import Place

from tidelake.config import Config

ACCOUNTS = ("a", "b", "c")
SCHEMA = pa.schema([pa.field("who", pa.string(), nullable=False), pa.field("amount", pa.int64())])
CONFIG = Config(
    inline_total_bytes=16 * 1024,
    merge_fan_in=3,
    merge_inputs_min=2,
    merge_rows_min=0,
    runs_max=12,
    lease_s=2.0,
    garbage_age_s=0.2,
    upload_age_s=2.0,
    rollup_bytes_min=4096,
    retry_deadline_s=1.0,
)

FAR = replace(CONFIG, lease_s=8.0, garbage_age_s=2.0, upload_age_s=6.0, retry_deadline_s=4.0)


def config_at(place):
    """The settings for a lake at a place."""
    return CONFIG if place.is_local else FAR


def row(who, amount):
    return pa.table({"who": [who], "amount": pa.array([amount], pa.int64())}, SCHEMA)


def transferring(lake, name):
    """Numbers its transfers by the clock, so that a successor has others."""
    tell("ready")
    for number in itertools.count(time.time_ns()):
        source, target = ACCOUNTS[number % 3], ACCOUNTS[(number + 1 + number // 3 % 2) % 3]
        who, amount = f"{name}-{number}", number % 97
        updates = {source: row(who, -amount), target: row(who, amount)}
        done = again(lambda who=who, updates=updates: lake.write(updates, token=who))
        tell("in", who, amount, source, target, done.upper.elements[0] - 1)


def tending(lake, name):
    """Writes down what was decided, maintains, and takes collections out of their group."""
    tell("ready")
    for number in itertools.count():
        again(lake.collect)
        again(lake.collection(ACCOUNTS[number % 3]).maintain)
        if number % 5 == 4:
            again(lambda number=number: lake.leave(ACCOUNTS[number % 3]))


WORKS = {"transfer": transferring, "tend": tending}


if __name__ == "__main__":
    place, kind, own_name = sys.argv[1:]
    with again(lambda: Place.of(place).open(config_at(Place.of(place)))) as opened:
        WORKS[kind](opened, own_name)
