"""Our kernels inside the programs of others: a torch operator, and tritonbench."""
