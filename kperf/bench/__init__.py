"""Correctness gate, timing in turn, intervals, sweeps, power, tables."""

MEASURES_AGAIN = "FRESH=1 with make, or --fresh with kperf, measures again"
"""How to repeat what is recorded, in both of its spellings."""
