"""At the launch: a kernel, its instrumented twin, and the buffer that comes home."""
