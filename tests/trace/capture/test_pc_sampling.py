"""`kperf trace --samples` on a fake GPU with a fake CUPTI: what is launched, what is counted by line, and who is told
why there is nothing."""

import json
import os
import re
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kperf.compat import cupti
from kperf.compat.cupti import PcSample
from kperf.console import WholeConsole
from kperf.errors import UsageError
from kperf.ir.machine import Instruction, MachineCode, read_machine_code
from kperf.ir.scoreboards import FROM_GLOBAL, FROM_SHARED, Scoreboards
from kperf.report.formats import formats
from kperf.trace import command
from kperf.trace.analyze import stalls
from kperf.trace.analyze.recorded import read_timeline
from kperf.trace.capture import capturer, pc_sampling
from kperf.trace.capture.kernels import TraceOptions
from kperf.trace.capture.script import Script
from tests.compat import fake_cupti
from tests.trace.capture import fake_gpu

SUMS = """
import torch, triton, triton.language as tl

@triton.jit
def sums(x, w, out, n, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        c = start + tl.arange(0, BLOCK)
        a = tl.load(x + tl.program_id(0) * n + c)
        b = tl.load(w + c)
        total += tl.exp(a) + b
    tl.store(out + tl.program_id(0), tl.sum(total, 0))

x, w, out = torch.ones(8, 1024), torch.ones(1024), torch.zeros(8)
def run(times, grid=8):
    for _ in range(times):
        sums[(grid,)](x, w, out, 1024, 256, num_warps=4)
"""
A, B, EXP = 10, 11, 12
"""Lines."""


@pytest.fixture
def fake(monkeypatch):
    made = fake_cupti.install(monkeypatch)
    yield made
    cupti._cupti.cache_clear()


@pytest.fixture
def trace(tmp_path, monkeypatch, capfd):
    fake_gpu.install(tmp_path, monkeypatch)
    fake_gpu.LAUNCHES.clear()
    monkeypatch.setattr(fake_gpu, "WRITES", [])

    def run(text, **choice):
        path = tmp_path / "it.py"
        path.write_text(text)
        monkeypatch.chdir(tmp_path)
        console = WholeConsole(record=True, width=300, file=open(os.devnull, "w"))  # noqa: SIM115, PTH123
        options = TraceOptions(**{"samples": True} | choice)
        made = formats(lambda *_: [])
        status = command.run(console, Script(str(path), ()), options, tmp_path / "out", made, fake_gpu.FakeGpu())
        assert status == 0
        return read_timeline(tmp_path / "out/sums.timeline.json"), console.export_text(), capfd.readouterr().err

    return run


def sampled_by(monkeypatch, fake, samples):
    """Of each kernel that is loaded to be sampled, CUPTI has what `samples` gives for its machine code."""
    again = pc_sampling.loaded_again

    def loaded(compiled):
        fake.forget_samples()
        for address, reason, count in samples(code_of(compiled)):
            fake.add(compiled.name, address, reason, count)
        kernel, launch = again(compiled)
        assert kernel is not compiled
        return kernel, lambda *arguments: (launched.append(kernel), launch(*arguments))

    launched = []
    monkeypatch.setattr(pc_sampling, "loaded_again", loaded)
    return launched


def code_of(compiled):
    from kperf.ir import compile as compiler

    return compiler.machine_code(compiled)


def first_use(code, line):
    """Address of the first instruction that waits for what a line loads."""
    scoreboards = Scoreboards(code)
    waits = ((one, scoreboards.producers(one.address, FROM_GLOBAL)) for one in code.instructions)
    return next(one.address for one, loads in waits if any(load.frame.line == line for load in loads))


def one_of(code, line):
    return next(one.address for one in code.instructions if one.frame and one.frame.line == line)


