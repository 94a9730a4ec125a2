"""`kperf diagnose` as its user has it: what is read, printed, silenced, and how it ends."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from kperf.arch import SM_103A
from kperf.compat.triton.cache import own_cache
from kperf.console import WholeConsole
from kperf.diagnose import command
from kperf.diagnose.finding import Bound, Diagnoses, Diagnosis
from kperf.diagnose.sarif import sarif
from kperf.diagnose.script import functions
from kperf.trace.analyze.finding import Finding, Source
from tests.command import kperf
from tests.diagnose import sarif_2_1_0
from tests.test_interrupted import Session
from tests.trace.kernels import CASES, compile_case

ROOT = Path(__file__).resolve().parents[2]
KERNELS = Path(__file__).parent / "kernels"
DRAFT = KERNELS / "drafts/column_mean.py"
CLEAN = KERNELS / "clean/softmax.py"


def found(*arguments):
    done = kperf("diagnose", "--static", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return [(one["kernel"], finding) for one in json.loads(done.stdout)["kernels"] for finding in one["findings"]]


def test_three_lines_a_finding_with_line_reason_and_change():
    done = kperf("diagnose", "--static", DRAFT)
    assert done.returncode == 0
    assert re.search(r"^  high +column_mean\.py:14  acc \+= tl\.load\(", done.stdout, re.MULTILINE)
    said = "the load uses 12% of the bytes that it moves between L2 and the SM: neighbouring threads load elements of x"
    shared = "the next CTA along axis x of the grid uses other bytes of the same sectors"
    assert f"{said} that lie apart; {shared}" in done.stdout
    assert re.search(r"neighbours along axis x of the grid, or more: .*\(estimated 2\.8 x, 1\.1 to 8\)", done.stdout)


def test_no_finding_is_an_answer():
    done = kperf("diagnose", "--static", CLEAN)
    assert "nothing found; memory bounds it: it multiplies no matrices" in done.stdout


ONE_TILE = """
import torch, triton, triton.language as tl

