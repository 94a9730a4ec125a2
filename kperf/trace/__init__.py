"""See inside a kernel: put events into its TTGIR, capture what they write, and read the timeline that comes out.

Called, `kperf.trace(...)` is `kperf.api.trace`.
"""

PASSES = "auto"
"""Over how many launches the events of an iteration are spread where nobody says."""
CTAS = "auto"
"""Which CTAs of a launch are recorded where nobody says."""