def test_samples_are_by_line_and_by_the_load_that_is_waited_for(trace, fake, monkeypatch):
    def samples(code):
        yield first_use(code, A), "long_scoreboard", 600
        yield first_use(code, A), "long_scoreboard_not_issued", 500
        yield one_of(code, EXP), "selected", 400

    sampled_by(monkeypatch, fake, samples)
    timeline, said, err = trace(SUMS + "run(1)")
    assert timeline.samples.total == 1000
    assert timeline.samples.stalls == {"long_scoreboard": 0.6, "selected": 0.4}
    lines = {one.line: one for one in timeline.samples.lines}
    assert {Path(one.file).name for one in timeline.samples.lines} == {"it.py"}
    assert (lines[EXP].stalls["selected"], lines[A].awaited) == (400, {"long_scoreboard": 600})
    assert sum(one.not_issued for one in timeline.samples.lines) == 500
    assert "of 1000 samples of the original kernel 60% wait for global or local memory (long_scoreboard)" in said
    assert re.search(r"kperf: sampled sums, 1000 samples \(\d", err)


def test_the_script_computes_what_it_would_and_sees_no_launch_more(trace, fake, monkeypatch):
    launched = sampled_by(monkeypatch, fake, lambda code: [(0, "selected", 5)])
    monkeypatch.setattr(fake_gpu, "WRITES", [lambda traced, arguments: arguments[2].add_(1)])
    timeline, _, _ = trace(SUMS + "run(2)\nassert out.tolist() == [2.0] * 8, out", passes=1)
    assert timeline.samples.launches == 1  # a millisecond each, as the fake GPU's marks are
    assert len(launched) == 2  # once to warm up, of the machine code that CUPTI has seen being loaded
    assert [one.traced for one in fake_gpu.LAUNCHES] == [*[False] * (2 + 1 + 1), True, False]


def test_samples_are_of_launches_on_what_the_script_launches_on(trace, fake, monkeypatch):
    """A kernel that works in place, with indices say, may write anywhere on what its own launch left."""
    met = []
    monkeypatch.setattr(fake_gpu, "WRITES", [lambda _traced, args: met.append(args[2][0].item()) or args[2].add_(1)])
    sampled_by(monkeypatch, fake, lambda code: [(0, "selected", 5)])
    timeline, _, _ = trace(SUMS + "run(2)", passes=1)
    assert timeline.samples.total == 5
    assert met == [0.0] * (2 + 1 + 1) + [0.0, 1.0]


def test_a_single_launch_of_more_events_than_there_is_room_for_is_read_whole(trace, fake, monkeypatch):
    """On copies it is launched once more: the script's own launch is gone."""
    monkeypatch.setattr(fake_gpu, "ITERATIONS", 3000)
    monkeypatch.setattr(fake_gpu, "WRITES", [lambda _traced, arguments: arguments[2].add_(1)])
    sampled_by(monkeypatch, fake, lambda code: [(0, "selected", 5)])
    timeline, _, _ = trace(SUMS + "run(1)\nassert out.tolist() == [1.0] * 8, out", passes=1)
    assert timeline.events.lost == 0
    assert [one.traced for one in fake_gpu.LAUNCHES] == [*[False] * (2 + 1 + 1), True, True]
    fake_gpu.LAUNCHES.clear()
    timeline, _, _ = trace(SUMS + "run(3)", passes=1)
    assert timeline.events.lost == 0
    assert [one.traced for one in fake_gpu.LAUNCHES] == [*[False] * (2 + 1 + 1), True, True, False, True]
    fake_gpu.LAUNCHES.clear()


