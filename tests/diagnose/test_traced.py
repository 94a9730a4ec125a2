"""`kperf diagnose script.py` on a fake GPU: traced, and read in both ways."""

import importlib
import io
import json
from threading import Timer

import pytest

import kperf
from kperf.console import WholeConsole
from kperf.diagnose import command
from kperf.diagnose.reading.lines import source_of
from kperf.diagnose.sarif import sarif
from kperf.errors import UsageError
from kperf.ir.compile import machine_code
from kperf.ir.locations import Frame
from kperf.trace import results
from kperf.trace.capture import capturer, pc_sampling
from tests.compat import fake_cupti
from tests.diagnose import sarif_2_1_0
from tests.record.test_lock import another_that_measures
from tests.trace.capture import fake_gpu

SCRIPT = """
import torch, triton, triton.language as tl

@triton.jit
def column_sum(x, out, rows, columns, BLOCK: tl.constexpr):
    column = tl.program_id(0)
    acc = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, rows, BLOCK):
        r = start + tl.arange(0, BLOCK)
        acc += tl.load(x + r * columns + column)
    tl.store(out + column, tl.sum(acc, 0))

x, out = torch.ones(1024, 160), torch.empty(160)
for _ in range(4):
    column_sum[(160,)](x, out, 1024, 160, 256)
"""


@pytest.fixture
def on_a_fake_gpu(tmp_path, monkeypatch):
    fake_gpu.install(tmp_path, monkeypatch)


@pytest.mark.usefixtures("on_a_fake_gpu")
def test_a_traced_script_is_diagnosed_by_what_was_compiled_and_measured(tmp_path):
    script = tmp_path / "columns.py"
    script.write_text(SCRIPT)
    console = WholeConsole(file=io.StringIO(), width=160)
    request = command.Request(as_json=True)
    assert command.run_traced(console, str(script), (), request, fake_gpu.FakeGpu()) == 0
    (one,) = json.loads(console.file.getvalue())["kernels"]
    assert one["kernel"] == "column_sum"
    found = {finding["id"]: finding for finding in one["findings"]}
    assert found["uncoalesced-access"]["source"] == {"file": str(script), "line": 10, "function": "column_sum"}
    assert found["tail-wave"]["evidence"]["ctas"] == 160  # as the fake GPU's made-up timers have it
    assert one["skipped"] == {}


@pytest.mark.usefixtures("on_a_fake_gpu")
def test_beside_another_that_measures_a_script_is_read_as_compiled_or_waits(tmp_path, capfd):
    script = tmp_path / "columns.py"
    script.write_text(SCRIPT)

    def found(**options) -> list[str]:
        console = WholeConsole(file=io.StringIO(), width=160)
        request = command.Request(as_json=True, try_out=False, **options)
        assert command.run_traced(console, str(script), (), request, fake_gpu.FakeGpu()) == 0
        (one,) = json.loads(console.file.getvalue())["kernels"]
        return [finding["id"] for finding in one["findings"]]

    with another_that_measures():
        assert "tail-wave" not in found()  # which a timeline shows
    assert "column_sum is not traced: process" in capfd.readouterr().err
    with another_that_measures() as holder:
        Timer(0.2, holder.kill).start()
        assert "tail-wave" in found(wait=True)
    assert "is measuring on GPU fake: wait for it to end" in capfd.readouterr().err


def test_what_launches_nothing_has_nothing_to_wait_for(tmp_path):
    with pytest.raises(UsageError, match=r"^--wait waits for a GPU, and nothing"):
        command.run(WholeConsole(quiet=True), "columns.py", (), command.Request(wait=True), static=True)
    with pytest.raises(UsageError, match=r"^--wait waits for a GPU, and nothing"):
        command.run(WholeConsole(quiet=True), "a.timeline.json", (), command.Request(wait=True), static=False)


