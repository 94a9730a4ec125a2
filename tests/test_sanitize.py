"""The runner of compute-sanitizer, with a stand-in for the tool: what it says is what comes out."""

import pytest

from tests import sanitize

STAND_IN = """#!/bin/bash
[ "$1" = --help ] && echo '  --report-api-errors arg' && exit
while [ "$1" != --log-file ]; do shift; done
log=$2
printf '%s\\n' "========= COMPUTE-SANITIZER" "$*" "{said}" > "$log"
{then}
"""


@pytest.mark.parametrize(
    ("said", "then", "verdict"),
    [
        ("========= ERROR SUMMARY: 0 errors", "echo x: ran to its end", "clean"),
        ("========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)", "echo ran to its end", "clean"),
        ("========= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)", "echo ran to its end", "errors"),
        ("========= ERROR SUMMARY: 12 errors", "exit 1", "errors"),
        ("========= ERROR SUMMARY: 0 errors", "echo AssertionError; exit 1", "program failed"),
        ("========= Error: Target application terminated before first instrumented API call", "", "program failed"),
        ("========= Error: Device not supported", "exit 1", "cannot run here"),
        ("========= ERROR SUMMARY: 0 errors", "sleep 60", "timed out"),
    ],
)
def test_what_the_tool_says_is_what_comes_out(tmp_path, said, then, verdict):
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(STAND_IN.format(said=said, then=then))
    tool.chmod(0o755)
    outcome = sanitize.run(str(tool), "memcheck", "vanilla", timeout=2)
    assert outcome.verdict == verdict
    assert outcome.seconds < 30
    assert said.removeprefix("========= ") in outcome.said
    assert "--report-api-errors no" in outcome.said
    assert "--check-tensor-ops" not in outcome.said  # this tool does not know it
