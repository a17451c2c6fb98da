"""Copies a lake again and again until it is killed; tells `ready`, and `done` after each run."""

import sys

import tidelake

source, target = sys.argv[1:]
with tidelake.open(source, create=False) as lake:
    # What is imported late is there.
    lake.collection("a").snapshot().read_all()
    print("ready", flush=True)
    while True:
        lake.copy(target)
        print("done", flush=True)