def test_a_launch_that_cannot_be_made_again_leaves_the_scripts_own_as_it_was(trace, fake, monkeypatch):
    """The traced kernel ran in the place of the original one, which may not be launched too."""
    monkeypatch.setattr(fake_gpu, "ITERATIONS", 1500)
    monkeypatch.setattr(fake_gpu, "WRITES", [lambda _traced, arguments: arguments[2].add_(1)])
    sampled_by(monkeypatch, fake, lambda code: [(0, "selected", 5)])
    made, make = [], capturer.make_instrumented

    def once(*given, **options):
        made.append(1)
        if len(made) > 1:
            raise UsageError("there is no memory left")
        return make(*given, **options)

    monkeypatch.setattr(capturer, "make_instrumented", once)
    with suppress(AssertionError):  # nothing of it can be read
        trace(SUMS + "run(1)\nassert out.tolist() == [1.0] * 8, out", passes=1)
    assert len(made) == 2
    assert [one.traced for one in fake_gpu.LAUNCHES] == [*[False] * (2 + 1 + 1), True]


def test_where_no_launch_has_room_for_all_events_it_says_what_to_do(trace, fake, monkeypatch, capfd):
    monkeypatch.setattr(fake_gpu, "ITERATIONS", 3000)
    with pytest.raises(AssertionError):
        trace(SUMS + "run(1)", passes=1, samples=False)
    assert "launch the kernel three times, or give --samples" in capfd.readouterr().err
    timeline, _, _ = trace(SUMS + "run(3)", passes=1, samples=False)
    assert timeline.events.lost == 0


def test_an_equal_launch_is_not_sampled_again_and_another_grid_is(trace, fake, monkeypatch):
    counted = []
    sampled_by(monkeypatch, fake, lambda code: counted.append(1) or [(0, "selected", len(counted))])
    timeline, _, _ = trace(SUMS + "run(3)", passes=1)
    assert (len(counted), timeline.samples.total) == (1, 1)
    timeline, _, _ = trace(SUMS + "run(2)\nrun(1, 4)", passes=1)
    assert (len(counted), timeline.samples.total) == (3, 3)


def test_who_may_not_sample_reads_it_once_and_gets_the_timeline(trace, fake):
    fake.refuse("cuptiPCSamplingEnable", 35)
    again = SUMS.replace("def sums", "def others").replace("sums[", "others[").replace("def run", "def run_others")
    timeline, said, err = trace(SUMS + again + "run(4)\nrun_others(4)")
    assert timeline.samples is None
    assert "NVreg_RestrictProfilingToAdminUsers=0" in timeline.no_samples
    assert err.count("nothing is sampled: the driver lets nobody") == 1
    assert "samples" not in said
    assert json.loads(Path("out/others.timeline.json").read_text())["no_samples"] == timeline.no_samples


def test_a_kernel_of_which_no_copy_can_be_launched_is_not_sampled(trace, fake, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "8")
    timeline, _, err = trace(SUMS + "run(1)")
    assert timeline.no_samples == "it is one of several processes, whose kernels may wait for each other"
    assert f"kperf: sums is not sampled: {timeline.no_samples}" in err
    assert len(fake_gpu.LAUNCHES) == 1
    assert fake.finalized == 0


def test_without_asking_nothing_is_sampled(trace, fake):
    fake.refuse("cuptiSubscribe", 39)
    timeline, _, err = trace(SUMS + "run(1)", samples=False)
    assert (timeline.samples, timeline.no_samples) == (None, "")
    assert "sampled" not in err
    assert len(fake_gpu.LAUNCHES) == 1


@given(st.floats(1e-4, 5e4))
def test_a_plan_gives_samples_enough_and_not_too_many(milliseconds):
    period, launches = pc_sampling.plan(milliseconds)
    each = milliseconds * 1.5e6 / 2**period
    assert 7 <= period <= 24
    assert 1 <= launches <= 16
    assert each * launches <= 2.01 * pc_sampling.SAMPLES_OF_AN_SM or period == 24
    assert each * launches >= pc_sampling.SAMPLES_OF_AN_SM or launches == 16


