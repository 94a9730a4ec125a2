"""Records go in by the rules and come out without a trace."""

import re
from collections import Counter

import pytest
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from kperf.attention.kernels.attn_fwd import attn_fwd
from kperf.attention.overrides import TTGIR_DIR
from kperf.attention.variants import FULL_AND_CAUSAL, Specialization
from kperf.errors import UsageError
from kperf.ir import compile as compiler
from kperf.ir.compile import canonical_ttgir, compile_kernel, named_ttgir
from kperf.paper.instrumented import RULES
from kperf.trace.instrument.events import RULES as GENERAL
from kperf.trace.instrument.events import instrument, instrumented, read_rules, strip
from kperf.trace.instrument.program import read_program

FILES = sorted(TTGIR_DIR.glob("*/*.ttgir"))
INSTRUMENTED = sorted(TTGIR_DIR.glob("*/traced/*.ttgir"))
TEXT = (TTGIR_DIR / "vanilla" / "d128_bf16_full.ttgir").read_text()


def names(text: str) -> list[str]:
    return re.findall(r'proton\.record start "([^"]*)"', text)


def test_there_is_an_instrumented_kernel_of_every_override_of_the_papers_figures_and_of_nothing_else():
    kept = {special.file_name for special in FULL_AND_CAUSAL}
    assert [path.parents[1] / path.name for path in INSTRUMENTED] == [f for f in FILES if f.name in kept]


@pytest.mark.parametrize("path", INSTRUMENTED, ids=lambda path: path.parents[1].name + "/" + path.name)
def test_a_committed_instrumented_kernel_without_its_records_is_the_original_file_byte_for_byte(path):
    assert strip(path.read_text()).encode() == (path.parents[1] / path.name).read_bytes()


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
@pytest.mark.parametrize("detail", ["fine", "coarse"])
def test_what_goes_in_comes_out_and_is_ttgir(path, detail):
    text = path.read_text()
    traced = instrument(text, detail=detail)
    assert strip(traced) == text
    assert strip(text) == text
    assert canonical_ttgir(traced).count("proton.record") == traced.count("proton.record") > 0
    read_program(traced)


def test_regions_are_named_by_what_the_hardware_does():
    loop = [name for name in names(instrument(TEXT, rules=RULES)) if not name.startswith("lifetime")]
    consumer = ["wait Q full", "wait K full", "QK wait", "wait V full", "PV wait"]
    assert loop == [*consumer, *consumer, "wait K empty", "wait V empty"]


def test_a_signal_and_a_load_are_never_behind_the_record_of_their_wait():
    lines = [line.strip() for line in instrument(TEXT, rules=RULES).splitlines()]
    for at, line in enumerate(lines):
        if line.startswith('proton.record end "QK wait"'):
            assert lines[at - 1].startswith("ttng.arrive_barrier")
        if line.startswith('proton.record end "wait K empty"'):
            assert lines[at - 1].startswith("ttng.async_tma_copy_global_to_local")


def test_regions_can_be_chosen():
    chosen = names(instrument(TEXT, regions=("*wait", "wait V*"), rules=RULES))
    assert {name for name in chosen if not name.startswith("lifetime")} == {
        "QK wait",
        "PV wait",
        "wait V full",
        "wait V empty",
    }


