"""How this program is installed: in a checkout or from a wheel, and where its files lie in each."""

from pathlib import Path

from kperf.errors import UsageError

PACKAGE = Path(__file__).resolve().parent

CHECKOUT = PACKAGE.parent if (PACKAGE.parent / "bench_fa.sh").is_file() else None
"""The checkout around the package; None where a wheel was installed."""

TTGIR_DIR = (PACKAGE / "ttgir").resolve()
"""The overrides. In a checkout `kperf/ttgir`, `kperf/plots` and `kperf/claims.toml` are links to its top level."""

CLAIMS = (PACKAGE / "claims.toml").resolve()

EXAMPLES = PACKAGE.parent / "examples"
"""The scripts of a checkout; see `require_checkout`."""


def require_checkout(name: str) -> None:
    """Raise `UsageError` where `name`, which only a checkout has, is asked for without one."""
    if CHECKOUT is None:
        raise UsageError(f"{name} is not in the installed package: run this in a checkout, as `python -m kperf`")
