#!/usr/bin/env bash
# The original's interface: bench_fa.sh <vanilla|improved> <seq_len|batch_size> [options of `python -m kperf sweep`]
set -euo pipefail
cd "$(dirname "$0")"
if [[ ! "${1:-}" =~ ^(vanilla|improved|improved_plus)$ ]]; then
  echo "usage: bench_fa.sh <vanilla|improved|improved_plus> <seq_len|batch_size> [options]" >&2
  exit 2
fi
make -s setup
exec "${PYTHON:-.venv/bin/python}" -m kperf sweep --only "$1" "${@:2}"
