"""The documents: their links lead somewhere, their commands are the program's."""

import re

import pytest

from kperf.cli.commands import app
from tests.pages import PAGES, ROOT

LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]+)?\)")
COMMAND = re.compile(
    r"(?:python -m kperf|(?<![\w/.%-])kperf) ((?:[a-z][a-z0-9-]*)(?: [a-z][a-z-]*)?)((?: --?[a-z][a-z-]*)*)"
)


def anchors(text):
    """Of headings, as code hosting makes them."""
    titles = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {"#" + re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    for target, anchor in LINK.findall(PAGES[page]):
        if target.startswith("http"):
            continue
        path = ((ROOT / page).parent / target).resolve()
        assert path.exists(), f"{page} links {target}"
        if anchor and path.suffix == ".md":
            assert anchor in anchors(path.read_text()), f"{page} links {target}{anchor}"


def commands():
    """Words of each command -> its parameters' options."""
    found = {}
    import typer

    def walk(command, words):
        options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        found[words] = options | {"--help", "-h"}
        for name, inner in getattr(command, "commands", {}).items():
            walk(inner, (*words, name))

    walk(typer.main.get_command(app), ())
    return found


@pytest.mark.parametrize("page", PAGES)
def test_commands_and_their_options_exist(page):
    known = commands()
    for block in re.findall(r"`([^`\n]+)`|^    (.+)$", PAGES[page], flags=re.MULTILINE):
        line = max(block, key=len)
        for words, options in COMMAND.findall(line.partition("docker run")[0]):
            first, *rest = words.split()
            assert (first,) in known, f"{page}: there is no command kperf {first}: {line}"
            command = (first, *rest) if (first, *rest) in known else (first,)
            for option in options.split():
                assert option in known[command], f"{page}: kperf {' '.join(command)} takes no {option}: {line}"


@pytest.mark.parametrize("page", PAGES)
def test_targets_of_make_exist(page):
    targets = set(re.findall(r"^([a-z][a-z0-9-]*):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    for block in re.findall(r"`(make [^`\n]+)`|^    (make [^#\n]+)", PAGES[page], flags=re.MULTILINE):
        settings = re.compile(r"""[A-Z_]+=(?:"[^"]*"|'[^']*'|\S+)""")
        for word in settings.sub("", max(block, key=len)).removeprefix("make ").split():
            if re.fullmatch(r"[a-z][a-z0-9-]*", word):
                assert word in targets, f"{page}: there is no make {word}"


def test_the_appendix_fits_two_printed_pages():
    """With its tables, so many words print as two pages at 10 points; reviewers read no more than two."""
    assert len(PAGES["artifact.md"].split()) <= 1150
