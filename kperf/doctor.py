"""What this machine can run, and why not the rest, on the console; never imports torch."""

from rich.text import Text

from kperf.console import of_standard_output
from kperf.installation import why_missing
from kperf.record.machine import Machine, Verdict, diagnose


def diagnose_engine() -> list[Verdict]:
    """What this machine's Docker engine can run; asks it."""
    try:
        from kperf import container  # the Docker SDK is of no use in a container, nor for measuring

        engine, toolkit = container.why_no_engine()
    except ModuleNotFoundError as error:
        engine, toolkit = why_missing(str(error.name)), None
    toolkit = engine or toolkit
    return [
        Verdict("image, docker-fig11 and docker-fig12", engine is None, engine or ""),
        Verdict("the GPU inside containers", toolkit is None, toolkit or ""),
    ]


def report(machine: Machine) -> bool:
    """Print what can run, then what cannot and why not; returns whether any of it can."""
    gpus = ", ".join(gpu.name for gpu in machine.gpus) or "no usable NVIDIA GPU"
    driver = f", driver {machine.driver}" if machine.driver else ""
    packages = ", ".join(f"{name} {version or 'missing'}" for name, version in machine.packages.items())
    console = of_standard_output()
    console.print(f"{gpus}{driver}; Python {machine.python}, {packages}")
    verdicts = diagnose(machine)
    engine = [] if machine.in_container else diagnose_engine()
    ordered = sorted(verdicts + engine, key=lambda verdict: not verdict.possible)
    for before, verdict in zip([None, *ordered], ordered, strict=False):
        mark = ("yes", "green") if verdict.possible else ("no ", "red")
        again = before is not None and not verdict.possible and verdict.why == before.why
        why = "for the same reason" if again else verdict.why
        console.print(Text.assemble(mark, f"  {verdict.what}", f": {why}" if why else ""))
    return any(verdict.possible for verdict in verdicts)
