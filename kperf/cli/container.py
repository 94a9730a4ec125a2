"""The container image, and what this machine can run."""

from typing import Annotated

import typer

from kperf.cli.app import app, console, image_app
from kperf.cli.options import Gpus, GpusOption, Image, Memory, Results
from kperf.installation import require_checkout
from kperf.record.store import RECORDED


@image_app.command()
def build(
    image: Image = "kperf",
    base: Annotated[str | None, typer.Option(help="Another base image than the pinned one.")] = None,
    triton: Annotated[
        str | None, typer.Option(help="Another Triton: a version, a wheel's address, git+https://...")
    ] = None,
    with_flash_attn: Annotated[bool, typer.Option(help="Build the flash-attn package for fa2; takes hours.")] = False,
) -> None:
    """Build the image from the Dockerfile, one line a step."""
    require_checkout("what the image is made from")
    from kperf import container

    container.build(image, base=base, triton=triton, with_flash_attn=with_flash_attn, console=console)


@image_app.command(context_settings={"ignore_unknown_options": True})
def run(
    command: Annotated[list[str], typer.Argument(help="What to run in the container.")],
    results: Results = RECORDED,
    image: Image = "kperf",
    gpus: GpusOption = Gpus.auto,
    memory: Memory = None,
) -> None:
    """Run a command in the image: read-only, without network; results come back however it ends."""
    from kperf import container

    raise typer.Exit(container.run(command, results, image=image, gpus=gpus.value, memory=memory))


@image_app.command()
def shell(
    results: Results = RECORDED, image: Image = "kperf", gpus: GpusOption = Gpus.auto, memory: Memory = None
) -> None:
    """Bash in the image; what it leaves in /results comes back."""
    from kperf import container

    raise typer.Exit(container.shell(results, image=image, gpus=gpus.value, memory=memory))


@app.command()
def doctor() -> None:
    """What this machine can run, and why not the rest; status 1 if nothing can run."""
    from kperf import doctor
    from kperf.record import machine

    if not doctor.report(machine.probe()):
        raise typer.Exit(1)
