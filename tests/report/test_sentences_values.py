"""Sentences with the numbers that they are made from, which are all unequal, on both sides of each limit."""

from types import SimpleNamespace as Some

import pytest

from kperf.report import sentences
from kperf.trace.analyze.models import (
    IterationCounts,
    IterationTime,
    Memory,
    Overhead,
    Quantiles,
    Residency,
    Slowest,
    TrafficRecord,
    UnitUse,
    Wait,
    WhatIf,
)


def quantiles(median, p5=None, p95=None):
    return Some(p5=p5 or median - 1, median=median, p95=p95 or median + 1)


def timeline(**of):
    """As much of one as a sentence takes."""
    given = {
        "label": "k", "unit": "iteration", "units": 50, "ctas": 300, "cycles_per_unit": quantiles(1000.0),
        "iteration": IterationTime(cycles=1000.0, pass_number=None, cost=None, least=1000.0, most=1000.0),
        "bound": None, "mma_use": None, "fma_use": None, "compute_use": None, "unit_of_compute": "tensor core",
        "residency": Residency(original=1, instrumented=1), "confidence": Some(level="high", reasons=[]),
        "overhead": Overhead(original_ms=2.0, instrumented_ms=2.0, ratio=1.0), "likely_clock_mhz": 1700.0,
        "bubbles": [], "bubbles_of": "CTA", "replay": None, "what_if": [], "withheld": [], "load_wait": None,
        "arithmetic": None,
        "tile_boundary_cycles": None, "roles": [Some(warp_group="p", duty="loads", row="p"),
                                                Some(warp_group="c", duty="MMAs", row="c")],
        "regions": [], "passes": [], "joined": None, "apart": None, "sms": None, "memory": None, "imbalance": None,
        "events": Some(written=1200, lost=0), "sass_order": Some(same=True, differences=[]), "bandwidth": None,
        "arguments": {}, "findings": [], "sampled": None, "why_all": "",
        "where": lambda group, region: "", "row": lambda group: group,
        "clock_mhz": 1700.0, "clock_is_plausible": True,
    }  # fmt: skip
    given |= of
    return Some(**({"launch_ctas": given["ctas"]} | given))


def saving(cycles, low, high, region="load K", group="p"):
    return WhatIf(
        region=region, warp_group=group, cycles=cycles, low=low, high=high, assumed_low=low, assumed_high=high
    )


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (999, "999 bytes"), (1000, "1 KB"), (1234, "1.23 KB"), (999_400, "999 KB"), (1e6, "1 MB"), (2.5e6, "2.5 MB"),
        (1e9, "1 GB"), (12.34e9, "12.3 GB"), (0, "0 bytes"),
    ],
)  # fmt: skip
def test_bytes_have_the_unit_that_leaves_one_to_three_digits(size, text):
    assert sentences._bytes(size) == text


@pytest.mark.parametrize(
    ("count", "text"), [(2, "twice"), (1.96, "twice"), (2.04, "twice"), (1.94, "1.94 times"), (3, "3 times")]
)
def test_how_often(count, text):
    assert sentences._times(count) == text


def test_how_many_others_and_how_many_on_an_sm():
    assert [sentences._others(n) for n in (None, 1, 4)] == ["unknown", "0", "3"]
    assert sentences._resident(timeline(residency=Residency(original=3, instrumented=None))) == "3, -"
    shared = [sentences._shared(timeline(residency=Residency(original=n, instrumented=n))) for n in (None, 1, 2, 5)]
    assert shared == ["", "", ", and 2 CTAs share an SM", ", and 5 CTAs share an SM"]
    whose = [sentences._one_of(timeline(residency=Residency(original=n, instrumented=n))) for n in (None, 1, 2)]
    assert whose == ["one CTA", "the SM", "one CTA"]
    assert sentences._one_of(timeline(residency=Residency(original=2, instrumented=2), bubbles_of="SM")) == "the SM"


