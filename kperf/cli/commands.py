"""All commands, and how one is run."""

import io
import sys

import typer
from typer.exceptions import TyperException

from kperf.cli import bench, container, diagnose, ir, paper, studies, trace
from kperf.cli.app import app
from kperf.cli.ending import end, end_refused, end_usage, failure_of_the_gpu
from kperf.errors import MeasurementError, UsageError
from kperf.installation import why_missing

PANELS = {
    "Kernels of yours": (diagnose, trace, ir),
    "Attention": (bench,),
    "The paper's figures and our records": (paper,),
    "Profilers beside each other, and how right ours is": (studies,),
    "This machine and the container": (container,),
}
"""What the help lists under which heading. Each module registers its commands as it is imported."""


def _into_panels() -> None:
    panels = {module.__name__: panel for panel, modules in PANELS.items() for module in modules}
    ours = [(command, getattr(command.callback, "__module__", "")) for command in app.registered_commands]
    ours.sort(key=lambda pair: [*panels, pair[1]].index(pair[1]))
    app.registered_commands[:] = [command for command, _ in ours]
    for command, module in ours:
        command.rich_help_panel = panels.get(module, command.rich_help_panel)


_into_panels()


def run() -> None:
    """Run a command: status 2 for a person's mistake, 1 for a failed measurement, one sentence for each."""
    if sys.stdout is None:
        end("standard output is closed: send it to a file, or to /dev/null", 2)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that has no letter for a sign gets a question mark
    try:
        status = app(standalone_mode=False)
        sys.stdout.flush()
        sys.exit(status)
    except (UsageError, MeasurementError) as error:
        end(str(error), 2 if isinstance(error, UsageError) else 1)
    except TyperException as error:
        end_usage(error)
    except typer.Abort:
        end("aborted", 1)
    except ModuleNotFoundError as error:
        end(why_missing(error.name or str(error)), 2)
    except ImportError as error:
        end(f"a package cannot be imported ({' '.join(str(error).split())}): install it anew", 2)
    except OSError as error:
        end_refused(error)
    except Exception as error:
        if (sentence := failure_of_the_gpu(error)) is None:
            raise
        end(sentence, 1)
