#!/usr/bin/env bash
# The original's interface, for every variant in ttgir/: bench_fa.sh <variant> <seq_len|batch_size> [options]
set -euo pipefail
cd "$(dirname "$0")"
variants=$(cd ttgir && echo */ | sed 's|/ |\||g; s|/$||')
if [[ ! "${1:-}" =~ ^($variants)$ ]]; then
  echo "usage: bench_fa.sh <$variants> <seq_len|batch_size> [options]" >&2
  exit 2
fi
MAKEFLAGS='' make -s setup
python=.venv/bin/python
[ -z "${KPERF_IN_CONTAINER:-}" ] || python=python
exec "${PYTHON:-$python}" -m kperf sweep --only "$1" "${@:2}"
