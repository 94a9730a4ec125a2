"""One script a figure: each reads recorded results and writes PDF and PNG."""
