"""The runner of compute-sanitizer, with a stand-in for the tool: what it says is what comes out."""

import pytest

from tests.attention import sanitize

STAND_IN = """#!/bin/bash
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
    outcome = sanitize.run(str(tool), "memcheck", "vanilla", timeout=1 if "sleep" in then else 240)
    assert outcome.verdict == verdict
    assert outcome.seconds < 30
    assert said.removeprefix("========= ") in outcome.said


@pytest.mark.parametrize(
    ("says", "usable"),
    [("Version 2026.4.0.0 (build 39022338)", True), ("Version 2025.3.1.0 (build 36400806)", False), ("?", False)],
)
def test_a_tool_too_old_to_know_mbarriers_is_not_used(tmp_path, monkeypatch, says, usable):
    monkeypatch.setattr(sanitize.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(f"#!/bin/bash\necho '{says}'\n")
    tool.chmod(0o755)
    if usable:
        assert sanitize.find() == (str(tool), "Version 2026.4")
    else:
        with pytest.raises(sanitize.MissingError, match="nvidia-cuda-sanitizer-api"):
            sanitize.find()