@triton.jit
def product(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    x, y = tl.load(a + m[:, None] * K + k[None, :]), tl.load(b + k[:, None] * N + n[None, :])
    tl.store(c + m[:, None] * N + n[None, :], tl.dot(x, y))

x, y = torch.empty(2, 128, 64, device="cuda", dtype=torch.bfloat16).unbind()
product[(1,)](x, y, torch.empty(128, 128, device="cuda"), 128, 128, 64)
"""


def test_a_product_without_a_loop_is_one(tmp_path):
    script = tmp_path / "one_tile.py"
    script.write_text(ONE_TILE)
    done = kperf("diagnose", "--static", script, "--json")
    (kernel,) = json.loads(done.stdout)["kernels"]
    assert kernel["bound"]["message"] == (
        "the tensor cores bound it: it does 64 operations for each byte that it loads"
    )


def test_what_a_kernel_prints_while_it_is_compiled_is_no_part_of_the_output(tmp_path):
    script = tmp_path / "prints.py"
    text = KERNEL.format("twice").replace("    i =", '    tl.static_print("compiling")\n    i =')
    script.write_text(
        f"import torch, triton, triton.language as tl\n{text}\ntwice[(16,)](*torch.ones(2, 4096).cuda())\n"
    )
    assert kperf("diagnose", "--static", script, "--json").stdout.startswith("{")


def test_code_that_inductor_wrote_needs_no_driver(tmp_path):
    script = tmp_path / "output_code.py"
    begin = "import torch, triton, triton.language as tl\nfrom torch._C import _cuda_getCurrentRawStream\n"
    call = "x = torch.empty(2, 4096, device='cuda')\nwith torch.cuda._DeviceGuard(0):\n    torch.cuda.set_device(0)\n"
    call += "    stream = _cuda_getCurrentRawStream(0)\n    twice[(16,)](x[0], x[1])\n"
    script.write_text(begin + KERNEL.format("twice") + call)
    done = kperf("diagnose", "--static", script, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert [one["kernel"] for one in json.loads(done.stdout)["kernels"]] == ["twice"]


def test_explain_prints_the_rules_page():
    done = kperf("diagnose", "--static", DRAFT, "--explain")
    assert (ROOT / "docs/rules/uncoalesced-access.md").read_text().strip() in done.stdout


def test_json_has_the_documented_schema():
    done = kperf("diagnose", "--static", DRAFT, "--json")
    schema = json.loads((ROOT / "docs/finding.schema.json").read_text())
    assert schema == TypeAdapter(Diagnoses).json_schema()  # what the page says is what is printed
    one = Diagnoses.model_validate_json(done.stdout)
    assert one.model_dump_json(indent=1) == done.stdout.strip()
    (finding,) = one.kernels[0].findings
    assert (finding.source.file, finding.source.line, finding.source.function) == (str(DRAFT), 14, "column_mean")
    assert finding.evidence["sector_use"] == 0.125


def test_sarif_is_sarif(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    out = tmp_path / "out.sarif"
    done = kperf("diagnose", "--static", DRAFT, "--sarif", out)
    assert done.returncode == 0
    log = sarif_2_1_0.Log.model_validate_json(out.read_text())
    (run,) = log.runs
    (result,) = run.results
    assert run.tool.driver.rules[result.ruleIndex].id == result.ruleId == "uncoalesced-access"
    assert result.level == "error"
    (location,) = result.locations
    assert location.physicalLocation.artifactLocation.uri == "tests/diagnose/kernels/drafts/column_mean.py"
    assert location.physicalLocation.region.startLine == 14
    printed = kperf("diagnose", "--static", DRAFT, "--sarif", "-").stdout
    assert json.loads(printed) == json.loads(out.read_text())


@pytest.mark.parametrize(
    ("targets", "titles"),
    [
        (["sm_90a"], ["Bank conflicts in shared memory", "tl.dot without tensor cores", "CTAs of unequal work"]),
        (["gfx942"] * 2, ["Bank conflicts in LDS", "tl.dot without matrix cores", "Work groups of unequal work"]),
        (["gfx942", "sm_90a"], ["Bank conflicts in shared memory"]),
        (["measured"], ["Bank conflicts in shared memory"]),
    ],
)
def test_sarifs_titles_of_rules_have_the_targets_words(targets, titles):
    bound = Bound(unit="memory", message="")
    kernels = [Diagnosis(kernel="copy", target=target, findings=[], bound=bound) for target in targets]
    (run,) = sarif(Diagnoses(kernels=kernels))["runs"]
    assert set(titles) <= {rule["shortDescription"]["text"] for rule in run["tool"]["driver"]["rules"]}


@pytest.mark.parametrize(("level", "status"), [("high", 1), ("medium", 1), ("low", 1)])
def test_fail_if_a_finding_is_severe(level, status):
    assert kperf("diagnose", "--static", DRAFT, "--fail-if", level).returncode == status


def test_fail_if_nothing_is_severe():
    assert kperf("diagnose", "--static", KERNELS / "planted/no_tma.py", "--fail-if", "medium").returncode == 0


@pytest.mark.parametrize(
    ("comment", "above", "silenced"),
    [
        ("# kperf: ignore[uncoalesced-access] the rows are short", False, True),
        ("# kperf: ignore[uncoalesced-access, small-tile] the rows are short", True, True),
        ("# kperf: ignore[uncoalesced-access]", False, False),  # no reason
        ("# kperf: ignore[small-tile] the rows are short", False, False),
    ],
)
def test_a_comment_with_a_reason_silences_a_finding_at_its_line(tmp_path, comment, above, silenced):
    script = tmp_path / "draft.py"
    lines = DRAFT.read_text().splitlines()
    place = next(n for n, line in enumerate(lines) if "planted" in line)
    lines[place] = lines[place].partition("  #")[0] + ("" if above else f"  {comment}")
    if above:
        lines.insert(place, f"        {comment}")
    script.write_text("\n".join(lines) + "\n")
    done = kperf("diagnose", "--static", script, "--fail-if", "high")
    assert done.returncode == int(not silenced)
    assert ("ignored: uncoalesced-access at line" in done.stdout) == silenced
    assert ("the rows are short" in done.stdout.partition("ignored")[2]) == silenced


@pytest.mark.parametrize(
    "arguments", [(":column_mean", "--signature", "*fp32,*fp32,i32,i32", "--constexpr", "BLOCK=1024"), ("",)]
)
def test_a_finding_is_at_its_line_of_the_file_as_it_is_where_a_decorator_took_more_lines(tmp_path, arguments):
    """The key of Triton's cache has the line of the first decorator, which stays."""
    script, (function, *options) = tmp_path / "draft.py", arguments
    for decorator in ("@triton.jit", "@triton.jit  # as it\n# was\n# before"):
        script.write_text(DRAFT.read_text().replace("@triton.jit", decorator))
        lines = script.read_text().splitlines()
        planted = next(n for n, line in enumerate(lines, 1) if "planted" in line)
        ((_, finding),) = found(f"{script}{function}", *options)
        assert (finding["id"], finding["source"]["line"]) == ("uncoalesced-access", planted)


def test_a_function_is_compiled_by_its_signature():
    arguments = (f"{CLEAN}:softmax", "--signature", "*bf16,*bf16,i32:16", "--constexpr", "BLOCK=8192")
    assert found(*arguments, "--num-warps", "16") == []
    (kernel, first), *_ = found(*arguments, "--num-warps", "1")
    assert (kernel, first["id"], first["source"]["line"]) == ("softmax", "too-few-warps", 12)
    unaligned = found(f"{CLEAN}:softmax", "--signature", "*bf16,*bf16,i32", "--constexpr", "BLOCK=4096")
    assert {finding["id"] for _, finding in unaligned} >= {"narrow-access"}


@pytest.mark.parametrize("command", [("ir",), ("diagnose", "--static")])
def test_a_cache_that_cannot_be_used_is_not_said_of_the_kernel(tmp_path, command):
    (tmp_path / "file").touch()
    words = (*command, f"{CLEAN}:softmax", "--signature", "*bf16,*bf16,i32:16", "--constexpr", "BLOCK=256")
    done = kperf(*words, TRITON_CACHE_DIR=str(tmp_path / "file"))
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(
        rf"kperf: {tmp_path}/file/\w+ cannot be used \(Not a directory\): set TRITON_CACHE_DIR to another folder\n",
        done.stderr,
    )


def test_of_a_functions_autotuner_the_best_configuration_is_shown(tmp_path, monkeypatch):
    """One of two does not compile, with a tile that is no power of two; one has a single warp."""
    script = tmp_path / "tuned.py"
    wrong = "[(3, 4), *((8192, w) for w in (1, 16))]"
    script.write_text(
        TUNED.partition("x = torch.zeros")[0]
        .replace("((8192, 1), (8192, 16))", wrong)
        .replace("BLOCK: tl.constexpr", "BLOCK: tl.constexpr, A: tl.constexpr = 1")
    )
    arguments = ("diagnose", "--static", f"{script}:double", "--signature", "*fp32,*fp32,i32:16")
    (shown,) = (line for line in kperf(*arguments).stdout.splitlines() if line.startswith("double"))
    best = "num_warps=16, num_stages=3, num_ctas=1, A=1, BLOCK=8192"
    assert shown == f"double for sm_90a, the best of 2 configurations of its autotuner by what is found: {best}"
    (kernel, first), *_ = found(*arguments[2:], "--num-warps", "1", "--constexpr", "BLOCK=8192")
    assert (kernel, first["id"], first["evidence"]["num_warps"]) == ("double", "too-few-warps", 1)
    monkeypatch.setattr(functions, "MOST_CONFIGURATIONS", 4)
    script.write_text(script.read_text().replace(wrong, "[(64 << w % 2, 1 << w // 16) for w in range(32)]"))
    done = kperf(*arguments)
    assert "double has 4 configurations" not in done.stderr
    more = tmp_path / "more.py"  # not the same file again: of the same second and size, Python would take its bytecode
    more.write_text(script.read_text().replace("64 << w % 2", "64 << w % 3"))
    done = kperf("diagnose", "--static", f"{more}:double", *arguments[3:])
    assert "double has 6 configurations of its autotuner: one of 2 is read" in done.stderr
    assert "the best of 3 configurations" in done.stdout


def test_a_function_of_a_script_is_compiled_as_it_is_launched():
    (one,) = found(f"{DRAFT}:column_mean")
    assert one[1]["id"] == "uncoalesced-access"


def test_an_entry_of_tritons_cache_and_its_ttgir_say_the_same(tmp_path):
    from kperf.arch import SM_90A
    from kperf.diagnose.script.without_gpu import launches_of
    from kperf.trace.capture.script import Script

    (launch,) = launches_of(Script(str(DRAFT), ()), SM_90A).kernels
    folder = tmp_path / "entry"
    folder.mkdir()
    for name, path in launch.kernel.metadata_group.items():
        shutil.copy(path, folder / name)
    (of_folder,) = found(folder)
    assert of_folder[1]["id"] == "uncoalesced-access"
    (ttgir,) = folder.glob("*.ttgir")
    (of_file,) = found(ttgir, "--target", "sm_90a")
    assert of_file[1]["source"] == of_folder[1]["source"]
    assert of_file[1]["evidence"] == of_folder[1]["evidence"]


TUNED = """
import torch, triton, triton.language as tl

@triton.autotune([triton.Config({"BLOCK": b}, num_warps=w) for b, w in ((8192, 1), (8192, 16))], key=["n"])
@triton.jit
def double(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * n + tl.arange(0, BLOCK)
    tl.store(y + i, 2 * tl.load(x + i))

x = torch.zeros(4096, 8192, device="cuda")
double[(4096,)](x, torch.empty_like(x), 8192)
print(f"{x.sum():.3f}", "%.1f" % x.mean(), int(x[0, 0]), x)
here = x.is_cuda and x.device.type == "cuda"
if x.cpu().sum() > 0 and here and x.device == triton.runtime.driver.active.get_active_torch_device():
    double.fn[(4096,)](x, torch.empty_like(x), 8192, BLOCK=16384, num_warps=1)
raise RuntimeError("the end")
"""


def test_of_an_autotuners_configurations_the_best_is_shown(tmp_path):
    script = tmp_path / "tuned.py"
    script.write_text(TUNED)
    done = kperf("diagnose", "--static", script, "--json")
    assert "ended early without a GPU (RuntimeError: the end)" in done.stderr
    untuned, tuned = json.loads(done.stdout)["kernels"]  # what is no autotuner's comes first
    assert (tuned["configurations"], tuned["findings"]) == (2, [])
    assert untuned["configurations"] == 1
    assert {finding["id"] for finding in untuned["findings"]} >= {"too-few-warps"}


OWN_TUNER = """
class Tuner(triton.runtime.Autotuner):
    def run(self, *arguments, **options):
        self.nargs = dict(zip(self.arg_names, arguments))
        times = [self._bench(*arguments, config=config, **options) for config in self.configs]
        best = self.configs[times.index(min(times))]
        return self.fn.run(*arguments, **options, **best.all_kwargs())

    do_bench = staticmethod(triton.testing.do_bench)
"""


def test_configurations_of_an_autotuner_of_ones_own_are_one_kernels(tmp_path):
    script = tmp_path / "tuned.py"
    configs = "[triton.Config({'BLOCK': 8192}, num_warps=w) for w in (1, 16)]"
    decorated = f"@lambda fn: Tuner(fn, fn.arg_names, {configs}, ['n'], None, None)\n"
    head, _, rest = TUNED.partition("@triton.autotune")
    script.write_text(head + OWN_TUNER + decorated + rest.partition("\n")[2].replace("raise ", "# "))
    done = kperf("diagnose", "--static", script, "--json")
    _, tuned = json.loads(done.stdout)["kernels"]
    assert (tuned["configurations"], tuned["findings"]) == (2, [])


KERNEL = """
@triton.jit
def {}(x, y):
    i = tl.program_id(0) * 256 + tl.arange(0, 256)
    tl.store(y + i, 2 * tl.load(x + i))
"""

OPERATORS = """
@triton_op("kperf_test::whole", mutates_args=())
def whole(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    wrap_triton(in_triton_op)[(16,)](x, y)
    return y

@custom_op("kperf_test::opaque", mutates_args=(), device_types="cuda")
def opaque(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty(x.shape, device="cuda")
    in_custom_op[(16,)](x, y)
    return y

@custom_op("kperf_test::native", mutates_args=())
def native(x: torch.Tensor) -> torch.Tensor:
    raise NotImplementedError("as an operator in C++ without a kernel for meta")

for operator in (opaque, native):
    operator.register_fake(torch.empty_like)

x = torch.zeros(4096, device="cuda")
y = native(opaque(torch.ops.kperf_test.whole(x)))
wrap_triton(wrapped)[(16,)](x, y)
"""


def test_kernels_that_operators_of_torch_launch_are_read(tmp_path):
    """Without a GPU torch would ask what is registered for `meta`, and put a wrapped kernel into a graph."""
    script = tmp_path / "operators.py"
    names = ("in_triton_op", "in_custom_op", "wrapped")
    operators = ("custom_op", "triton_op", "wrap_triton")
    imports = "import torch, triton, triton.language as tl\nfrom torch import library\n"
    imports += "".join(f"{one} = library.{one}\n" for one in operators)
    script.write_text(imports + "".join(map(KERNEL.format, names)) + OPERATORS)
    kernels = json.loads(kperf("diagnose", "--static", script, "--json").stdout)["kernels"]
    assert [kernel["kernel"] for kernel in kernels] == ["in_triton_op", "in_custom_op", "wrapped"]


DIFFERENTIATED = """
@custom_op("kperf_test::doubled", mutates_args=(), device_types="cuda")
def doubled(x: torch.Tensor, times: int = 2, *, out_rows: int) -> torch.Tensor:
    y = torch.empty(x.shape, device="cuda")
    forward[(16,)](x, y)
    return y

def backward_of(ctx, dy):
    assert (ctx.times, ctx.out_rows) == (2, 16)
    dx = torch.empty_like(dy)
    backward[(16,)](dy, dx)
    return dx, None

def keep(ctx, inputs, keyword_only_inputs, output):
    (_, ctx.times), ctx.out_rows = inputs, keyword_only_inputs["out_rows"]

doubled.register_autograd(backward_of, setup_context=keep)
x = torch.zeros(4096, device="cuda", requires_grad=True)
(dx,) = torch.autograd.grad(torch.ops.kperf_test.doubled(x=x, out_rows=16).sum(), x)
after[(16,)](dx, x)
"""


def test_an_operator_of_torch_has_its_backward_pass(tmp_path):
    script = tmp_path / "differentiated.py"
    imports = (
        "import torch, triton, triton.language as tl\nfrom torch import library\n\ncustom_op = library.custom_op\n"
    )
    script.write_text(imports + "".join(map(KERNEL.format, ("forward", "backward", "after"))) + DIFFERENTIATED)
    done = kperf("diagnose", "--static", script, "--json")
    assert done.stderr == ""
    assert [one["kernel"] for one in json.loads(done.stdout)["kernels"]] == ["forward", "backward", "after"]


def test_our_own_attention_has_its_backward_pass(tmp_path):
    """Its rules of what torch's attention can compute ask the driver."""
    script = tmp_path / "attention.py"
    script.write_text(
        "import torch, triton, triton.language as tl\nfrom kperf.integrations.operator import attention\n"
        + KERNEL.format("after")
        + """
q, k, v = (torch.zeros(1, 2, 256, 64, device="cuda", dtype=torch.float16, requires_grad=True) for _ in range(3))
attention(q, k, v, causal=True).sum().backward()
assert q.grad.shape == v.grad.shape == q.shape
after[(128,)](q.grad, k.grad)
"""
    )
    done = kperf("diagnose", "--static", script, "--json")
    assert done.stderr == ""
    assert [one["kernel"] for one in json.loads(done.stdout)["kernels"]] == ["attn_fwd_views", "after"]


def test_a_script_of_compiled_functions_alone_is_told_where_their_kernels_are_made(tmp_path):
    script = tmp_path / "compiled.py"
    script.write_text("""
import torch

@torch.compile
def double(x):
    return 2 * x

double(torch.zeros(4096, device="cuda"))
""")
    done = kperf("diagnose", "--static", script)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"kperf: {script} launches no kernel of its own, and torch.compile makes kernels only on a GPU: run it there "
        "without --static\n"
    )


