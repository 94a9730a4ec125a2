"""Which configuration, and which implementation: from what compiling shows and from what is recorded."""
