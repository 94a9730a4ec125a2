"""The subject of the paper: workload, kernels, variants, overrides, the implementations by key."""
