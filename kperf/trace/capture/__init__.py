"""At the launch: a kernel, its instrumented kernel, and the buffer that comes home."""