LISTING = """
.text.k:
        /*0000*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0010*/                   LDS.64 R8, [R10] ;
        /*0020*/                   MUFU.EX2 R12, R12 ;
.L_x_0:
        /*0030*/                   FADD R13, R5, R12 ;
        /*0040*/                   FADD R14, R9, R13 ;
        /*0050*/                   LDG.E R5, desc[UR4][R2.64] ;
        /*0060*/                   IMAD.WIDE R2, R20, 0x4, R2 ;
        /*0070*/                   FADD R15, R2, R6 ;
        /*0080*/              @P0  BRA `(.L_x_0) ;
        /*0090*/                   LDGSTS.E.128 [R30], desc[UR4][R2.64] ;
        /*00a0*/                   LDGDEPBAR ;
        /*00b0*/                   DEPBAR.LE SB0, 0x0 ;
        /*00c0*/                   STG.E desc[UR4][R2.64], R14 ;
        /*00d0*/                   LDG.E R16, desc[UR4][R2.64] ;
        /*00e0*/                   ISETP.GE.AND P0, PT, R16, R20, PT ;
        /*00f0*/                   DEPBAR.LE SB0, 0x0 ;
        /*0100*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*0110*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
"""


@pytest.mark.parametrize(
    ("address", "opcodes", "awaited"),
    [
        (0x30, FROM_GLOBAL, [0x50]),  # in the loop, the load of the iteration before
        (0x30, FROM_SHARED, [0x20]),
        (0x40, FROM_SHARED, [0x10]),
        (0x70, FROM_GLOBAL, [0x0]),  # R2 is computed in between
        (0x50, FROM_GLOBAL, []),  # its own result of the iteration before was used there
        (0xB0, FROM_GLOBAL, [0x90]),
        (0xC0, FROM_GLOBAL, []),
        (0xE0, FROM_GLOBAL, [0xD0]),  # a comparison writes no register
        (0x100, FROM_GLOBAL, [0x90]),  # where an H200 counts what DEPBAR waits for
        (0x110, FROM_GLOBAL, []),
        (0x1000, FROM_GLOBAL, []),
    ],
)
def test_an_instruction_waits_for_the_last_that_wrote_its_registers(address, opcodes, awaited):
    scoreboards = Scoreboards(read_machine_code(LISTING))
    assert [one.address for one in scoreboards.producers(address, opcodes)] == awaited


@pytest.mark.timeout(60)
def test_unrolled_code_is_read_in_a_time_that_grows_as_its_length():
    """Each of its instructions was searched backwards to the first: minutes for an unrolled product in float32."""
    length = 100_000
    load = Instruction(0, "", "LDG.E", "R1, desc[UR4][R2.64]", ())
    sums = [Instruction(16 * n, "", "FFMA", f"R{3 + n % 200}, R1, R250, R251", ()) for n in range(1, length)]
    code = MachineCode((load, *sums), ())
    samples = [PcSample(one.address, "long_scoreboard", 1, 0) for one in sums]
    (line,) = stalls.by_line(code, samples, str, launches=1, period=128, dropped=0).lines
    assert line.awaited == {"long_scoreboard": length - 1}


WGMMA = """
.text.k:
        /*0000*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*0010*/                   WARPGROUP.ARRIVE ;
        /*0020*/                   HGMMA.64x64x16.F32.BF16 R24, gdesc[UR8], R24, gsb0 ;
        /*0030*/                   WARPGROUP.DEPBAR.LE gsb0, 0x0 ;
        /*0040*/                   FADD R1, R24, R25 ;
"""


@pytest.mark.parametrize(("listing", "mmas"), [(WGMMA, [0x30, 0x40]), (LISTING, [])])
def test_a_wait_for_mmas_is_told_from_a_wait_at_a_barrier(listing, mmas):
    """On an H200 both are `barrier`."""
    code = read_machine_code(listing)
    for address in (0x0, 0x10, 0x30, 0x40):
        sample = PcSample(address, "barrier", 7, 0)
        found = stalls.by_line(code, [sample], str, launches=1, period=128, dropped=0)
        assert list(found.stalls) == ["gmma" if address in mmas else "barrier"]
