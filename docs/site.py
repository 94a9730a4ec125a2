"""`make docs`: the checkout's pages, and those that are generated, in a folder for the site's builder.

A page keeps its path, so that its links work on a code host and on the site. The builder refuses a link that leads
nowhere.
"""

import inspect
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from posixpath import dirname, join, normpath
from typing import Any, get_args

import typer
from pydantic import BaseModel
from typer.cli import get_docs_for_click

from kperf.cli.commands import app
from kperf.diagnose.finding import Diagnoses
from kperf.diagnose.rule import Rule, all_rules
from kperf.trace.analyze.models import Timeline

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("*.md", "docs/**/*.md", "kperf/attention/kernels/NOTES.md")
PYTHON = {
    "kperf.api": ("trace", "Trace", "KernelTrace", "traced", "Traced", "diagnose"),
    "kperf.errors": ("UsageError", "MeasurementError"),
    "kperf.integrations.budget": ("Budget", "KernelBudget"),
}
"""Public names by the module that documents them."""
JSON = {"Timeline: `NAME.timeline.json`": Timeline, "Findings: `kperf diagnose --json`": Diagnoses}
LINK = re.compile(r"(?<=\]\()(?!https?:)([^)#\s]+)")


def gather(folder: Path) -> None:
    """Fill a folder, anew: pages, the files that they link to, and what is generated."""
    shutil.rmtree(folder, ignore_errors=True)
    pages = {str(path.relative_to(ROOT)): path.read_text() for pattern in PAGES for path in ROOT.glob(pattern)}
    pages["docs/examples.md"] = with_pictures(pages["docs/examples.md"])
    for name, text in (pages | dict(generated())).items():
        place(folder / name).write_text(LINK.sub(_page_of_folder(name), text))
    for target in {target for name, text in pages.items() for target in linked(name, text)} - pages.keys():
        if (ROOT / target).is_file():
            shutil.copy(ROOT / target, place(folder / target))


def with_pictures(examples: str) -> str:
    """The examples' page with the pictures that `make figures` has drawn; few of them are committed."""
    (folder,) = set(re.findall(r"results/[\w-]+/examples", examples))  # whose records the page is made from
    pictures = {path.stem: path.relative_to(ROOT) for path in sorted((ROOT / folder).glob("*.png"))}

    def shown(match: re.Match[str]) -> str:
        return f"{match[0]}\n\n![{match[1]}](../{pictures[match[1]]})" if match[1] in pictures else match[0]

    return re.sub(r"^## (\w+)$", shown, examples, flags=re.MULTILINE)


def place(path: Path) -> Path:
    """A path whose folder exists."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def linked(name: str, text: str) -> Iterator[str]:
    """Paths from the checkout's top that a page's links lead to."""
    for link in LINK.findall(text):
        yield normpath(join(dirname(name), link))


def _page_of_folder(name: str) -> Any:
    """A code host shows a folder; the site has a page for it."""

    def replaced(match: re.Match[str]) -> str:
        return f"{match[1]}/README.md" if (ROOT / dirname(name) / match[1]).is_dir() else match[1]

    return replaced


def generated() -> Iterator[tuple[str, str]]:
    """Path and Markdown of each page that is no file."""
    command = typer.main.get_command(app)
    shown = get_docs_for_click(obj=command, ctx=typer.Context(command), name="kperf")
    yield "docs/rules/README.md", rules()
    yield "docs/reference/command-line.md", shown.replace("# `kperf`", "# Command line", 1)
    names = [f"::: {module}.{name}" for module, names in PYTHON.items() for name in names]
    yield "docs/reference/python.md", "\n\n".join(["# Python", "[How it is used](../api.md).", *names])
    yield "docs/reference/json.md", "\n\n".join(["# JSON", *(fields(title, model) for title, model in JSON.items())])


def rules() -> str:
    """A table of all rules."""
    rows = [
        f"| [{rule.id}]({rule.id}.md) | {rule.title} | {'no' if isinstance(rule, Rule) else 'yes'} |"
        for rule in all_rules()
    ]
    return "\n".join(["# Rules", "", "| rule | what it finds | needs a trace |", "|---|---|---|", *rows])


def fields(title: str, model: type[BaseModel]) -> str:
    """A section of a kind of JSON file: each model in it with what its docstring says and its fields."""
    parts = [f"## {title}"]
    for part in models(model):
        rows = [f"| `{name}` | `{written(field.annotation)}` |" for name, field in part.model_fields.items()]
        table = "\n".join(["| field | type |", "|---|---|", *rows])
        parts.append(f"### {part.__name__}\n\n{inspect.getdoc(part) or ''}\n\n{table}")
    return "\n\n".join(parts)


def models(model: type[BaseModel]) -> list[type[BaseModel]]:
    """A model and those that its fields are made of, each once."""
    seen = [model]
    for one in seen:
        for field in one.model_fields.values():
            seen += [inner for inner in dict.fromkeys(parts_of(field.annotation)) if inner not in seen]
    return seen


def parts_of(annotation: Any) -> list[type[BaseModel]]:
    """Models in a type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in get_args(annotation) for model in parts_of(inner)]


def written(annotation: Any) -> str:
    """A type, without the modules of its names, in a cell of a table."""
    text = annotation.__name__ if isinstance(annotation, type) and not get_args(annotation) else str(annotation)
    return re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Z])", "", text).replace(" | ", " or ")


if __name__ == "__main__":
    gather(Path(sys.argv[1]))