def test_a_saving_has_its_interval_or_its_most():
    assert sentences._saved(saving(120.4, 99.6, 140.5)) == "120 (100 to 140)"
    assert sentences._saved(saving(120.0, 139.8, 140.2)) == "up to 140"
    assert sentences._saved(saving(120.0, 141.0, 139.0)) == "up to 139"
    assert sentences._saved(saving(120.0, 139.0, 140.0)) == "120 (139 to 140)"
    names = [sentences._named(saving(1, 1, 1, group=group)) for group in ("p", "all", "tensor cores")]
    assert names == ["load K of p", "load K in all warp groups", "load K on the tensor cores"]


REPLAYED = Some(together=1, cycles=1030.0, measured_cycles=1000.0, error=0.03)


@pytest.mark.parametrize(
    ("share", "of", "words"),
    [
        (0.1499, {}, "k: loads arrive in time: r of c takes 400 (15%) of the 1000 cycles of an iteration."),
        (0.15, {}, "k: loads are on the critical path: r of c takes 400 (15%) of the 1000 cycles of an iteration."),
        (0.4, {"bound": Some(cycles=851.0)}, "k: loads lengthen an iteration by 149 cycles at most, though r of c"),
        (0.4, {"bound": Some(cycles=850.0)}, "k: loads are on the critical path: r of c takes"),
        (0.4, {"bound": Some(cycles=1200.0)}, "k: loads lengthen an iteration by 0 cycles at most"),
        (
            0.4, {"replay": REPLAYED, "what_if": [saving(10, 5, 30), saving(20, 15, 120, "load V")]},
            "k: loads lengthen an iteration by 120 cycles at most",
        ),
        (
            0.4, {"replay": REPLAYED, "withheld": [saving(10, -50, -30)]},
            "k: loads lengthen an iteration by 0 cycles at most",
        ),
        (0.4, {"replay": REPLAYED, "what_if": [saving(10, 5, 30, group="c")]}, "k: loads are on the critical path"),
        (0.4, {"replay": REPLAYED, "what_if": [saving(10, 5, 30, "wait K")]}, "k: loads are on the critical path"),
        (
            0.4, {"replay": Some(error=0.06), "what_if": [saving(10, 5, 30)]}, "k: loads are on the critical path",
        ),
        (
            0.4, {"replay": REPLAYED, "what_if": [saving(10, 5, 30)], "confidence": Some(level="low", reasons=["x"])},
            "k: loads are on the critical path",
        ),
    ],
)  # fmt: skip
def test_where_loads_are_waited_for(share, of, words):
    wait = Some(warp_group="c", regions=["r"], cycles=400.0, share=share)
    assert sentences._load_wait(timeline(**of), wait).startswith(words)


def test_savings_are_said_of_the_two_best_and_of_loads_and_stages():
    rows = [saving(300, 250, 350, "a", "c"), saving(200, 150, 260), saving(100, 50, 390, "wait K empty")]
    said = sentences._what_ifs(timeline(what_if=rows, withheld=[saving(1, -9, 300, "load V")]), REPLAYED)
    assert said == [
        "k: by replay of the dependency graph an iteration takes 1030 cycles; the replayed CTAs took 1000 (+3.0%).",
        "k: an iteration would take 300 (250 to 350) cycles less without a of c, 200 (150 to 260) cycles less without "
        "load K of p.",
    ]
    told = sentences._what_ifs(
        timeline(what_if=rows, withheld=[saving(1, -9, 300, "load V")], replay=REPLAYED), REPLAYED
    )
    assert told[2:] == [
        "k: if no load took any time, an iteration would take at most 300 cycles less.",
        "k: if every stage were free at once, an iteration would take 100 (50 to 390) cycles less.",
    ]
    alone = sentences._what_ifs(timeline(what_if=rows[:1], residency=Residency(original=2, instrumented=2)), REPLAYED)
    assert alone[1].startswith(
        "k: of one CTA, beside which others keep the SM's units busy, an iteration would take 300"
    )
    shared = Some(**vars(REPLAYED) | {"together": 3})
    together = sentences._what_ifs(timeline(what_if=rows[:1], residency=Residency(original=2, instrumented=2)), shared)
    assert together[0].startswith(
        "k: by replay of the dependency graph, of 3 CTAs of an SM together, an iteration takes"
    )
    assert together[1].startswith("k: with the same change in all 3 CTAs of an SM, an iteration would take 300")
    withheld = sentences._what_ifs(timeline(withheld=[Some(why="it is at its bound")]), REPLAYED)
    assert withheld[1:] == ["k: no what-if saving is given: it is at its bound."]
    off = sentences._what_ifs(
        timeline(what_if=rows), Some(together=1, cycles=940.0, measured_cycles=1000.0, error=-0.06)
    )
    assert off == [
        "k: by replay of the dependency graph an iteration takes 940 cycles; the replayed CTAs took 1000 (-6.0%): the "
        "graph does not explain them, and its what-if savings are not to be relied on."
    ]


