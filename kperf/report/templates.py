"""The HTML templates, styles and scripts of this package."""

from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup


def inside(name: str) -> Markup:
    """The text of a file of this package, as it is: nothing in it comes from a user."""
    return Markup(_text(name))


def _text(name: str) -> str:
    return files("kperf.report").joinpath(name).read_text()


def render(template: str, filters: Mapping[str, Callable[..., str]] | None = None, **values: Any) -> str:
    """A page of a template; what `values` say is text and no markup."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, loader=FunctionLoader(_text)
    )
    environment.filters |= filters or {}
    return environment.get_template(template).render(values)
