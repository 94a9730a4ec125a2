"""The views of kernels whose work is known by construction: two reads, early returns, a hot CTA, a last wave."""

import numpy as np
import pytest

from kperf.ir.traffic import Traffic
from kperf.record.bandwidth import Bandwidth
from kperf.report.sentences import verdict
from kperf.trace.analyze import read, views
from kperf.trace.analyze.decode import Events
from kperf.trace.analyze.models import About, Overhead, Pass, SassOrder, Timeline
from kperf.trace.analyze.timeline import Launch
from kperf.trace.capture.traced import Orders
from kperf.trace.instrument.program import Group, Interval, Loop, Mma, Part, Program, Scope
from kperf.trace.instrument.session import Recording
from tests.conftest import environment

from .synthetic import encode

US = 1000
"""ns. The SMs of these launches run at 1 GHz: a cycle is a ns."""


def about(**changed: object) -> About:
    overhead = Overhead(original_ms=1.0, instrumented_ms=1.05, ratio=1.05)
    order = SassOrder(original=[], instrumented=[], same=True, differences=[])
    passes = [Pass(regions=[], overhead=overhead, sass_order=order)]
    fields = {"kernel": "k", "label": "k", "file": "k.py:1", "ttgir_sha256": "0" * 64, "grid": (1,)}
    fields |= {"ctas_per_sm": None, "resources": None, "overhead": overhead, "passes": passes}
    fields |= {"environment": environment()}
    return About(**fields | changed)


# A norm over rows: a loop loads x and uses it, a reduction, a second loop loads x and w, and stores y.
SCOPES = ["lifetime of all warps", "load x", "reduce", "load x", "load w", "store y"]
LOOPS = [(), (10,), (), (20,), (20,), (20,)]
X, W, Y = Traffic("x", 4096, 0), Traffic("w", 4096, 0), Traffic("y", 0, 4096)


def norm_program(x: Traffic = X, w: Traffic = W) -> Program:
    scopes = [Scope(n, name, "all warps", loops) for n, (name, loops) in enumerate(zip(SCOPES, LOOPS, strict=True))]

    def gap(name: str, kind: str = "arithmetic") -> Interval:
        uses = tuple(name.removeprefix("use ").split("+")) if name.startswith("use ") else ()
        return Interval("all warps", name, kind, uses=uses)  # type: ignore[arg-type]

    reduction = (Part("reduce", "arithmetic", "tt.reduce"),)

    def region(number: int, kind: str, *traffic: Traffic, parts: tuple[Part, ...] = ()) -> tuple:
        key = (number, True), (number, False)
        return key, Interval("all warps", SCOPES[number], kind, traffic=traffic, parts=parts)  # type: ignore[arg-type]

    intervals = dict(
        [
            region(1, "load", x), region(2, "arithmetic", parts=reduction), region(3, "load", x), region(4, "load", w),
            region(5, "store", Y),
        ]
    )  # fmt: skip
    intervals |= {
        ((0, True), (1, True)): gap("other", "other"),
        ((1, False), (1, True)): gap("use x"),
        ((1, False), (2, True)): gap("use x"),
        ((2, False), (3, True)): gap("other", "other"),
        ((3, False), (4, True)): gap("other", "other"),
        ((4, False), (5, True)): gap("use x+w"),
        ((5, False), (3, True)): gap("other", "other"),
        ((5, False), (0, False)): gap("other", "other"),
    }
    return Program("norm", [Group("all warps", "all", 0, 8, frozenset())], 8, scopes, intervals)