def uneven(**of):
    given = {
        "early_share": 0.25, "early_time_share": 0.013, 
        "iterations": IterationCounts(least=2, median=7.0, most=31), "cta_us": Quantiles(p5=1.0, median=4.0, p95=9.0),
        "slowest": Slowest(program_id=17, sm=5, iterations=31, start_us=10.5, us=12.0),
    }  # fmt: skip
    return Some(**(given | of))


def test_how_ctas_differ():
    t = timeline(sms=Some(span_us=31.0))
    assert sentences._imbalance(t, uneven()) == [
        "k: 25.0% of 300 CTAs return early; these take 1.3% of the time of all CTAs.",
        "k: a CTA that does not return early makes 2 to 31 iterations of the main loop; the median is 7.",
        "k: the slowest CTA, 17, runs 12.0 us, 3.0 times the median, on SM 5, from 10.5 to 22.5 us of the "
        "launch's 31.0 us.",
    ]
    alike = uneven(early_share=0.0, iterations=IterationCounts(least=7, median=7.0, most=7))
    assert sentences._imbalance(timeline(), alike) == ["k: the slowest CTA, 17, runs 12.0 us, 3.0 times the median."]
    assert len(sentences._imbalance(t, uneven(iterations=None))) == 2


def use_of_sms(median, **of):
    return Some(**({"sms": 100, "span_us": 10.0, "median_end_us": median, "idle": 0.077, "most_resident": 2} | of))


def test_a_tail_is_said_from_a_tenth_of_the_launch_on_and_waves_where_it_is_one():
    half = "k: half of the 100 SMs have no CTA any more in the last"
    assert sentences._tail(timeline(ctas=100), use_of_sms(9.01)) == []
    idle = "of the launch, and the SMs are idle 8% of its time"
    assert sentences._tail(timeline(ctas=200), use_of_sms(8.75)) == [f"{half} 12% {idle}."]
    waves = "201 CTAs are 1.00 waves of 200, and the last wave has 1"
    assert sentences._tail(timeline(ctas=201), use_of_sms(8.0)) == [f"{half} 20% {idle}: {waves}."]
    full = "600 CTAs are 3.00 waves of 200, and the last wave has 200"
    assert sentences._tail(timeline(ctas=600), use_of_sms(8.0)) == [f"{half} 20% {idle}: {full}."]
    assert sentences._tail(timeline(ctas=201, imbalance=uneven()), use_of_sms(8.0)) == [f"{half} 20% {idle}."]
    assert sentences._tail(timeline(ctas=9), use_of_sms(0.75, span_us=1.0))[0].startswith(f"{half} 25%")


@pytest.mark.parametrize(
    ("ratio", "of", "words"),
    [
        (None, {}, None),
        (1.09, {}, None),
        (1.25, {"joined": Some()}, None),
        (1.1, {}, "10% slower, about 91 cycles of an iteration's 1000, of which 12 events take some"),
        (1.25, {}, "25% slower, about 200 cycles of an iteration's 1000, of which 12 events take some"),
        (1.25, {"unit": "CTA", "cycles_per_unit": quantiles(500.0)}, "about 100 cycles of a CTA's 500, of which 12"),
    ],
)
def test_what_tracing_costs_is_said_where_it_is_much(ratio, of, words):
    overhead = Overhead(original_ms=2.0, instrumented_ms=2.0 * (ratio or 1), ratio=ratio)
    found = sentences._cost(timeline(overhead=overhead, **of))
    assert len(found) == (words is not None)
    assert not words or words in found[0]


