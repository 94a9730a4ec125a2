"""The original's `benchmark_attn.py <seq_len|batch_size>`: the FA2, FA3 and cuDNN baselines of one panel of Fig. 12."""

import sys

try:
    from kperf.cli import main
except ModuleNotFoundError as error:
    sys.exit(f"benchmark_attn.py: {error.name} is missing: run `make setup` and use .venv/bin/python")

if __name__ == "__main__":
    sys.argv[1:1] = ["sweep", "--only", "fa2,fa3,cudnn"]
    main()
