"""Deterministic simulation: the real code, many clients, every fault, one seed.

`scheduler` lets one thread run at a time, `world` holds stores, clocks and faults, `clients` use the product
as its users do, `judge` knows what every answer must be, and `run` brings them together and finds the
shortest run that fails. To run a seed by hand: `make sim SEED=7 STEPS=2000`.
"""
