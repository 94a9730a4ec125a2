#!/bin/bash
# What every container starts with: a results folder that can be written, filled with the recorded runs that static figures
# are drawn from; one line that says what this machine can run; then the command, as the same process (signals reach it).
set -euo pipefail

if ! [ -w "$KPERF_RESULTS" ]; then
    echo "error: $KPERF_RESULTS is not writable by user $(id -u): mount a folder you own, with" \
        "-v \"\$PWD/results:/results\" --user \"\$(id -u):\$(id -g)\"" >&2
    exit 2
fi
cp -rn --no-preserve=mode /opt/kperf/results/. "$KPERF_RESULTS/"
if [ "${1:-}" = make ]; then
    python -m kperf.doctor >&2
fi
exec "$@"