def test_a_number_that_was_not_computed_may_choose_a_row(tmp_path):
    """Of a tensor too large to be filled in: any row has the same shape."""
    script = tmp_path / "rows.py"
    imports = "import torch, triton, triton.language as tl\n"
    script.write_text(
        imports
        + KERNEL.format("twice")
        + """
x = torch.zeros(1 << 16, 1 << 12, device="cuda")
for row in torch.zeros(4, dtype=torch.int64, device="cuda").unique():
    x[row] = x[row, :] + x[(row, 0)]
    assert x[row].shape == (1 << 12,)
    twice[(16,)](x[row], x)
"""
    )
    done = kperf("diagnose", "--static", script, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert [kernel["kernel"] for kernel in json.loads(done.stdout)["kernels"]] == ["twice"]


def test_code_of_inductor_allocates_as_the_rest_of_a_script(tmp_path):
    """It asks the allocator of CUDA itself, past the dispatcher."""
    script = tmp_path / "output_code.py"
    imports = "import torch, triton, triton.language as tl\n"
    allocate = "empty_strided_cuda = torch._C._dynamo.guards._empty_strided_cuda\n"
    launch = 'x = torch.zeros(4096, device="cuda")\ntwice[(16,)](x, empty_strided_cuda((4096,), (1,), torch.float32))\n'
    script.write_text(imports + KERNEL.format("twice") + allocate + launch)
    done = kperf("diagnose", "--static", script, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert [kernel["kernel"] for kernel in json.loads(done.stdout)["kernels"]] == ["twice"]


@pytest.mark.kernels
def test_the_operators_of_this_package_are_read(tmp_path):
    script = tmp_path / "attention.py"
    script.write_text("""
import torch
from kperf.integrations.operator import attention
from kperf.integrations.varlen import attention_varlen

q, k, v = (torch.randn(2, 512, 8, 128, device="cuda", dtype=torch.bfloat16).transpose(1, 2) for _ in range(3))
attention(q, k, v, causal=True)
begins = torch.tensor([0, 512, 1024], device="cuda", dtype=torch.int32)
q, k, v = (one.transpose(1, 2).reshape(1024, 8, 128) for one in (q, k, v))
attention_varlen(q, k, v, begins, begins, 512, 512, causal=True)
""")
    done = kperf("diagnose", "--static", script, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    kernels = [kernel["kernel"] for kernel in json.loads(done.stdout)["kernels"]]
    assert (kernels[0], kernels[-1]) == ("attn_fwd_views", "attn_fwd_ragged")


def test_a_device_may_be_named_by_type_and_index(tmp_path):
    """As `torch.device("cuda", local_rank)`: the type is a string to torch, and never the device that stands for it."""
    script = tmp_path / "devices.py"
    devices = 'devices = torch.device("cuda", 0), torch.device(type="cuda", index=0), torch.device("cuda:0"), "cuda"\n'
    checked = 'assert str(torch.device("cpu", 0)) == "cpu:0"\n'
    launch = "twice[(len({one.device for one in tensors}),)](*tensors[:2])\n"
    tensors = "tensors = [torch.zeros(4096, device=device) for device in devices]\n"
    imports = "import torch, triton, triton.language as tl\n"
    script.write_text(imports + KERNEL.format("twice") + devices + checked + tensors + launch)
    done = kperf("diagnose", "--static", script, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert [kernel["kernel"] for kernel in json.loads(done.stdout)["kernels"]] == ["twice"]


OF_A_GPU = """
x = torch.zeros(2, 4096, device=torch.cuda.current_device()).pin_memory().to(0)
device = torch.device("cuda", 0)
assert x.device == device == torch.cuda.current_stream().device and x.get_device() == torch.cuda.device(device).idx
generator = torch.Generator(device="cuda").manual_seed(3)
x = torch.rand(2, 4096, device="cuda", generator=generator) + torch.randn_like(x)
x = torch.empty_like(x).exponential_(generator=generator)
assert torch.rand(4, generator=torch.Generator().manual_seed(3)).device.type == "cpu"
seed, offset = torch.cuda.default_generators[device.index].get_state().view(torch.int64)
free, total = torch.cuda.mem_get_info()
stream, ready = torch.cuda.Stream(), torch.cuda.Event()
stream.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(stream), torch.cuda.device_of(x):
    ready.record(stream)
    x.record_stream(stream)
torch.set_default_device("cuda")
y = torch.randn(8)
assert y.is_cuda and y.device == device
torch.set_default_device(None)
assert not torch.randn(8).is_cuda
assert ready.query() and free == total > 0 and not torch.cuda.is_current_stream_capturing()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    twice[(16,)](*x)
graph.replay()
with torch.device("cuda"):
    assert torch.empty(1).is_cuda
torch.accelerator.synchronize()
"""


def test_streams_generators_graphs_and_numbers_of_devices_are_as_with_a_gpu(tmp_path):
    """Libraries ask for them before they launch: a generator's state for a seed, a device's number for a buffer."""
    script = tmp_path / "of_a_gpu.py"
    script.write_text("import torch, triton, triton.language as tl\n" + KERNEL.format("twice") + OF_A_GPU)
    done = kperf("diagnose", "--static", script, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert [kernel["kernel"] for kernel in json.loads(done.stdout)["kernels"]] == ["twice"]


ADDRESSES = """
k, v = torch.zeros(2, 1 << 20, device="cuda")[:, 1:].unbind()
other = torch.zeros_like(k)
assert len({one.data_ptr() for one in (k, v, other)}) == 3
assert v.data_ptr() - k.data_ptr() == 4 << 20 and k[4:].data_ptr() == k.data_ptr() + 16
assert other.data_ptr() % 256 == 0 == (k.data_ptr() - 4) % 256
twice[(1 << 10,)](k, other)
"""


def test_tensors_lie_apart_and_views_in_their_tensor(tmp_path):
    """A script chooses a kernel by addresses: whether k is v, or whether a tensor begins at a multiple of 16 bytes."""
    script = tmp_path / "addresses.py"
    script.write_text("import torch, triton, triton.language as tl\n" + KERNEL.format("twice") + ADDRESSES)
    done = kperf("diagnose", "--static", script, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    messages = [one["message"] for one in json.loads(done.stdout)["kernels"][0]["findings"]]
    assert any("depends on x, which the compiler does not know to be a multiple of 16" in one for one in messages)


def test_functions_of_torch_cuda_stay_apart():
    """torch.compile has a rule for each, and (torch 2.15) fails where one function has two with different rules."""
    import torch

    from kperf.arch import SM_90A
    from kperf.diagnose.script import fake_cuda

    with fake_cuda.fake_cuda(SM_90A):
        ours = [one for one in vars(torch.cuda).values() if getattr(one, "__module__", "") == fake_cuda.__name__]
    assert len(ours) > 10
    assert len(set(ours)) == len(ours)


def test_what_an_autotuner_keeps_on_disk_is_not_written(tmp_path):
    """There are no times: a GPU would launch what came first."""
    script = tmp_path / "tuned.py"
    script.write_text(TUNED.replace('key=["n"])', 'key=["n"], cache_results=True)'))
    cache = tmp_path / "cache"
    assert kperf("diagnose", "--static", script, TRITON_CACHE_DIR=str(cache)).returncode == 0
    assert list(cache.rglob("double.ttgir"))
    assert not list(cache.rglob("*.autotune.json"))


FALLING_BACK = """
import torch, triton, triton.language as tl

@triton.jit
def gemm(a, b, c, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m, n, k = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for _ in tl.range(0, K, BK):
        acc = tl.dot(tl.load(a + m[:, None] * K + k[None, :]), tl.load(b + k[:, None] * BN + n[None, :]), acc)
        a += BK
        b += BK * BN
    tl.store(c + m[:, None] * BN + n[None, :], acc.to(tl.bfloat16))

assert torch.cuda.get_device_properties(0).major == torch.cuda.get_device_capability()[0]
x = torch.zeros(1 << 20, device="cuda", dtype=torch.bfloat16)
try:
    gemm[(1,)](x, x, x, 1024, 128, 256, 64, num_stages=4, num_warps=8)
except triton.runtime.errors.OutOfResources:
    gemm[(1,)](x, x, x, 1024, 64, 64, 64, num_stages=2)
"""


@pytest.mark.parametrize(("target", "capability", "threads"), [("sm_86", (8, 6), 1536), ("gfx950", (9, 5), 2048)])
def test_a_script_is_told_the_properties_of_the_target(tmp_path, target, capability, threads):
    script = tmp_path / "asked.py"
    launch = 'twice[(1,)](*torch.zeros(2, 256, device="cuda"))\n'
    asked = "properties = torch.cuda.get_device_properties(0)\n"
    asked += f"assert torch.cuda.get_device_capability() == (properties.major, properties.minor) == {capability}\n"
    asked += f"assert properties.max_threads_per_multi_processor == {threads}\n"
    asked += f"assert properties.gcnArchName == {target if target.startswith('gfx') else ''!r}\n"
    script.write_text("import torch, triton, triton.language as tl\n" + KERNEL.format("twice") + asked + launch)
    done = kperf("diagnose", "--static", script, "--target", target, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert [kernel["kernel"] for kernel in json.loads(done.stdout)["kernels"]] == ["twice"]


def test_a_launch_that_does_not_fit_the_target_is_refused_as_it_would_be_there(tmp_path):
    (tmp_path / "gemm.py").write_text(FALLING_BACK)
    done = kperf("diagnose", "--static", tmp_path / "gemm.py", "--target", "sm_86", "--json")
    (one,) = json.loads(done.stdout)["kernels"]
    assert "stages-do-not-fit" not in {finding["id"] for finding in one["findings"]}


TWO_OF_A_NAME = """
def scaled(by):
    @triton.jit
    def copy(x, y, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y + i * 2, tl.load(x + i * 2))
    return copy

x, y = torch.empty(2, 1 << 20, device="cuda")
"""


def test_kernels_of_one_name_are_told_apart_by_where_they_begin(tmp_path):
    (tmp_path / "other.py").write_text("import torch, triton, triton.language as tl\n" + KERNEL.format("copy"))
    script = tmp_path / "two.py"
    begin = "import torch, triton, triton.language as tl\nimport other\n" + TWO_OF_A_NAME
    script.write_text(begin + "scaled(1)[(512,)](x, y, 1024)\n")
    assert kperf("diagnose", "--static", script).stdout.startswith("copy for sm_90a\n")
    script.write_text(begin + "scaled(1)[(512,)](x, y, 1024)\nother.copy[(16,)](x, y)\n")
    lines = kperf("diagnose", "--static", script).stdout.splitlines()
    assert [line for line in lines if not line.startswith(" ")] == [
        "copy (two.py:6) for sm_90a", "copy (other.py:4) for sm_90a"
    ]  # fmt: skip
    sources = [one["source"] for one in json.loads(kperf("diagnose", "--static", script, "--json").stdout)["kernels"]]
    assert [(one["file"], one["line"]) for one in sources] == [(str(script), 6), (str(tmp_path / "other.py"), 4)]


def test_compilations_of_one_function_are_told_apart_by_their_constants():
    """On a GPU each of them is one."""
    bound, begin = Bound(unit="memory", message="it"), Source(file="/x/k.py", line=3)
    kernels = [
        Diagnosis(kernel=name, target="sm_90a", findings=[], bound=bound, source=source, constants=constants)
        for name, source, constants in [
            ("copy", begin, {"BLOCK": 128, "EVEN": True, "num_warps": 4}),
            ("copy", begin, {"BLOCK": 256, "EVEN": False, "num_warps": 4}),
            ("copy", Source(file="/x/other.py", line=7), {"BLOCK": 128}),
            ("move", begin, {"BLOCK": 512}),
        ]
    ]
    console = WholeConsole(file=io.StringIO(), width=250)
    command.show(console, Diagnoses(kernels=kernels), command.Request())
    assert [line for line in console.file.getvalue().splitlines() if not line.startswith(" ")] == [
        "copy (k.py:3) with BLOCK=128, EVEN=True for sm_90a",
        "copy (k.py:3) with BLOCK=256, EVEN=False for sm_90a",
        "copy (other.py:7) for sm_90a",
        "move for sm_90a",
    ]


COMPILED_TWICE = """
import torch, triton, triton.language as tl

@triton.jit
def picked(x, y, SPREAD: tl.constexpr, STEP: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i * 2)
    if SPREAD:
        tl.store(y + i * STEP, value)
    else:
        tl.store(y + i, value)

x = torch.empty(1 << 22, device="cuda")
for options in [{"SPREAD": True}, {"SPREAD": False}]:
    picked[(1024,)](x, x, STEP=3, BLOCK=1024, **options)
"""


def test_what_one_compilation_has_alone_is_said_of_its_constants(tmp_path):
    script = tmp_path / "picked.py"
    script.write_text(COMPILED_TWICE)
    messages = {finding["source"]["line"]: finding["message"] for _, finding in found(script)}
    (one,) = json.loads(kperf("diagnose", "--static", script, "--json").stdout)["kernels"]
    assert one["constants"] == {"num_warps": 4, "num_stages": 3, "num_ctas": 1, "STEP": 3, "BLOCK": 1024}
    assert set(messages) == {7, 9}
    assert messages[9].endswith(" (with SPREAD=True)")
    assert "(with" not in messages[7]  # both have it
    script.write_text(COMPILED_TWICE.replace(', {"SPREAD": False}]', "]"))
    assert not [finding["message"] for _, finding in found(script) if "(with" in finding["message"]]


@pytest.mark.parametrize("target", ["sm_80", "gfx942"])
def test_other_targets_and_what_could_not_run(target):
    done = kperf("diagnose", "--static", DRAFT, "--target", target, "--json")
    (one,) = json.loads(done.stdout)["kernels"]
    assert one["target"] == target
    assert "uncoalesced-access" in {finding["id"] for finding in one["findings"]}
    assert ("register-spills" in one["skipped"]) == (target == "gfx942")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["no.py"], "there is no"),
        (["no_such_folder"], "there is no no_such_folder"),
        ([KERNELS], "holds no kernel"),
        ([f"{CLEAN}:nothing"], "has no kernel nothing"),
        ([f"{CLEAN}:nothing", "--signature", "i32"], "has no kernel nothing"),
        ([f"{CLEAN}:softmax", "--signature", "*bf16", "--constexpr", "BLOCK=64"], "takes 3 arguments"),
        ([f"{CLEAN}:softmax", "--signature", "*bf16,*bf16,i32"], "give --constexpr BLOCK=..."),
        ([f"{CLEAN}:softmax", "--signature", "*bf16,*bf16,i32", "--constexpr", "BLOCK"], "has no value"),
        ([f"{CLEAN}:softmax", "--signature", "*bf16,*bf16,what", "--constexpr", "BLOCK=64"], "what in"),
        (
            [f"{CLEAN}:softmax", "--signature", "*bf16,*bf16,i32:8", "--constexpr", "BLOCK=64"],
            "i32:8 in --signature is",
        ),
        ([f"{CLEAN}:softmax", "--signature", "*bf16,*bf16,i32", "--constexpr", "BLOCK=48"], "softmax.py:11: arange's"),
        (
            [f"{CLEAN}:softmax", "--signature", "bf16,*bf16,i32", "--constexpr", "BLOCK=64"],
            "softmax.py:12: Unsupported ptr type",
        ),
        ([f"{CLEAN}:softmax", "--signature", "*=*bf16,m=i32", "--constexpr", "BLOCK=64"], "has no argument m to give"),
        ([f"{CLEAN}:softmax", "--signature", "[xy]=*bf16", "--constexpr", "BLOCK=64"], "nothing of columns: give"),
        ([f"{CLEAN}:softmax", "--signature", "*bf16,*bf16,i32", "--constexpr", "B=64"], "has no argument B: it has"),
        ([f"{CLEAN}:softmax", "--signature", "*bf16,*bf16,i32", "--constexpr", "BLOCK=tl.half"], "there is no tl.half"),
        ([f"{CLEAN}:softmax", "--signature", "*bf16,*bf16,i32", "--constexpr", "BLOCK=:half"], "there is no half"),
        (["no.module:softmax"], "No module named 'no'"),
        (["no_module:softmax"], "there is no module no_module"),
        ([CLEAN, "--target", "sm_1"], "no GPU architecture 'sm_1'"),
        ([CLEAN, "--fail-if", "bad"], "no severity"),
        ([ROOT / "README.md"], "nothing to read"),
    ],
)
def test_what_is_wrong_is_one_sentence(arguments, said):
    done = kperf("diagnose", "--static", *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_without_a_gpu_a_trace_is_refused_in_one_sentence():
    done = kperf("diagnose", DRAFT)
    assert done.returncode == 2
    assert "`kperf diagnose --static` needs no GPU" in done.stderr
    assert done.stderr.count("\n") == 1


ADD = """
import os, signal, subprocess, sys
import torch, triton, triton.language as tl

@triton.jit
def add(x_ptr, out_ptr, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    tl.store(out_ptr + cols, tl.load(x_ptr + cols) + 1)

x = torch.ones(256, device="cuda")
def run():
    add[(1,)](x, x, BLOCK=256)
"""


AT_EXIT = """
class Log:
    def __init__(self): self.me = self
    def __del__(self): open("log", "w").write("whole")

import atexit
atexit.register(Log)
"""
"""Garbage that Python collects when it ends."""


@pytest.mark.parametrize(
    "script",
    [
        "run()\nos._exit(3)",
        "sys.stdout.close()\nsys.stderr.close()\nrun()",
        "sys.stdout.reconfigure(line_buffering=True)\nsys.stdout.buffer.write(b'noise')\nrun()",
        "subprocess.run(['echo', 'noise'], check=True)\nos.write(1, b'noise')\nrun()",
        "run()\nif os.fork() == 0:\n    print('noise')\nelse:\n    os.wait()",
        "run()\nif os.fork() == 0:\n    os._exit(0)\nos.wait()",
        "os.close(1)\nos.close(2)\nrun()",
    ],
    ids=["exit", "closed", "stream", "program", "fork", "fork that exits", "descriptors"],
)
def test_what_a_script_does_to_its_process_costs_no_diagnosis(tmp_path, script):
    """It is a process of its own, whose standard output is JSON and nothing else."""
    (tmp_path / "it.py").write_text(ADD + script)
    done = Session(tmp_path).command(["diagnose", "--static", "--json", tmp_path / "it.py"])
    assert (done.status, done.stderr) == (0, "")
    assert [one["kernel"] for one in json.loads(done.stdout)["kernels"]] == ["add"]


ARGUMENTS = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--steps', required=True)\n"
FAILED_PASS = """
os.write(2, b"/a/k.py:9:4: error: 'tt.store' op types must match\\n/a/k.py:7:0: error: Failures have been detected\\n")
raise RuntimeError("PassManager::run failed")
"""
TYPES = "name a kernel instead, it.py:add --signature ..."


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("def broken(:", "ended with SyntaxError: invalid syntax (it.py, line 13): correct it"),
        ("import no_such", "ended with ModuleNotFoundError: No module named 'no_such': install what it imports beside"),
        ("from .x import y", f"ImportError: attempted relative import with no known parent package): {TYPES}"),
        (
            "add[(1,)](x, x, BLOCK=100)",
            "ended with CompilationError: at `cols = tl.arange(0, BLOCK)`: arange's range must be a power of 2: "
            "correct the kernel, or name another --target than sm_90a",
        ),
        (
            FAILED_PASS,
            "with RuntimeError: PassManager::run failed: k.py:9: 'tt.store' op types must match: correct the kernel",
        ),
        (
            ARGUMENTS + "parser.parse_args()",
            "(it ended with status 2: it.py: error: the following arguments are required: --steps): give it its "
            f"options after --, or {TYPES}",
        ),
        ("sys.exit('no data here')", "(it ended with status 1: no data here): give it its options"),
        ("sys.stderr.close()\nos._exit(7)", f"(it ended with status 7): give it its options after --, or {TYPES}"),
        ("input()", f"(it ended with EOFError: EOF when reading a line): {TYPES}"),
        ("pass", f"(a launch that depends on a tensor's numbers is not reached): {TYPES}"),
        (ADD.replace("add", "more"), f"{TYPES.replace('add', 'function')} (of add, more)"),
    ],
)
def test_a_script_that_launches_nothing_is_told_why_and_what_to_do(tmp_path, monkeypatch, script, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "it.py").write_text(ADD + script)
    done = Session(tmp_path).command(["diagnose", "--static", "it.py"])
    assert (done.status, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("kperf: it.py ")
    assert said in done.stderr


def test_a_script_without_a_kernel_is_not_asked_for_one_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "it.py").write_text("import torch\nx = torch.ones(8, 8, device='cuda')\nx @ x")
    done = Session(tmp_path).command(["diagnose", "--static", "it.py"])
    assert (done.status, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "): name a kernel of another file instead, package.module:function --signature ..." in done.stderr
    assert done.stderr.endswith(" (it.py has no Triton kernel)\n")


def test_a_kernel_whose_name_triton_does_not_take_is_named(tmp_path):
    (tmp_path / "it.py").write_text(ADD.replace("add", "größe") + "run()")
    done = Session(tmp_path).command(["diagnose", "--static", tmp_path / "it.py"])
    assert "ended with CompilationError: invalid function identifier: größe: correct the kernel" in done.stderr


def test_a_path_that_ptxas_does_not_read_is_told(tmp_path):
    (tmp_path / "größe.py").write_text(ADD.replace("+ 1", "+ 77") + "run()")  # Triton's cache has the other from ASCII
    done = Session(tmp_path).command(["diagnose", "--static", tmp_path / "größe.py"])
    assert (done.status, done.stderr.count("\n")) == (2, 1)
    assert "ptxas fatal   : Unexpected non-ASCII character" in done.stderr
    assert done.stderr.endswith("move it to a path of ASCII letters, which ptxas reads\n")


def test_a_helper_that_returns_a_value_is_refused_in_one_sentence(tmp_path):
    (tmp_path / "it.py").write_text(ADD + "@triton.jit\ndef twice(x):\n    return x * 2\n")
    done = Session(tmp_path).command(["diagnose", "--static", f"{tmp_path}/it.py:twice", "--signature", "fp32"])
    assert (done.status, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "PassManager::run failed: it.py:15: failed to legalize operation 'tt.return'" in done.stderr


def test_a_loop_that_waits_for_a_number_ends_and_its_launches_are_read(tmp_path):
    (tmp_path / "it.py").write_text(ADD + "run()\nwhile x.sum().item() < 2:\n    x += 1")
    done = kperf("diagnose", "--static", "--json", tmp_path / "it.py")
    assert [one["kernel"] for one in json.loads(done.stdout)["kernels"]] == ["add"]
    assert "ended early without a GPU (NoNumbersError: it asks for tensors' numbers 20000 times: a loop" in done.stderr


def test_what_a_thread_launches_is_read(tmp_path):
    script = "import threading\ndef work():\n    torch.ones(4, device='cuda')\n    run()\n"
    script += "thread = threading.Thread(target=work)\nthread.start()\nthread.join()"
    (tmp_path / "it.py").write_text(ADD + script)
    done = kperf("diagnose", "--static", "--json", tmp_path / "it.py")
    assert (done.returncode, done.stderr) == (0, "")
    assert [one["kernel"] for one in json.loads(done.stdout)["kernels"]] == ["add"]


def test_garbage_that_a_script_leaves_is_collected_when_the_interpreter_ends(tmp_path):
    (tmp_path / "it.py").write_text(AT_EXIT)
    command = [sys.executable, "-m", "kperf", "diagnose", "--static", "it.py"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("kperf: it.py launches no kernel")
    assert (tmp_path / "log").read_text() == "whole"


@pytest.mark.parametrize("ends", ["raise SystemExit('a reason')", "sys.exit(3)", "os._exit(3)", "1 / 0"])
def test_a_function_above_what_ends_its_file_is_read(tmp_path, ends):
    (tmp_path / "it.py").write_text(ADD + ends)
    signature = ["--signature", "*fp32,*fp32", "--constexpr", "BLOCK=64"]
    done = kperf("diagnose", "--static", "--json", f"{tmp_path}/it.py:add", *signature)
    assert (done.returncode, done.stderr) == (0, "")
    assert [one["kernel"] for one in json.loads(done.stdout)["kernels"]] == ["add"]


@pytest.mark.parametrize("words", [["diagnose", "--static"], ["ir"]])
def test_ctrl_c_while_the_script_runs_ends_the_command(tmp_path, words):
    (tmp_path / "it.py").write_text(ADD + "run()\nos.kill(os.getpid(), signal.SIGINT)\nrun()")
    done = kperf(*words, tmp_path / "it.py")
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "kperf: interrupted: what was recorded is kept\n"


HOPPER = '{"name": "k", "target": {"backend": "cuda", "arch": 90, "warp_size": 32}}'


@pytest.mark.parametrize(
    "content", ["{}", "[]", "null", '{"name": "k"', '{"name": "k", "target": 1}', HOPPER, "[" * 10**5]
)
def test_a_damaged_entry_of_tritons_cache_is_named(tmp_path, content):
    (tmp_path / "k.ttgir").write_text("module {}")
    (tmp_path / "k.cubin").touch()
    (tmp_path / "k.json").write_text(content)
    done = kperf("ir", tmp_path)
    said = f"kperf: {tmp_path}/k.json describes no kernel: remove this entry of Triton's cache\n"
    assert (done.returncode, done.stderr) == (2, said)


def test_machine_code_that_tritons_tools_cannot_read_is_named_for_an_entry_and_for_a_file(tmp_path):
    with own_cache(tmp_path):
        ttgir = compile_case(CASES["add"], arch=SM_103A).asm["ttgir"]
    (tmp_path / "add.ttgir").write_text(ttgir)
    (entry,) = {path.parent for path in tmp_path.glob("*/*.cubin")}
    for what in (entry, tmp_path / "add.ttgir"):
        done = kperf("ir", what, "--target", "sm_103a", "--level", "sass")
        assert done.returncode == 2
        assert re.fullmatch(r"kperf: the nvdisasm of Triton .* cannot read machine code of sm_103a .*\n", done.stderr)


def test_a_kernel_of_a_file_that_launches_nothing_is_asked_for_its_types(tmp_path):
    (tmp_path / "it.py").write_text(ADD)
    run = Session(tmp_path).command
    wanted, unknown = (run(["diagnose", "--static", f"{tmp_path / 'it.py'}:{name}"]) for name in ("add", "subtract"))
    assert wanted.status == unknown.status == 2
    assert "it.py launches no kernel add: give the types of x_ptr, out_ptr with --signature" in wanted.stderr
    assert "it.py has no kernel subtract" in unknown.stderr


def test_findings_that_say_the_same_stand_together_and_the_others_are_counted():
    script = str(KERNELS / "drafts/mla_decode.py")
    (found,) = json.loads(kperf("diagnose", "--static", script, "--json").stdout)["kernels"]
    alike = [one["source"]["line"] for one in found["findings"] if one["id"] == "wgmma-unused"]
    assert len(alike) == 3
    printed = kperf("diagnose", "--static", script).stdout
    heads = re.findall(r"^  (?:high|medium|low) +mla_decode\.py:(\d+) ", printed, re.MULTILINE)
    assert heads[:3] == list(map(str, alike))
    assert printed.count("[wgmma-unused]") == 1
    assert f"and {len(found['findings']) - len(heads)} more: --explain shows all" in printed


@pytest.mark.parametrize(
    ("estimate", "words"),
    [
        ((1.0, 1.0, 1.0), ""),
        ((1.02, 1.0, 1.04), ""),
        ((1.02, 1.0, 1.13), " (estimated at most 1.1 x)"),
        ((1.2, 0.9, 1.5), " (estimated 1.2 x, 0.9 to 1.5)"),
        (None, ""),
    ],
)
def test_a_gain_of_nothing_is_not_printed(estimate, words):
    numbers = None if estimate is None else dict(zip(("speedup", "low", "high"), estimate, strict=True))
    finding = Finding(
        id="narrow-access",
        severity="low",
        confidence="high",
        source=Source(file="", line=0),
        kernel="copy",
        message="it is narrow",
        evidence={},
        advice="widen it",
        estimate=numbers,
    )
    out = io.StringIO()
    bound = Bound(unit="memory", message="")
    kernels = [Diagnosis(kernel="copy", target="sm_90a", findings=[finding], bound=bound)]
    command.show(WholeConsole(file=out, width=200), Diagnoses(kernels=kernels), command.Request())
    assert f"widen it{words}\n" in out.getvalue()