REFUSED = """
import torch, triton, triton.language as tl

@triton.jit
def gemm(a, b, c, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm, rn, rk = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        x = tl.load(a + rm[:, None] * K + k + rk[None, :])
        y = tl.load(b + (k + rk)[:, None] * N + rn[None, :])
        acc = tl.dot(x, y, acc)
    tl.store(c + rm[:, None] * N + rn[None, :], acc)

a, b = torch.ones(128, 1024).bfloat16(), torch.ones(1024, 256).bfloat16()
gemm[(1,)](a, b, torch.empty(128, 256), 256, 1024, 128, 256, 128, num_warps=8, num_stages=3)
"""


@pytest.mark.usefixtures("on_a_fake_gpu")
def test_a_kernel_that_needs_more_than_the_gpu_has_is_diagnosed_though_it_never_ran(tmp_path, capfd):
    script = tmp_path / "refused.py"
    script.write_text(REFUSED)
    console = WholeConsole(file=io.StringIO(), width=160)
    assert command.run_traced(console, str(script), (), command.Request(as_json=True), fake_gpu.FakeGpu()) == 1
    (one,) = json.loads(console.file.getvalue())["kernels"]
    found = {finding["id"]: finding for finding in one["findings"]}
    assert found["stages-do-not-fit"]["source"]["line"] == 9
    assert "OutOfResources" in capfd.readouterr().err
    console = WholeConsole(file=io.StringIO(), width=160)
    script.write_text(
        f"{REFUSED.replace('gemm[(1,)]', 'try: gemm[(1,)]')}except Exception: pass{SCRIPT}raise SystemExit(1)"
    )
    assert command.run_traced(console, str(script), (), command.Request(as_json=True), fake_gpu.FakeGpu()) == 1
    assert [one["kernel"] for one in json.loads(console.file.getvalue())["kernels"]] == ["column_sum"]


@pytest.mark.usefixtures("on_a_fake_gpu")
def test_why_a_kernel_is_not_traced_is_said_once(tmp_path, monkeypatch, capfd):
    """At its launch, and not at the end too: it is diagnosed all the same."""

    def refuse(*_, **__):
        raise UsageError("process 7 is measuring")

    monkeypatch.setattr(capturer, "make_instrumented", refuse)
    script = tmp_path / "columns.py"
    script.write_text(SCRIPT)
    console = WholeConsole(file=io.StringIO(), width=160)
    assert command.run_traced(console, str(script), (), command.Request(as_json=True), fake_gpu.FakeGpu()) == 0
    assert capfd.readouterr().err.count("column_sum is not traced: process 7 is measuring") == 1


@pytest.mark.usefixtures("on_a_fake_gpu")
def test_a_kernel_that_cannot_be_traced_is_diagnosed_by_how_it_was_compiled(tmp_path, monkeypatch, capfd):
    def unread(*_):
        raise UsageError("no CTA of the trace is whole")

    monkeypatch.setattr(results.read, "timeline", unread)
    script = tmp_path / "columns.py"
    script.write_text(SCRIPT)
    console = WholeConsole(file=io.StringIO(), width=160)
    assert command.run_traced(console, str(script), (), command.Request(as_json=True), fake_gpu.FakeGpu()) == 0
    (one,) = json.loads(console.file.getvalue())["kernels"]
    found = [finding["id"] for finding in one["findings"]]
    assert found[0] == "uncoalesced-access"
    assert "tail-wave" not in found  # which a timeline shows
    assert "column_sum is not traced: no CTA of the trace is whole" in capfd.readouterr().err
    script.write_text("print(1)")
    assert command.run_traced(console, str(script), (), command.Request(as_json=True), fake_gpu.FakeGpu()) == 2


@pytest.fixture
def cupti(monkeypatch):
    """A fake CUPTI: each addition of a kernel that is sampled waits for memory, and all else issues."""
    fake = fake_cupti.install(monkeypatch)
    again = pc_sampling.loaded_again

    def loaded(compiled):
        fake.forget_samples()
        for one in machine_code(compiled).instructions:
            waits = one.opcode == "FADD"
            fake.add(compiled.name, one.address, "long_scoreboard" if waits else "selected", 20 if waits else 1)
        return again(compiled)

    monkeypatch.setattr(pc_sampling, "loaded_again", loaded)
    return fake


