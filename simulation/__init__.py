"""Deterministic simulation: the real code, many clients, every fault, one seed.

`baton` hands one right to run from thread to thread, `world` holds stores, clocks and faults, `clients` use
the product as its users do, `judge` knows what every answer must be, `run` brings them together and finds
the shortest run that fails. By hand: `make sim SEED=7 STEPS=2000`.
"""
