"""See inside a kernel: put records into its TTGIR, capture what they write, and read the timeline that comes out."""

PASSES = "auto"
"""Over how many launches the records of an iteration are spread where nobody says."""
CTAS = "auto"
"""Which CTAs of a launch are recorded where nobody says."""