def test_of_what_tracing_costs_events_take_no_more_than_all_of_it():
    own = sentences.CYCLES_AN_EVENT * 12
    overhead = Overhead(original_ms=2.0, instrumented_ms=2.5, ratio=1.25)
    (much,) = sentences._cost(timeline(overhead=overhead, cycles_per_unit=quantiles(100_000.0)))
    assert f"about 20000 cycles of an iteration's 100000, of which 12 events take some {own:.0f}; " in much
    assert much.endswith("the rest comes from what they delay.")
    little = timeline(overhead=overhead, cycles_per_unit=quantiles(100.0))
    assert sentences._cost(little)[0].endswith(
        "about 20 cycles of an iteration's 100, of which 12 events take some 20."
    )
    moved = timeline(
        overhead=overhead, cycles_per_unit=quantiles(1e5), unit="CTA", sass_order=Some(same=False, differences=[])
    )
    assert sentences._cost(moved)[0].endswith("to device memory and the order of instructions that events change.")


def test_what_is_trusted_is_said_with_what_was_lost_and_moved():
    moved = Some(same=False, differences=["a", "b", "c"])
    low, lost = Some(level="low", reasons=["x", "y"]), Some(written=1200, lost=7)
    t = timeline(ctas=160, confidence=low, events=lost, sass_order=moved)
    assert sentences._trust(t) == [
        "k: confidence is low: x; y; trace fewer regions (--regions), or over several passes, for a reading of higher "
        "confidence.",
        "k: 7 of 1200 events were overwritten; the rest is shown.",
        "k: events change the order of instructions; there the picture does not show the original kernel: a; b.",
    ]
    assert sentences._trust(timeline()) == ["k: confidence is high."]


def test_how_passes_are_joined_or_do_not_agree():
    joined = Some(
        left_out=[1, 3], tolerance=0.034, why=["because", "and"], original_cycles=987.4, replayed=False,
        one_pass=Some(overhead="1.25 ms"),
    )  # fmt: skip
    t = timeline(passes=[None] * 5)
    assert sentences._joined(t, joined) == [
        "k: an iteration is joined from 3 of 5 passes that agree: each one's intervals add up to it within 3%.",
        "k: 2 show another schedule and are left out: because.",
        "k: by the launches' times the original's iteration takes 987 cycles.",
        "k: single CTAs, tile boundaries, what-if savings and all outside of the main loop are from one launch with "
        "all events (1.25 ms).",
    ]
    whole = Some(**(vars(joined) | {"left_out": [], "original_cycles": None, "replayed": True}))
    assert [line[:20] for line in sentences._joined(t, whole)] == ["k: an iteration is j", "k: single CTAs, tile"]
    ratios = [1.05, None, 0.98, 1.2]
    passes = [Some(overhead=Some(ratio=ratio)) for ratio in ratios]
    assert sentences._apart(t, Some(passes=passes, why=["A differs", "B"])) == (
        "k: what is drawn is one launch with all events, for 4 passes do not agree; they cost -2.0% to +20.0% of the "
        "original kernel's time; A differs."
    )
    unknown = Some(passes=passes[1:2], why=["A differs"])
    assert sentences._apart(t, unknown).endswith("for 1 passes do not agree; A differs.")


MOVED = [
    TrafficRecord(argument="a", loaded_bytes=3000, stored_bytes=0, places=1, unique_bytes=1000),
    TrafficRecord(argument="b", loaded_bytes=0, stored_bytes=2_500_000, places=1, unique_bytes=2_500_000),
    TrafficRecord(argument="c", loaded_bytes=400, stored_bytes=0, places=2, unique_bytes=200),
    TrafficRecord(argument="d", loaded_bytes=148, stored_bytes=0, places=1, unique_bytes=100),
    TrafficRecord(argument="e", loaded_bytes=150, stored_bytes=0, places=1, unique_bytes=100),
]
ARGUMENTS = {"a_ptr": "int8 [1000]", "c": "int8 [200]", "d": "int8 [100]", "e": "int8 [100]"}
WAITS = [Wait(doing="one", share=0.6, cycles=1.0), Wait(doing="two", share=0.05, cycles=1.0),
         Wait(doing="three", share=0.0499, cycles=1.0)]  # fmt: skip


