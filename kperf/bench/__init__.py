"""Correctness gate, timing in turn, intervals, sweeps, power, tables."""