def launch_of(program: Program, ctas: list[tuple[list[tuple[int, bool, int]], int, int]], tail: int = 0) -> Launch:
    """CTAs as (records with cycles, SM, start in ns); each lives from its first record to its last."""
    rows = [(n, *record) for n, (records, _, _) in enumerate(ctas) for record in records]
    _, scope, is_start, cycle = (np.array(column) for column in zip(*rows, strict=True))
    start = np.array([start for _, _, start in ctas], dtype=np.int64)
    length = np.array([records[-1][2] if records else 200 for records, _, _ in ctas], dtype=np.int64)
    records = Events(
        probe=(2 * scope + is_start).astype(np.uint16), cycle=cycle.astype(np.int64),
        counts=np.array([[len(records)] for records, _, _ in ctas]), program_id=np.arange(len(ctas)),
        sm=np.array([sm for _, sm, _ in ctas]), start_ns=10**18 + start, end_ns=10**18 + start + length,
        clock=start % 2**32, written=len(rows), lost=0,
    )  # fmt: skip
    return Launch(records, program, (0,))


def norm_cta(iterations: int = 4, stall: int = 900, first_stall: int = 1500) -> list[tuple[int, bool, int]]:
    """Every region takes 20 cycles, other gaps 10; loads are waited for at their first use."""
    at, records = 0, [(0, True, 0)]

    def run(number: int, gap: int) -> None:
        nonlocal at
        at += gap
        records.append((number, True, at))
        at += 20
        records.append((number, False, at))

    for iteration in range(iterations):
        run(1, 10 if iteration == 0 else first_stall if iteration == 1 else stall)
    run(2, stall)
    for _ in range(iterations):
        run(3, 10)
        run(4, 10)
        run(5, stall)
    return [*records, (0, False, at + 10)]