def test_what_a_kernel_moves_and_how_often_it_reads():
    kept = Memory(traffic=MOVED, gb_per_s=1200.0, unique_gb_per_s=900.0, waits=WAITS, loads_in_flight_bytes=2048.0)
    t = timeline(
        arguments=ARGUMENTS, bandwidth=Some(copy_gb_per_s=4000.0, peak_gb_per_s=4500.0),
        residency=Residency(original=3, instrumented=2),
    )  # fmt: skip
    assert sentences._memory(t, kept) == [
        "k: loads and stores request 1200 GB/s in the original kernel's 2.000 ms: loads 3 KB of a, 400 bytes of c, 148 "
        "bytes of d, 150 bytes of e; stores 2.5 MB of b.",
        "k: counting each address once, device memory has to move at least 2.5 MB: 900 GB/s, 22% of a "
        "copy's 4000 GB/s and 20% of the peak of 4500 GB/s.",
        "k: the kernel reads a 3 times: a has 1 KB.",
        "k: the kernel reads c twice: 2 of its loads have the same addresses.",
        "k: the kernel reads e 1.5 times: e has 100 bytes.",
        "k: the median CTA runs for 1000 cycles: 60% one, 5% two.",
        "k: a CTA has 2.05 KB of loads in flight on average, and while it waits up to 2 other CTAs are on its SM (1 in "
        "the instrumented kernel).",
    ]
    unknown = kept.model_copy(update={"unique_gb_per_s": None, "loads_in_flight_bytes": 0.0, "traffic": MOVED[:1]})
    once = Overhead(original_ms=None, instrumented_ms=3.0, ratio=None)
    t.overhead, t.arguments = once, {}
    assert sentences._memory(t, unknown) == [
        "k: loads request 1200 GB/s in the instrumented kernel's 3.000 ms, 30% of a copy's 4000 GB/s and 27% of the "
        "peak of 4500 GB/s: loads 3 KB of a.",
        "k: the median CTA runs for 1000 cycles: 60% one, 5% two.",
    ]


def test_which_launch_an_iteration_is_of():
    assert sentences._launches(timeline()) == []
    least = IterationTime(cycles=950.0, pass_number=2, cost=-0.031, least=900.0, most=1100.0)
    t = timeline(iteration=least, apart=Some(passes=[None] * 4))
    assert sentences._launches(t) == [
        "k: that is pass 2 of 4 with a few events each, whose events cost -3.1% of the original kernel's time; all "
        "launches show 900 to 1100; what is drawn has all events and takes 1000: 50 are the events' cost."
    ]
    t.iteration = IterationTime(cycles=1100.0, pass_number=None, cost=None, least=900.0, most=1100.0)
    assert sentences._launches(t) == [
        "k: that is the launch with all events; all launches show 900 to 1100; what is drawn has all "
        "events and takes 1000."
    ]
    t.iteration = IterationTime(cycles=990.0, pass_number=3, cost=0.5, least=990.0, most=990.0)
    assert sentences._launches(t)[0].endswith("all launches show 990 to 990.")


def test_how_busy_the_units_are():
    assert sentences._use(timeline()) == []
    use = UnitUse(sm=0.61, sm_recorded=None, cta_main_loop=0.83, in_flight_sm=None, in_flight_cta=0.9)
    bound = Some(cycles=800.0, instruction="wgmma")
    t = timeline(compute_use=use, bound=bound, residency=Residency(original=2, instrumented=2))
    assert sentences._use(t) == [
        "k: the MMAs of all CTAs reach 61% of the peak rate of the tensor cores (wgmma) in the original kernel's 2.000 "
        "ms at 1700 MHz; inside its main loop, one CTA alone reaches 83% of one SM's peak rate, and 2 CTAs share an SM."
    ]
    t = timeline(compute_use=use.model_copy(update={"sm": None}), unit_of_compute="fma")
    assert sentences._use(t) == [
        "k: inside its main loop, one CTA alone reaches 83% of the peak rate of the FMA units of one SM."
    ]


