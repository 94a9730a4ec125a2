#!/usr/bin/env bash
# The original's interface, with ours beside: bench_fa.sh <vanilla|improved|improved_plus> <seq_len|batch_size> [options]
set -euo pipefail
cd "$(dirname "$0")"
if [[ ! "${1:-}" =~ ^(vanilla|improved|improved_plus)$ ]]; then
  echo "usage: bench_fa.sh <vanilla|improved|improved_plus> <seq_len|batch_size> [options]" >&2
  exit 2
fi
MAKEFLAGS='' make -s setup
python=.venv/bin/python
[ -z "${KPERF_IN_CONTAINER:-}" ] || python=python
exec "${PYTHON:-$python}" -m kperf sweep --only "$1" "${@:2}"
