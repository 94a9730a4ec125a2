"""How findings look on a terminal."""

from kperf.trace.analyze.finding import Level

STYLES: dict[Level, str] = {"high": "bold red", "medium": "yellow", "low": "cyan"}
"""Rich's style of a severity."""
