"""One rule a file; docs/rules has a page for each, tests/diagnose/kernels a kernel that has its fault."""