def test_what_a_pipeline_does():
    t = timeline(
        bound=Some(cycles=990.0, instruction=""), bubbles=[Some(cycles=70.4, cause="x"), Some(cycles=29.0, cause="y")],
        tile_boundary_cycles=quantiles(345.0), 
        arithmetic=Some(cycles=600.0, under_own_mmas=120.0, under_any_mmas=410.0),
    )  # fmt: skip
    assert sentences._pipeline(t) == [
        "k: an iteration takes 1000 cycles; its MMAs need 990 cycles on the tensor cores: it is at its bound.",
        "k: the SM has no MMA in flight in 99 of the 1000 cycles of an iteration, mostly during x.",
        "k: a CTA computes one tile after another; from a tile to the next it takes 345 cycles beyond those of the "
        "iterations, in which it computes the MMAs of one iteration more.",
        "k hides 410 of 600 cycles of arithmetic under MMAs, 120 of them under its own warp group's.",
    ]
    t = timeline(bound=Some(cycles=500.0, instruction=""), arithmetic=Some(cycles=0.0))
    assert sentences._pipeline(t) == [
        "k: an iteration takes 1000 cycles; its MMAs need 500 cycles on the tensor cores.",
        "k: the SM has an MMA in flight in all of the 1000 cycles of an iteration. An MMA counts as in "
        "flight until the wait for it ends; MMAs compute in at least 500 of these cycles.",
    ]


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        ("x + y", ", mostly during x + y."),
        ("both in reduce + exp2", ", mostly while both warp groups are in reduce + exp2."),
        ("all in wait b full", ", mostly while all warp groups are in wait b full."),
        ("store c beside wait b full", ", mostly while warp groups are in store c and in wait b full."),
        ("other", "of an iteration."),
    ],
)
def test_what_the_warp_groups_do_while_no_mma_is_in_flight_is_a_clause(cause, words):
    t = timeline(bubbles=[Some(cycles=99.0, cause=cause)])
    assert sentences._in_flight(t).endswith(words)


@pytest.mark.parametrize(
    ("of", "idle", "needed"),
    [("CTA", 200.0, 400), ("CTA", 349.0, 400), ("SM", 0.0, 0), ("CTA", 351.0, 0)],  # of an SM 800 of 1000 are computed
)
def test_mmas_in_flight_for_much_longer_than_they_compute_are_explained(of, idle, needed):
    t = timeline(
        bound=Some(cycles=400.0, instruction=""), bubbles=[Some(cycles=idle, cause="x")] if idle else [],
        bubbles_of=of, residency=Residency(original=2, instrumented=2),
    )  # fmt: skip
    more = f"; MMAs compute in at least {needed} of the {1000 - idle:.0f} cycles with an MMA in flight"
    assert (more in sentences._in_flight(t)) == bool(needed)
    assert ("counts as in flight" in sentences._in_flight(t)) == bool(needed)


