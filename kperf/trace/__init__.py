"""See inside a kernel: put records into its TTGIR, capture what they write, and read the timeline that comes out."""
