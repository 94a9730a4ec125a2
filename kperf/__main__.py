"""`python -m kperf`."""

from kperf.cli import main

main()