def test_a_person_can_extend_the_rules(tmp_path):
    path = tmp_path / "mine.toml"
    rule = '\n[[rule]]\noperation = "ttng.fence_async_shared"\nregion = "fence"\nkind = "other"\nrecord = true\n'
    path.write_text(GENERAL.read_text() + rule.replace('"other"', '"store"'))
    assert "fence" in names(instrument(TEXT, rules=read_rules(path)))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("rank = [", "not a set of region rules"),
        ('rank = []\n[[rule]]\noperation = "x"\n', "not a set of region rules"),
        (
            'rank = []\n[[rule]]\noperation="x"\nregion="{what}"\nkind="wait"\nrecord=true\n',
            "not a set of region rules",
        ),
        ('rank = []\n[[rule]]\noperation="x"\npattern="("\nregion="a"\nkind="wait"\nrecord=true\n', "not a set"),
        (
            'rank = []\n[[rule]]\noperation="x"\nregion="{operation.x}"\nkind="wait"\nrecord=true\n',
            "has no attribute 'x'",
        ),
        (
            f'rank = []\n[[rule]]\noperation="x"\npattern="a{{{10**20}}}"\nregion="a"\nkind="wait"\nrecord=true\n',
            "the repetition number is too large",
        ),
    ],
)
def test_broken_rules_are_refused_in_one_sentence(tmp_path, content, said):
    path = tmp_path / "rules.toml"
    path.write_text(content)
    with pytest.raises(UsageError, match=said) as error:
        read_rules(path)
    assert "\n" not in str(error.value)


def test_missing_rules_are_refused(tmp_path):
    with pytest.raises(UsageError, match="cannot be read"):
        read_rules(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        (instrument(TEXT), {}, "has events already"),
        (TEXT, {"regions": ("nothing like it",)}, "no region named nothing like it"),
        (
            'module attributes {"ttg.num-warps" = 4 : i32} {\n  tt.func public @f() {\n    tt.return\n  }\n}\n',
            {},
            "no region to",
        ),
        ("not TTGIR at all\n", {}, "not an operation"),
        (
            re.sub(r"(tt\.func public .*\n)", r"\1    cf.br ^bb1\n  ^bb1:\n", TEXT),
            {},
            "does nothing before it branches",
        ),
    ],
    ids=["twice", "unknown region", "nothing in it", "words", "branches at once"],
)
def test_what_cannot_be_instrumented_is_refused(text, options, said):
    with pytest.raises(UsageError, match=said):
        instrument(text, **options)


def unrolled(times, *operations):
    """TTGIR of one warp group: a loop with so many of each operation, a barrier in an inner one, and one behind."""
    body = "\n".join(f"      {operation.format(n)}" for n in range(times) for operation in operations)
    return f"""module attributes {{"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90"}} {{
  tt.func public @f(%x: !tt.ptr<f32>) attributes {{noinline = false}} {{
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
    scf.for %i = %c0 to %c1 step %c1  : i32 {{
{body}
      scf.for %j = %c0 to %c1 step %c1  : i32 {{
        gpu.barrier
      }}
    }}
    gpu.barrier
    tt.return
  }}
}}
"""


LOAD, BARRIER = "%v{} = tt.load %x : !tt.ptr<f32>", "gpu.barrier"


def places(text):
    """Of each region: its name, how many regions of that name come before it in the original text."""
    return re.findall(r'proton\.record start "([^"]*)"\n\s*(?:%v(\d+))?', text)


