"""The IR of any kernel: compile, read, override, machine code."""
