"""The application that the commands are registered in, and the console on which they print."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand

from kperf import __version__
from kperf.cli import interrupt
from kperf.cli.ending import end
from kperf.console import of_standard_output
from kperf.errors import UsageError

_PURPOSE = """See where a Triton kernel's warp groups wait, at which line, and what to change.

`kperf doctor` says what this machine can run. Status 2 for a mistake in what was asked, 1 for a failed measurement
or check, 130 after Ctrl-C.
"""

_Function = TypeVar("_Function", bound=Callable[..., Any])


class _Command(TyperCommand):
    """A command that takes an option once: the last of two would win, and the first be ignored."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Raises `UsageError` for an option that is given twice, and for an empty path: it would be this folder."""
        given, _, order = self.make_parser(ctx).parse_args(args=list(args))
        for parameter in order:
            if order.count(parameter) > 1 and not parameter.multiple:
                raise UsageError(f"{parameter.opts[0]} is given twice: give it once, lists with commas")
        rest = super().parse_args(ctx, args)
        for parameter in order:
            if given[parameter.name] == "" and isinstance(ctx.params[parameter.name], Path):
                raise UsageError(f"{parameter.opts[0]} is empty: give a path, . is this folder")
        return rest

    def invoke(self, ctx: Any) -> Any:
        """As typer's, but Ctrl-C is answered with a sentence: what is kept, and with what else is known of it."""
        try:
            with interrupt.raised():
                return super().invoke(ctx)
        except KeyboardInterrupt as interrupted:
            end(", ".join([interrupt.KEPT, *map(str, interrupted.args)]), interrupt.STATUS)


class _App(typer.Typer):
    def command(self, name: str | None = None, **settings: Any) -> Callable[[_Function], _Function]:
        """As typer's, of a `_Command`."""
        return super().command(name, cls=_Command, **settings)


app = _App(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    help=_PURPOSE,
    context_settings={"help_option_names": ["-h", "--help"]},
)
override_app = _App(no_args_is_help=True, help="The TTGIR overrides.")
app.add_typer(override_app, name="override", rich_help_panel="The paper's figures and our records")
image_app = _App(no_args_is_help=True, help="The container image, built and run through the Docker SDK.")
app.add_typer(image_app, name="image", rich_help_panel="This machine and the container")
console = of_standard_output()


def _say_version(wanted: bool) -> None:
    if wanted:
        from kperf.record.commit import git_commit

        console.print(f"kperf {__version__}, commit {git_commit()}")
        raise typer.Exit


@app.callback()
def _of_all_commands(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Print version and commit.")
    ] = False,
) -> None:
    pass
