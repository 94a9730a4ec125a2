"""How this program is installed: in a checkout or from a wheel, where its files lie, which packages are beside it."""

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
RESTORE = (
    "`python -m kperf restore --results FOLDER` makes one that holds the recorded runs"
    if CHECKOUT
    else "a checkout has the recorded runs"
)
"""What a message advises where a folder does not hold the recorded runs."""

EXTRAS = {
    "bokeh": "report",
    "cryptography": "many",
    "dask": "many",
    "distributed": "many",
    "docker": "docker",
    "fa3-fwd": "attention",
    "jinja2": "report",
    "matplotlib": "plots",
    "optuna": "tune",
    "scipy": "bench",
}
"""Which extra of pyproject.toml brings a package that not every command needs."""

_BROUGHT_BY = {"triton": "--force-reinstall torch", "pynvml": "nvidia-ml-py", "yaml": "pyyaml"}
"""What pip installs for a module of another name."""


def why_missing(name: str) -> str:
    """One sentence for a package that is not installed, with what installs it."""
    name = name.partition(".")[0]
    missing = f"the Python package {name} is not installed"
    extra = f"[{EXTRAS[name]}]" if name in EXTRAS else ""
    if CHECKOUT:
        return f"{missing}: run `make setup`, or `pip install '.{extra}'` in an environment of yours"
    wanted = f"'kperf{extra}'" if extra else _BROUGHT_BY.get(name, name)
    return f"{missing}: run `pip install {wanted}`"


def require_checkout(name: str) -> None:
    """Raise `UsageError` where `name`, which only a checkout has, is asked for without one."""
    if CHECKOUT is None:
        raise UsageError(f"{name} is not in the installed package: run this in a checkout, as `python -m kperf`")