def test_of_more_regions_than_events_can_number_waits_come_first_and_inner_loops_before_others():
    """A lifetime and 102 waits leave numbers for 153 of 200 loads."""
    assert instrumented(unrolled(200, LOAD)).left_out == 0
    text = unrolled(200, LOAD).replace("      scf.for", "      gpu.barrier\n" * 100 + "      scf.for", 1)
    found = instrumented(text)
    counts = Counter(name.partition(" of ")[0] for name in names(found.text))
    assert counts == {"lifetime": 1, "barrier": 102, "load x": 153}
    assert found.left_out == 47
    kept = [int(number) for name, number in places(found.text) if name == "load x"]
    assert kept == [place * 200 // 153 for place in range(153)], "spread over the loop"
    assert strip(found.text) == text
    read_program(found.text)


def test_of_waits_that_do_not_all_fit_those_of_the_inner_loop_are_kept():
    text = unrolled(300, BARRIER)
    found = instrumented(text)
    assert (names(found.text).count("barrier"), found.left_out) == (255, 47)
    lines = found.text.splitlines()
    inner = next(number for number, line in enumerate(lines) if "%j" in line)
    assert 'record start "barrier"' in lines[inner + 1]
    assert 'record start "barrier"' not in "".join(lines[inner + 4 :]), "what no loop is around comes last"


def test_chosen_regions_are_no_more_than_were_asked_for():
    assert instrumented(unrolled(300, LOAD, BARRIER), regions=("barrier",)).left_out == 47
    blocks = "".join(f"    cf.br ^bb{n}\n  ^bb{n}:\n    %b{n} = tt.load %x : !tt.ptr<f32>\n" for n in range(1, 301))
    branching = unrolled(1, LOAD).replace("    gpu.barrier\n    tt.return", f"{blocks}    tt.return")
    with pytest.raises(UsageError, match="into 301 blocks, more than the 256"):
        instrument(branching)


@given(st.lists(st.integers(0, TEXT.count("\n") - 1), max_size=4), st.text(max_size=12))
@settings(max_examples=40)
def test_damaged_text_is_instrumented_or_refused(drop, noise):
    lines = [line for number, line in enumerate(TEXT.splitlines(keepends=True)) if number not in drop]
    text = "".join(lines) + noise
    try:
        assert strip(instrument(text)) == text
    except UsageError as error:
        assert "\n" not in str(error)


@triton.jit
def _auto_specialized(q_ptr, k_desc, v_desc, o_ptr, scale, seq_len, n_rows, D: tl.constexpr, M: tl.constexpr):
    q_desc = tl.make_tensor_descriptor(q_ptr, [n_rows, D], [D, 1], [M, D])
    o_desc = tl.make_tensor_descriptor(o_ptr, [n_rows, D], [D, 1], [M, D])
    row = tl.program_id(0) * M
    q = q_desc.load([row, 0])
    m_i = tl.full([M], float("-inf"), tl.float32)
    l_i = tl.zeros([M], tl.float32)
    acc = tl.zeros([M, D], tl.float32)
    for start in tl.range(0, seq_len, M, warp_specialize=True):
        s = tl.dot(q, k_desc.load([start, 0]).T) * scale
        m_new = tl.maximum(m_i, tl.max(s, 1))
        p = tl.exp2(s - m_new[:, None])
        alpha = tl.exp2(m_i - m_new)
        l_i = l_i * alpha + tl.sum(p, 1)
        v = v_desc.load([start, 0])
        acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
        m_i = m_new
    o_desc.store([row, 0], (acc / l_i[:, None]).to(tl.bfloat16))


def stock_ttgir(specialized: bool) -> str:
    if specialized:
        boxes = dict.fromkeys(("k_desc", "v_desc"), "tensordesc<bf16[128, 128]>")
        types = {"q_ptr": "*bf16", **boxes, "o_ptr": "*bf16", "scale": "fp32", "seq_len": "i32", "n_rows": "i32"}
        signature = types | {"D": "constexpr", "M": "constexpr"}
        kernel = compile_kernel(_auto_specialized, signature, {"D": 128, "M": 128})
    else:
        special = Specialization()
        kernel = compile_kernel(attn_fwd, special.signature(), special.constexprs())
    return named_ttgir(kernel.asm["ttgir"])


def test_instruments_what_the_stock_compiler_specialised_by_itself():
    text = stock_ttgir(specialized=True)
    traced = instrument(text)
    assert strip(traced) == text
    program = read_program(traced)
    assert {group.name for group in program.groups} == {"producer", "consumer 0", "consumer 1"}
    assert {"wait k empty", "wait v empty", "wait q full", "wait k full", "q @ k", "wait v full"} <= set(names(traced))
    assert compiler.canonical_ttgir(traced)


def test_instruments_a_kernel_without_warp_groups():
    text = stock_ttgir(specialized=False)
    traced = instrument(text)
    assert strip(traced) == text
    program = read_program(traced)
    assert [group.name for group in program.groups] == ["all warps", "last warp"]
    assert {"wait q full", "wait k full", "wait v full"} <= set(names(traced))