def diagnosed(tmp_path, **options):
    script = tmp_path / "columns.py"
    script.write_text(SCRIPT)
    console = WholeConsole(record=True, file=io.StringIO(), width=250)
    request = command.Request(explain=True, **options)
    found = []
    shown = command.show
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "show", lambda *show: (found.append(show[1]), shown(*show)))
        assert command.run_traced(console, str(script), (), request, fake_gpu.FakeGpu()) == 0
    return {one.id: one for one in found[0].kernels[0].findings}, console.export_text(), found[0]


@pytest.mark.usefixtures("on_a_fake_gpu")
def test_findings_of_a_script_say_whether_the_gpus_samples_agree(tmp_path, cupti):
    findings, said, diagnoses = diagnosed(tmp_path)
    witness = findings["uncoalesced-access"].witness
    assert (witness.agreement, witness.stalls.keys()) == ("agrees", {"long_scoreboard"})
    assert 0.25 < witness.share < 1
    assert findings["tail-wave"].witness.agreement == "none"
    assert f"          samples agree: {witness.message}\n" in said
    assert said.count("samples") == said.count("samples agree: ") * 2  # nothing of those that say nothing
    log = sarif_2_1_0.Log.model_validate(sarif(diagnoses))
    of_rule = {result.ruleId: result for result in log.runs[0].results}
    assert of_rule["uncoalesced-access"].properties["witness"]["share"] == witness.share
    assert cupti.finalized == 1


@pytest.mark.usefixtures("on_a_fake_gpu")
def test_without_samples_findings_are_as_ever(tmp_path, cupti, capfd):
    findings, said, _ = diagnosed(tmp_path, samples=False)
    assert findings["uncoalesced-access"].witness is None
    assert "samples" not in said
    assert cupti.finalized == 0
    cupti.refuse("cuptiSubscribe", 39)
    refused, said, _ = diagnosed(tmp_path)
    assert {name: one.model_copy(update={"witness": None}) for name, one in refused.items()} == findings
    assert refused["uncoalesced-access"].witness.message.startswith("no samples: another profiler is active")
    assert "samples" not in said
    assert capfd.readouterr().err.count("kperf: nothing is sampled: another profiler is active") == 1


def test_a_finding_on_a_whole_function_is_at_its_def_and_not_at_its_decorator(tmp_path):
    """Where a decorated function begins Python says the line of the decorator."""
    file = tmp_path / "it.py"
    file.write_text("@first\n@second(\n    3\n)\ndef outer(x):\n    @third\n    def inner(y):\n        return y\n")
    found = [source_of(Frame(str(file), line)) for line in range(1, 9)]
    assert [(one.line, one.function) for one in found] == [
        *[(5, "outer")] * 5,
        *[(7, "inner")] * 2,
        (8, "inner"),
    ]
    assert source_of(Frame(str(tmp_path / "gone.py"), 3)).line == 3


def test_samples_want_a_script(tmp_path):
    with pytest.raises(UsageError, match="--samples takes samples of kernels that a script launches on a GPU"):
        command.run(WholeConsole(), "x.py", (), command.Request(samples=True), static=True)


@pytest.mark.usefixtures("on_a_fake_gpu")
def test_a_function_that_is_diagnosed_is_sampled_too(tmp_path, cupti, monkeypatch):
    (tmp_path / "columns_of_mine.py").write_text(SCRIPT.replace("for _ in range(4):\n", "def run():\n"))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("kperf.trace.capture.gpu.Gpu", fake_gpu.FakeGpu)
    findings = {one.id: one for one in kperf.diagnose(importlib.import_module("columns_of_mine").run)}
    assert cupti.finalized == 1
    assert {one.witness.agreement for one in findings.values()} == {"agrees", "none"}, findings