def norm(n_ctas: int = 8, **options: int) -> Launch:
    made = norm_cta(**options)
    return launch_of(norm_program(), [(made, n % 2, (n // 2) * (made[-1][2] + 50)) for n in range(n_ctas)])


def test_a_kernel_without_mmas_is_seen_by_its_memory():
    assert views.choose(norm()) == "memory"
    found = read.timeline(norm(), about())
    assert (found.view, found.unit, found.units) == ("memory", "CTA", 8)
    assert found.cycles_per_unit.median == norm_cta()[-1][2]
    assert Timeline.model_validate_json(found.model_dump_json()) == found


def test_a_row_that_is_read_twice_counts_twice():
    memory = views.memory(norm(), about())
    by_argument = {part.argument: (part.loaded_bytes, part.stored_bytes) for part in memory.traffic}
    row = 8 * 4 * 4096  # 8 CTAs, 4 iterations in each of the loops
    assert by_argument == {"x": (2 * row, 0), "w": (row, 0), "y": (0, row)}
    assert memory.gb_per_s == pytest.approx(4 * row / 1e-3 / 1e9)


def test_where_a_cta_waits_adds_up_and_the_first_load_stands_apart():
    waits = {wait.doing: wait for wait in views.memory(norm(), about()).waits}
    assert sum(wait.share for wait in waits.values()) == pytest.approx(1)
    assert waits["first load"].cycles == 1500
    assert waits["later loads"].cycles == 900 * (3 + 4)
    assert waits["reductions"].cycles == 20
    assert sum(wait.cycles for wait in waits.values()) == norm_cta()[-1][2]


def test_loads_in_flight_are_bytes_over_a_lifetime():
    cta = norm_cta()
    # First loop: x from issue to use, 4 times (20 + wait). Second: x and w together.
    held = 4096 * ((20 + 1500) + 3 * (20 + 900)) + 4 * 4096 * ((20 + 10 + 20 + 900) + (20 + 900))
    assert views.memory(norm(), about()).loads_in_flight_bytes == pytest.approx(held / cta[-1][2])


def test_a_load_of_one_byte_is_in_flight_too():
    cta = norm_cta()
    launch = launch_of(norm_program(Traffic("x", 1, 0), Traffic("w", 1, 0)), [(cta, 0, 0)])
    in_flight = views.memory(norm(), about()).loads_in_flight_bytes
    assert views.memory(launch, about()).loads_in_flight_bytes == pytest.approx(in_flight / 4096)


def test_the_verdict_of_a_memory_kernel_names_bytes_rate_and_wait():
    found = read.timeline(norm(), about(bandwidth=Bandwidth(peak_gb_per_s=4.0, copy_gb_per_s=3.2)))
    words = " ".join(verdict(found))
    assert "loads and stores request 1 GB/s in the original kernel's" in words
    assert ": loads 262 KB of x, 131 KB of w; stores 131 KB of y." in words
    assert "16% of a copy's 3 GB/s and 13% of the peak of 4 GB/s" in words  # 524 KB in 1 ms
    assert "later loads" in words
    assert "products" not in words


def test_what_is_drawn_of_a_cta_shows_loads_from_issue_to_use():
    (window,) = read.timeline(norm(), about()).windows
    loads = [bar for bar in window.bars if bar.track == "loads"]
    assert window.shows == "CTA"
    assert [bar.name for bar in loads][:5] == ["x", "x", "x", "x", "x"]
    assert loads[0].cycles == 20 + 1500


def test_ctas_that_return_early_are_told():
    made = norm_cta()
    lived = made[-1][2]
    busy = [(made, n % 2, (n // 2) * lived) for n in range(4)]
    returned = [([(0, True, 0), (0, False, 30)], n % 2, 2 * lived + 40 * n) for n in range(12)]
    program = norm_program()
    program.intervals[(0, True), (0, False)] = Interval("all warps")
    found = read.timeline(launch_of(program, busy + returned), about())
    assert found.view == "imbalance"
    assert found.imbalance.early_share == 0.75
    assert found.imbalance.early_time_share == pytest.approx(12 * 30 / (12 * 30 + 4 * lived))
    assert found.imbalance.iterations.least == found.imbalance.iterations.most == 4
    assert any("75.0% of 16 CTAs return early" in line for line in verdict(found))


def test_one_hot_cta_is_the_slowest_and_the_others_sms_wait_for_it():
    short, long = norm_cta(iterations=2), norm_cta(iterations=32)
    launch = launch_of(norm_program(), [(long, 0, 0), *[(short, n, 0) for n in range(1, 8)]])
    found = read.timeline(launch, about())
    assert found.view == "imbalance"
    assert (found.imbalance.iterations.least, found.imbalance.iterations.most) == (2, 32)
    assert (found.imbalance.slowest.program_id, found.imbalance.slowest.sm, found.imbalance.slowest.iterations) == (
        0,
        0,
        32,
    )
    assert found.imbalance.slowest.us * US == long[-1][2]
    idle = 1 - (long[-1][2] + 7 * short[-1][2]) / (8 * long[-1][2])
    assert found.sms.idle == pytest.approx(idle)
    words = " ".join(verdict(found))
    assert "2 to 32 iterations" in words
    assert "the slowest CTA, 0, runs" in words


def test_equal_ctas_are_no_imbalance():
    assert read.timeline(norm(), about()).imbalance is None


def test_one_cta_more_than_sms_is_a_last_wave():
    made = norm_cta()
    ctas = [(made, n % 4, (n // 4) * made[-1][2]) for n in range(5)]
    found = read.timeline(launch_of(norm_program(), ctas), about())
    assert found.sms.sms == 4
    assert found.sms.idle == pytest.approx(3 / 8)
    (line,) = [line for line in verdict(found) if "wave" in line]
    assert "in the last 50% of the launch" in line
    assert "5 CTAs are 1.25 waves of 4, and the last wave has 1" in line


def test_whole_waves_have_no_tail_to_speak_of():
    made = norm_cta()
    ctas = [(made, n % 4, (n // 4) * made[-1][2]) for n in range(8)]
    found = read.timeline(launch_of(norm_program(), ctas), about())
    assert found.sms.idle == pytest.approx(0)
    assert not [line for line in verdict(found) if "wave" in line]


def test_several_ctas_on_an_sm_are_counted():
    made = norm_cta()
    ctas = [(made, 0, 0), (made, 0, 0), (made, 1, 0), (made, 1, made[-1][2])]
    use = views.Ctas(launch_of(norm_program(), ctas)).sm_use()
    assert use.most_resident == 2
    assert use.resident == pytest.approx(4 / 3)
    assert use.busy_sms[0] == 2
    assert use.busy_sms[-2] == 1
    assert use.running_ctas[0] == 3


# A GEMM of one stage: the gap between two MMAs loads both tiles into registers, and waits for them.
def gemm_program(uses: tuple[str, ...]) -> Program:
    group, loop = "all warps", (5,)
    scopes = [Scope(0, "lifetime of all warps", group, ()), Scope(1, "a @ b wait", group, loop)]
    mma = Mma("a @ b", 2 * 128 * 256 * 64, "bf16")
    gap = Interval(group, "load a + load b + a @ b issue", "issue", uses=uses, queue=(mma,))
    wait = Interval(group, "a @ b wait", "tensor", queue=(0,))
    rest = Interval(group, "other", "other")
    intervals = {
        ((0, True), (1, True)): gap,
        ((1, True), (1, False)): wait,
        ((1, False), (1, True)): gap,
        ((1, False), (0, False)): rest,
    }
    warps = Group(group, "all", 0, 8, frozenset({"MMAs"}))
    return Program("gemm", [warps], 8, scopes, intervals, loops={5: Loop(5, (mma,), ())})


def gemm(gap: int, wait: int, uses: tuple[str, ...] = ("a", "b"), iterations: int = 8) -> Launch:
    at, records = 0, [(0, True, 0)]
    for _ in range(iterations):
        records += [(1, True, at + gap), (1, False, at + gap + wait)]
        at += gap + wait
    made = [*records, (0, False, at + 50)]
    return launch_of(gemm_program(uses), [(made, n % 4, (n // 4) * (at + 100)) for n in range(8)])


def test_with_one_stage_the_loads_stand_on_the_path_and_the_tensor_cores_rest_meanwhile():
    found = read.timeline(gemm(gap=1400, wait=1100), about())
    assert found.load_wait.cycles == 1400 * 7 / 8  # the first of the eight is before the loop
    assert found.load_wait.share == pytest.approx(1225 / 2500)
    assert found.mma_use.in_flight_cta == pytest.approx(1100 / 2500, rel=0.01)
    assert any("loads are on the critical path" in line and "1225 (49%)" in line for line in verdict(found))


def test_two_recorded_warps_of_the_same_code_are_one_issuing_group():
    program = gemm_program(("a", "b"))
    program.groups.append(Group("last warp", "all", 7, 1, frozenset({"MMAs"})))
    cta = [[(0, True, 0)]]
    for iteration in range(8):
        cta[0] += [(1, True, 2500 * iteration + 1400), (1, False, 2500 * iteration + 2500)]
    cta = [[*cta[0], (0, False, 20_050)]] * 2
    recording = Recording((0, 7), 8, bytes_per_warp=256)
    found = read.timeline(read.decode_launch(encode([cta] * 8, recording), recording, program), about())
    assert [role.warp_group for role in found.roles] == ["all warps", "last warp"]
    assert [bubble.cause for bubble in found.bubbles] == ["load a + load b + a @ b issue"]
    assert found.bubbles[0].cycles == pytest.approx(1400, rel=0.01)


def test_loads_that_are_there_in_time_are_not_blamed():
    found = read.timeline(gemm(gap=40, wait=1000), about())
    assert any("loads arrive in time" in line for line in verdict(found))
    assert read.timeline(gemm(gap=1400, wait=1100, uses=()), about()).load_wait is None


def test_what_the_assembler_orders_otherwise_is_said_in_words():
    original = ["wgmma", "exp2 x2", "TMA load", "mbarrier wait", "atomic"]
    traced = ["wgmma", "TMA load", "mbarrier wait", "atomic", "exp2 x2"]
    found = read.sass_order(Orders(original, traced))
    assert (found.original, found.instrumented, found.same) == (original, traced, False)
    assert found.differences == [
        "after wgmma: exp2 x2 in the original kernel, nothing in the instrumented one",
        "after atomic: nothing in the original kernel, exp2 x2 in the instrumented one",
    ]
    assert read.sass_order(Orders(original, original)) == SassOrder(
        original=original, instrumented=original, same=True, differences=[]
    )
