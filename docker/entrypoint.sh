#!/bin/bash
# What every container starts with: a folder for results and one for what is temporary that can be written; if there are
# no results, the recorded runs that static figures are drawn from (all of them or none); a word about files that are cut
# short; before `make`, a line that says where the numbers will come from; then the command, as the same process, so that
# signals reach it.
set -euo pipefail

if ! [ -w "$KPERF_RESULTS" ]; then
    echo "kperf: $KPERF_RESULTS is not writable by user $(id -u): mount a folder you own, with" \
        "-v \"\$PWD/results:/results\" --user \"\$(id -u):\$(id -g)\"" >&2
    exit 2
fi
if ! [ -w /tmp ]; then
    echo "kperf: /tmp cannot be written, where compilers and libraries put what is temporary: start the container" \
        "with --tmpfs /tmp:exec" >&2
    exit 2
fi
python -m kperf.record.recorded
if [ "${1:-}" = make ]; then
    python -m kperf.record.machine >&2
fi
exec "$@"
