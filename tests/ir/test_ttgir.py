"""The reader of printed TTGIR, on the committed overrides and on damaged text."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kperf.attention.overrides import TTGIR_DIR
from kperf.attention.schedule import schedule
from kperf.attention.variants import VARIANTS
from kperf.errors import UsageError
from kperf.ir.ttgir import Module

FILES = sorted(TTGIR_DIR.glob("*/*.ttgir"))
TEXT = (TTGIR_DIR / "vanilla" / "d128_bf16_full.ttgir").read_text()
LINES = TEXT.splitlines(keepends=True)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_reads_every_committed_override(path):
    module = Module(path.read_text())
    assert module.kernel_name == "attn_fwd"
    assert schedule(module) == VARIANTS[path.parent.name].schedule
    groups = module.warp_groups()
    assert groups[0].name == "default"
    assert len(groups) >= 3
    assert next(box for box, _ in module.descriptor_boxes())[0] == 64


def test_every_line_of_the_function_is_one_operation_or_a_brace():
    module = Module(TEXT)
    lines = [op.line for op in module.walk()]
    assert len(lines) == len(set(lines))
    body = LINES[module.function.line : module.function.last_line + 1]
    others = [line for line in body if re.match(r"^\s*(\}|default \{|partition\d+\(|\^bb)", line)]
    assert len(lines) + len(others) == len(body)


def test_names_with_signs_are_ssa_names():
    module = Module(TEXT.replace("%c2_i32 ", "%c-2_i32 ", 1))
    assert any("%c-2_i32" in op.results for op in module.walk())


def test_a_kernel_may_have_more_arguments_than_sixty():
    """Of each the name stands on a line before the module's attributes."""
    names = "".join(f'#loc{place} = loc("x_{place}"(#loc))\n' for place in range(1000, 1100))
    module = Module(names + TEXT)
    assert (module.num_warps, module.arch.name) == (Module(TEXT).num_warps, "sm_90a")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "0 public functions"),
        ("module {\n}\n", "0 public functions"),
        (TEXT[: len(TEXT) // 2].rpartition("\n")[0] + "\n", "truncated"),
        (TEXT.replace("    tt.return\n", "    }\n    tt.return\n"), "brace"),
        ("what is this\n", "not an operation"),
        ("tt.func public @k(%x: i32)\n", "no body"),
    ],
    ids=["empty", "no function", "truncated", "brace", "words", "declaration"],
)
def test_says_what_is_wrong(text, said):
    with pytest.raises(UsageError, match=said):
        Module(text)


@given(st.data())
@settings(max_examples=60)
def test_damaged_text_is_read_or_refused_in_one_sentence(data):
    lines = list(LINES)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(lines) - 1))
        change = data.draw(st.sampled_from(["drop", "double", "cut", "noise"]))
        if change == "drop":
            del lines[at]
        elif change == "double":
            lines.insert(at, lines[at])
        elif change == "cut":
            lines[at] = lines[at][: data.draw(st.integers(0, len(lines[at])))]
        else:
            lines[at] = data.draw(st.text(max_size=20)) + "\n"
    try:
        module = Module("".join(lines))
        schedule(module)
        module.warp_groups()
    except UsageError as error:
        assert "\n" not in str(error)
