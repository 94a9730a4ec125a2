"""The site of the pages: what is in it, and that a link which leads nowhere fails it."""

import re
import shutil
import subprocess
import sys
import tomllib

import pytest

from docs import site
from kperf.diagnose.rule import all_rules
from kperf.trace.analyze.models import Timeline
from tests.pages import PAGES, ROOT
from tests.test_pages import commands

LISTED_BY_A_PAGE = re.compile(r"docs/(rules|sped_up)/[a-z0-9-]+\.md")
"""Pages that no navigation has: the table of rules and that of collections link these."""
CONFIGURATION = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    site.gather(folder / CONFIGURATION["docs_dir"])
    shutil.copy(ROOT / "zensical.toml", folder)
    (folder / "kperf").symlink_to(ROOT / "kperf")
    return folder


def in_navigation(entries):
    for entry in entries:
        for target in entry.values():
            yield from [target] if isinstance(target, str) else in_navigation(target)


def test_every_page_is_in_the_navigation(pages):
    listed = list(in_navigation(CONFIGURATION["nav"]))
    gathered = {str(path.relative_to(pages / "build/pages")) for path in pages.glob("build/pages/**/*.md")}
    assert len(listed) == len(set(listed))
    assert set(listed) == {name for name in gathered if not LISTED_BY_A_PAGE.fullmatch(name)}
    assert {name for name in PAGES if not LISTED_BY_A_PAGE.fullmatch(name)} <= set(listed)


def test_the_reference_has_every_command_and_every_field(pages):
    shown = (pages / "build/pages/docs/reference/command-line.md").read_text()
    for words, options in commands().items():
        _, _, section = f"{shown}\n#".partition(f"# `{' '.join(('kperf', *words))}`\n")
        assert section or not words
        section = section.partition("\n#")[0]
        assert not words or all(option in section for option in options if option.startswith("--"))
    table = (pages / "build/pages/docs/reference/json.md").read_text()
    assert all(f"\n| `{name}` | `" in table for name in Timeline.model_fields)


def test_every_rule_is_listed(pages):
    table = (pages / "build/pages/docs/rules/README.md").read_text()
    for rule in all_rules():
        assert f"[{rule.id}]({rule.id}.md) | {rule.title} |" in table
        assert (pages / f"build/pages/docs/rules/{rule.id}.md").is_file()


def build(folder):
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=280)


def test_a_link_that_leads_nowhere_fails_it(pages):
    pytest.importorskip("zensical")
    done = build(pages)
    assert done.returncode == 0, done.stdout
    reference = (pages / "build/site/docs/reference/python.html").read_text()
    assert all(f'id="kperf.api.{name}"' in reference for name in site.PYTHON["kperf.api"])
    outside = re.findall(r'(?:src|<link[^>]*href)="(https?:[^"]*)"', reference)
    assert outside == []  # a page fetches nothing
    quickstart = pages / "build/pages/docs/quickstart.md"
    for link in ("nosuch.md", "trace.md#nosuch"):
        quickstart.write_text(f"{PAGES['docs/quickstart.md']}\n[x]({link})\n")
        assert build(pages).returncode != 0