def test_a_table_has_these_cells_of_two_kernels_side_by_side():
    use = UnitUse(sm=0.614, cta_main_loop=0.833, in_flight_cta=0.955)
    a = timeline(
        label="A", cycles_per_unit=quantiles(1000.0, 900.0, 1200.0), tile_boundary_cycles=quantiles(50.0, 40.0, 60.0),
        iteration=IterationTime(cycles=980.0, pass_number=1, cost=0.1, least=970.0, most=1010.0),
        compute_use=use, bound=Some(instruction="wgmma"), residency=Residency(original=3, instrumented=2),
        arithmetic=Some(cycles=600.0, under_own_mmas=120.0, under_any_mmas=410.0),
        regions=[Some(warp_group="c", name="x", cycles=quantiles(77.0), share=0.25),
                 Some(warp_group="c", name="y", cycles=quantiles(33.0), share=0.015)],
        bubbles=[Some(cause="u", cycles=12.3), Some(cause="v", cycles=45.6)], withheld=[1, 2],
        what_if=[saving(9 - n, 1, 20) for n in range(8)], replay=REPLAYED, overhead="2 ms",
        events=Some(written=1200, lost=7),
    )  # fmt: skip
    b = timeline(
        label="B", iteration=None, clock_mhz=2500.0, clock_is_plausible=False, unit_of_compute="none",
        compute_use=use.model_copy(update={"sm": None}), confidence=Some(level="low", reasons=[]),
        regions=[Some(warp_group="p", name="x", cycles=quantiles(5.0), share=1.0)],
        bubbles=[Some(cause="v", cycles=8.0)],
        sass_order=Some(same=False), overhead="3 ms", what_if=[saving(4, 6, 6, "r", "all")],
    )  # fmt: skip
    table = sentences.table([a, b], "recorded")
    assert [column.header for column in table.columns] == ["", "A", "B"]
    rows = [list(row) for row in zip(*(column.cells for column in table.columns), strict=True)]
    assert rows == [
        ["iteration, least disturbed launch", "980 (970 to 1010 in all launches)", "-"],
        ["iteration, drawn", "1000 (900 to 1200)", "1000 (999 to 1001)"],
        ["from tile to tile, beyond an iteration", "50 (40 to 60)", "-"],
        ["SM clock, MHz (measured)", "1700", "2500, too high: short launch"],
        ["unit of compute", "tensor core (wgmma)", "none"],
        ["its use: of the SM", "61.4%", "-"],
        ["its use: of a CTA's main loop", "83.3%", "83.3%"],
        ["time with an MMA of a CTA in flight", "95.5%", "95.5%"],
        ["CTAs on an SM, original, instrumented", "3, 2", "1, 1"],
        ["confidence", "high", "low"],
        ["arithmetic, of it under own / any MMAs", "600, 120 / 410", "-"],
        ["c: x", "77 (76 to 78)  25.0%", "-"],
        ["c: y", "33 (32 to 34)   1.5%", "-"],
        ["p: x", "-", "5 (4 to 6)  100.0%"],
        ["bubble: u", "12", "-"],
        ["bubble: v", "46", "8"],
        ["what-if saving: cycles without", "load K of p 9 (1 to 20)", "r in all warp groups up to 6"],
        *(["", f"load K of p {9 - n} (1 to 20)", "-"] for n in range(1, 6)),
        ["what-if savings not given", "2", "-"],
        ["iteration by replay", "1030 (+3.0%)", "-"],
        ["launch", "2 ms", "3 ms"],
        ["events written, lost", "1200, 7", "1200, 0"],
        ["SASS order, original and instrumented", "the same", "differs"],
    ]
    assert [place for place, row in enumerate(table.rows) if row.end_section] == [10, 13, 15, 23]
    alone = sentences.table([timeline(regions=[], what_if=[])], "recorded")
    names = list(alone.columns[0].cells)
    assert names.count("what-if saving: cycles without") == 1
    assert "from tile to tile, beyond an iteration" not in names


def test_a_sample_of_ctas_is_said_to_be_one():
    sampled = Some(recorded=25, ctas=300, stride=12, first=4)
    assert sentences._sampled(timeline(all_ctas=None), sampled).startswith(
        "k: 25 of 300 CTAs are recorded, every 12th from CTA 4 on, and all cycles are theirs;"
    )
    every = Some(overhead=Some(cost="costs 38.0%"), resources=None, sass_order=Some(same=True))
    assert sentences._sampled(timeline(all_ctas=every, overhead=Some(cost="costs 1.2%"), resources=None), sampled) == (
        "k: recording all CTAs costs 38.0%: cycles are of 25 sampled CTAs, every 12th of 300 from CTA 4 on, and the "
        "launch with these costs 1.2%; how CTAs differ, how they fill the SMs, how the launch ends and the bytes are "
        "of the launch that recorded all."
    )
