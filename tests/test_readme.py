"""What README and the pages show is what the commands print, and their numbers are those of the records."""

import io
import re
import statistics
from pathlib import Path

from kperf.arch import H200_ATOMIC_NS
from kperf.attention.implementations import IMPLEMENTATIONS
from kperf.bench.points import Store
from kperf.bench.tables import speedup
from kperf.console import WholeConsole
from kperf.diagnose.command import Request, show
from kperf.diagnose.finding import Diagnoses
from kperf.paper import (
    claims,
    disturbance,
    examples,
    fig11,
    fig12,
    goals,
    llama_block,
    operators,
    proof,
    proof_ncu,
    proof_page,
    tritonbench,
)
from kperf.paper.units import measured
from kperf.plots import fig11 as plot_fig11
from kperf.record.store import RECORDED, RecordStore
from kperf.report.sentences import verdict
from kperf.studies import collection_pages, fig13, followed, interleaved, lines, public, public_rows, sped_up
from kperf.trace.analyze.recorded import read_timeline
from tests.command import kperf
from tests.pages import PAGES, all_between_marks, between_marks, said

KERNELS = Path(__file__).parent / "diagnose/kernels"
COMMAND = "diagnose --static examples/gemm.py -- --stages 1"


def indented(lines):
    return "\n".join(f"    {line}".rstrip() for line in lines).strip()


def test_the_shown_diagnosis_is_what_is_printed():
    done = kperf(*COMMAND.split(), COLUMNS="124")
    assert (done.returncode, done.stderr) == (0, "")
    assert between_marks("README.md", "diagnosis") == indented(
        [f"$ kperf {COMMAND}", *done.stdout.rstrip().split("\n")]
    )


def test_the_shown_gain_is_of_the_record():
    rows = RecordStore(RECORDED / "h200", "diagnose", proof.ROWS).points()
    row = next(row for row in reversed(rows) if row.name == "matmul_one_stage")
    (found,) = row.kernels
    first = found.findings[0]
    there = first.source.model_copy(update={"file": str(KERNELS / first.source.file)})
    shown = found.model_copy(update={"findings": [first.model_copy(update={"source": there})]})
    console = WholeConsole(file=io.StringIO())
    show(console, Diagnoses(kernels=[shown]), Request())
    command = f"$ kperf diagnose tests/diagnose/kernels/{row.kind}/{row.name}.py"
    printed = indented([command, *console.file.getvalue().rstrip().split("\n")])
    assert between_marks("docs/diagnose.md", "measured") == printed


def test_what_all_advice_gave_is_that_of_the_record():
    known, held_out = (
        [row for row in proof.recorded_run(RECORDED / "h200", held_out=part).rows if not row.is_clean]
        for part in (False, True)
    )
    named, named_of_known = (sum((row.rank or 3) <= 2 for row in some) for some in (held_out, known))
    gains = [row.gain for row in known if row.gain is not None]
    faster = sum(gain.speedup >= 1.1 for gain in gains)
    slower = sum(gain.is_slower for gain in gains)
    assert f"([held out](docs/proof/held_out.md)) | {named} of {len(held_out)} | not computed |" in PAGES["README.md"]
    assert f"([proof set](docs/proof.md)) | {named_of_known} of {len(known)} | not computed |" in PAGES["README.md"]
    assert said(
        f"of {len(gains)} timed changes that kperf advises, {faster} make the kernel at least 10 % faster, and "
        f"{slower} make the kernel slower."
    )


def test_the_shown_reading_is_of_the_record():
    timeline = read_timeline(RECORDED / "h200/examples/gemm_3_stages.timeline.json")
    assert between_marks("docs/reading.md", "reading") == indented(verdict(timeline)[:4])


def test_what_events_cost_the_launches_that_are_read_is_that_of_the_record():
    rows = disturbance.newest_of_each(RecordStore(RECORDED / "h200", "disturbance", disturbance.ROWS).points())
    (line,) = (line for line in disturbance.sentences(rows) if "--ctas auto would choose" in line)
    kernels, middle, worst = re.search(
        r"for \d+ of (\d+) kernels.*, by ([\d.]+)% in the median and by ([\d.]+)% at worst", line
    ).groups()
    assert said(
        f"events (timestamps) lengthen the launch that a timeline shows by {middle} % in the median of {kernels} "
        f"kernels, and by {worst} % at worst"
    )
    longer = f"Over {kernels} kernels, events change the time of the launch that a timeline shows by {middle} %"
    assert said(f"{longer} in the median, and by {worst} % at worst.")


def test_the_score_of_the_paper_is_that_of_the_claims():
    known = {claim.id: claim for claim in claims.read_claims()}
    rows = {
        "improved-over-vanilla": "improved schedule over vanilla, seq_len >= 1024",
        "improved-over-fa3": "improved schedule over FA3, seq_len >= 1024",
        "fig13-mean": "time that tracing adds to a kernel launch, mean of the paper's four kernels",
    }
    for name, words in rows.items():
        outcomes = [claims.evaluate(known[name], RECORDED / gpu) for gpu in ("h200", "h100-80gb-hbm3")]
        cells = [f"{measured(outcome.value, known[name].unit)}: {outcome.verdict}" for outcome in outcomes]
        papers = claims.expected(known[name]).partition(" +/-")[0]
        assert f"{words} | {papers} | {cells[0]} | {cells[1]} |" in PAGES["README.md"]


def test_what_the_artifacts_experiments_print_is_that_of_the_record():
    for name, label in (("improved", "Triton-FA3 Improved"), ("vanilla", "Triton-FA3")):
        arithmetic = read_timeline(RECORDED / f"h100-80gb-hbm3/fig11/{name}.timeline.json").arithmetic
        hidden = f"{arithmetic.under_any_mmas:.0f} of {arithmetic.cycles:.0f} cycles"
        assert f'"{label} hides {hidden}"' in PAGES["artifact.md"]
        assert (arithmetic.under_any_mmas < arithmetic.cycles / 2) == (name == "vanilla")
    slower = [100 * (cost.ratio - 1) for cost in fig13.kernel_costs(RECORDED / "h100-80gb-hbm3")]
    assert said(f"On an H100, events slow the {len(slower)} kernels of Fig. 11 and of the examples")
    assert said(f"by {statistics.fmean(slower):.1f} % on average, and by {max(slower):.1f} % at most")
    timelines = [read_timeline(RECORDED / f"h100-80gb-hbm3/fig11/{name}.timeline.json") for name in fig11.VARIANTS]
    vanilla, improved = re.findall(r"(\d+)(?:,|$)", plot_fig11._finding(timelines))
    assert said(f"have no MMA in flight: {improved} for improved, {vanilla} for vanilla.")
    times = [lines.summary(RECORDED / gpu).numbers["trace"] for gpu in ("h100-80gb-hbm3", "h200")]
    assert said(f"{times[0]:.0f} x (H100) and {times[1]:.0f} x (H200)")


def test_the_score_of_improved_plus_is_that_of_the_goals():
    table, on_h100 = (goals.markdown(RECORDED / gpu).replace("*", "") for gpu in ("h200", "h100-80gb-hbm3"))
    for known, words, full, causal in (
        (table, "geometric mean of Fig. 12's 16 shapes | H200 |", "1.167", "1.125"),
        (
            on_h100,
            "each kernel alone at the power cap, geometric mean of seq_len 4096 to 16384 | H100 |",
            "1.059",
            "1.090",
        ),
    ):
        assert f"| {full} | {causal} |" in known
        assert said(f"{words} {full} | {causal} |")
    assert (
        "geometric mean of [Fig. 12's](results/h200/fig12.png) 16 shapes | H200 | 1.167 | 1.125 |" in PAGES["README.md"]
    )
    for known, gpu, full, causal in (
        (table, "H200", ("1.009", "16 x 8192"), ("1.010", "1 x 4096")),
        (on_h100, "H100", ("1.013", "16 x 16384"), ("1.023", "1 x 4096")),
    ):
        assert f"| {', at '.join(full)} | {', at '.join(causal)} |" in known
        row = f"| {gpu} | {full[0]} ({full[1]}) | {causal[0]} ({causal[1]}) |"
        assert said(f"FA3 with head_dim 64, at the shape with the smallest speedup {row}")


def test_the_scores_on_an_h100_are_those_of_its_record():
    folder = RECORDED / "h100-80gb-hbm3"
    means = []
    for causal in (False, True):
        runs = list(fig12.figure_runs(Store(folder), fig12.Mode(causal)).values())
        assert len(runs) == 16
        assert all(speedup(run, "improved_plus", other) > 1 for run in runs for other in ("fa3", "cudnn"))
        means.append(statistics.geometric_mean(speedup(run, "improved_plus", "fa3") for run in runs))
    score = f"H100 | {means[0]:.3f} | {means[1]:.3f} |"
    assert said(f"geometric mean of [Fig. 12's](results/h100-80gb-hbm3/fig12.png) 16 shapes | {score}")
    assert said(f"geometric mean of Fig. 12's 16 shapes | {score}")
    assert said("All examples, Fig. 11, Fig. 12, `make accuracy` and `make overhead` are recorded on an H100 too")
    of_both = [{path.name for path in one.glob("examples/*.timeline.json")} for one in (folder, RECORDED / "h200")]
    assert of_both[0] == of_both[1]


def test_the_timers_of_improved_plus_are_those_of_the_record():
    rows = RecordStore(RECORDED / "h100-80gb-hbm3", "tritonbench", tritonbench.ROWS).points()
    rows = [row for row in rows if (row.run, row.workload.seq_len) == (rows[-1].run, 8192)]
    ours = {row.timer: row for row in rows if row.implementation == "improved_plus"}
    tflops = {name: row.workload.flops / statistics.median(row.ours_ms) / 1e9 for name, row in ours.items()}
    wanted = [f"{tflops[name]:.0f}" for name in ("cuda_graph_events", "do_bench", "do_bench_cudagraph")]
    by_both = f"{wanted[1]} and {wanted[2]} TFLOPS by [tritonbench's two timers]"
    assert said(f"on an H100, Improved+ reaches {wanted[0]} TFLOPS by our timer, and {by_both}")


def test_the_timers_beside_tritonbenchs_are_of_the_day_of_the_record():
    rows = RecordStore(RECORDED / "h100-80gb-hbm3", "tritonbench", tritonbench.ROWS).points()
    assert f"Recorded on an H100 on {rows[-1].recorded_at[:10]}:" in PAGES["docs/operator.md"]


def test_the_packages_that_the_list_of_pages_names_are_those_of_the_record():
    points = RecordStore(RECORDED / "h200", "public", public_rows.ROWS).points()
    rows = [row for row in points if not row.faults and not row.follows]
    recorded = {row.repository.partition("/")[2] for row in rows if row.run == rows[-1].run}
    line = next(line for line in PAGES["docs/README.md"].splitlines() if line.startswith("| [Public kernels]"))
    named = line.partition("kernels of ")[2].rstrip("? |").replace(" and ", ", ").split(", ")
    assert recorded == {"ao" if name == "torchao" else name for name in named}


def test_the_front_page_counts_the_faults_of_others_as_the_record_does():
    folder = RECORDED / "h200"
    lines = PAGES["README.md"].splitlines()
    of_number = collection_pages.collected(folder)
    begins = {
        number: f"| [public kernels, {collection_pages.WORDS[number - 1]} collection](docs/sped_up"
        for number in of_number
    }
    found = {
        number: [line.partition(begin)[2][0] for line in lines if line.startswith(begin)]
        for number, begin in begins.items()
    }
    followed_too = {number for number, rows in of_number.items() if any(row.follows for row in rows)}
    rows_of = {number: ["/", "."] if number in followed_too else ["/"] for number in of_number if number > 1}
    assert {number: of for number, of in found.items() if of} == rows_of, "README.md has no row of a collection"
    for number, rows in of_number.items():
        first = sped_up.first_recorded(folder, number)
        gained = [first[row.name] for row in rows if row.name in first and public_rows.is_faster(row)]
        named, chance = sped_up.named(first.values()), sped_up.by_chance(list(first.values()))
        counts = f"{named} of {len(first)} | {chance:.1f} of {len(first)} | {sped_up.named(gained)} of {len(gained)} |"
        name = f"| [public kernels, {collection_pages.WORDS[number - 1]} collection]"
        for line in lines:
            if line.startswith(f"{name}(docs/sped_up/"):
                assert line.endswith(f") | {counts}")
            elif line.startswith(name):
                ours, theirs = followed.means(rows)
                changes = [row for row in rows if row.follows]
                assert line.endswith(
                    f") | {followed.mean_of_first(rows):.2f} x | {ours:.2f} x | {theirs:.2f} x | "
                    f"{sum(map(public_rows.is_slower, changes))} of {len(changes)} |"
                )
    kernels = sum(bool(row.faults) for rows in of_number.values() for row in rows)
    assert f"what made {kernels} public kernels slow" in PAGES["docs/README.md"]


def speeds(page, what):
    """TFLOPS by name of a list like "Forward TFLOPS (batch 4, ...): FA3 757, SDPA math 23."."""
    listed = re.search(rf"{what} TFLOPS \([^)]*\): ([^.]*)\.", " ".join(PAGES[page].split()))[1]
    return {name: int(tflops) for name, tflops in (one.rsplit(" ", 1) for one in listed.split(", "))}


def test_the_speeds_and_the_memory_of_attention_are_those_of_the_record():
    points = Store(RECORDED / "h200", "attention").points()
    alike = [one for one in points if (one.batch, one.head_dim, one.causal) == (4, 128, False)]
    at_8192 = {(one.implementation, one.backward): one for one in alike if one.seq_len == 8192 and one.status == "ok"}
    short = {
        "Triton-FA3 Improved+": "Improved+",
        "Triton-FA3 Improved": "Improved",
        "compiled flex_attention": "flex_attention",
    }
    for what, backward in (("Forward", False), ("Backward", True)):
        labels = {key: IMPLEMENTATIONS[key].label for key, of in at_8192 if of == backward}
        recorded = {short.get(label, label): round(at_8192[key, backward].tflops) for key, label in labels.items()}
        assert speeds("docs/choose.md", what) == recorded

    peaks = {key: one.peak_bytes for (key, backward), one in at_8192.items() if not backward}
    eager, math = peaks.pop("eager"), peaks.pop("sdpa_math")
    assert said(f"takes {statistics.median(peaks.values()) / 1e6:.0f} MB of GPU memory beyond q, k and v")
    assert max(peaks.values()) < 1.04 * 4 * 16 * 8192 * 128 * 2  # hardly more than the output
    takes = f"eager takes {eager / 1e9:.1f} GB, and SDPA math {math / 1e9:.1f} GB, beyond q, k and v."
    assert said(f"At this shape {takes}")
    oom = {(one.implementation, one.backward) for one in alike if one.seq_len == 16384 and one.status == "oom"}
    assert oom == {("sdpa_math", False), ("sdpa_math", True), ("eager", True)}


def test_where_improved_plus_is_not_the_fastest_is_that_of_the_record():
    points = Store(RECORDED / "h200", "attention").points()
    ms = {
        one.implementation: one.median_ms
        for one in points
        if (one.batch, one.heads, one.kv_heads, one.seq_len, one.causal, one.backward) == (1, 32, 8, 1024, True, False)
        and one.head_dim == 128
        and one.status == "ok"
    }
    assert said(f"FA3 takes {ms['fa3']:.4f} ms and Improved+ {ms['improved_plus']:.4f} ms.")
    assert min(ms, key=ms.get) == "fa3"


def test_the_gain_of_a_llama_block_is_that_of_the_record():
    rows = RecordStore(RECORDED / "h100-80gb-hbm3", "llama-block", llama_block.ROWS).points()
    known = {(row.implementation, row.backward): row for row in rows if row.run == rows[-1].run}
    gains = {
        key: interleaved.speedup(row, known[llama_block.TORCH, key[1]])
        for key, row in known.items()
        if key[0] != llama_block.TORCH
    }
    (ours, low, high), (fa3, fa3_low, fa3_high) = gains["improved_plus", False], gains["fa3", False]
    assert max(low, fa3_low) < min(high, fa3_high)
    with_fa3 = f"and {fa3:.3f} times as fast with FA3 as with torch's attention."
    assert said(f"on an H100 is {ours:.3f} times as fast with Improved+ as with torch's attention, {with_fa3}")
    assert said(f"The 95 % intervals of {ours:.3f} and {fa3:.3f} overlap")
    both = {key: gains[key, True][0] for key in ("improved_plus", "fa3")}
    with_fa3 = f"and {both['fa3']:.3f} times as fast with FA3 as with torch's attention."
    assert said(f"are {both['improved_plus']:.3f} times as fast with Improved+ as with torch's attention, {with_fa3}")


def test_the_page_of_fig_11_says_how_much_arithmetic_runs_under_mmas():
    for name, begin in (("vanilla", "only"), ("improved", "In the improved schedule")):
        found = read_timeline(RECORDED / f"h200/fig11/{name}.timeline.json").arithmetic
        hidden = f"{found.under_any_mmas:.0f} of the {found.cycles:.0f} cycles of arithmetic in an iteration"
        assert said(f"{begin} {hidden} overlap with the other consumer's MMAs.")


def test_the_passes_on_the_page_of_fig_11_are_those_of_the_record():
    for name, shown, most in (
        ("vanilla", "vanilla", 6),
        ("improved", "improved", 6),
        ("improved_plus", "Improved+", 6),
    ):
        passes = read_timeline(RECORDED / f"h200/fig11/{name}.timeline.json").apart.passes
        kept = sorted(passes, key=lambda one: one.iteration_cycles)[:most]
        cycles = [one.iteration_cycles for one in kept]
        costs = sorted(100 * (one.overhead.ratio - 1) for one in kept)
        table = PAGES["docs/fig11.md"].partition("time of a launch against")[2]
        row = next(line for line in table.splitlines() if line.startswith(f"| {shown}"))
        assert f"{cycles[0]:.0f} to {cycles[-1]:.0f}" in row
        assert all(f"{abs(cost):.1f} " in row for cost in (costs[0], costs[-1]))


def test_the_page_of_fig_11_has_the_iteration_times_of_both_gpus():
    for gpu, at in (("h200", 0), ("h100-80gb-hbm3", 1)):
        for name, shown in (("vanilla", "vanilla"), ("improved", "improved"), ("improved_plus", "Improved+")):
            timeline = read_timeline(RECORDED / f"{gpu}/fig11/{name}.timeline.json")
            of = timeline.iteration
            rows = [line for line in PAGES["docs/fig11.md"].splitlines() if line.startswith(f"| {shown} | ")]
            assert f"{of.cycles:.0f} (pass {of.pass_number}, {100 * of.cost:+.1f} %)" in rows[0].split("|")[2 + at]
            if gpu == "h200":
                assert f"| {of.least:.0f} to {of.most:.0f} | {timeline.cycles_per_unit.median:.0f} |" in rows[0]


def test_the_page_of_fig_11_says_how_uncertain_the_savings_of_loads_are():
    shown = {}
    for name in ("vanilla", "improved"):
        timeline = read_timeline(RECORDED / f"h200/fig11/{name}.timeline.json")
        loads = [row for row in timeline.withheld if row.region in ("load K", "load V", "wait V empty")]
        assert [row.cycles for row in loads] == [0.0] * 3
        (shown[name],) = {f"{row.high:.0f} cycles" for row in loads}
    assert said(f"{shown['vanilla']} for vanilla, {shown['improved']} for improved.")


def test_the_page_of_fig_11_says_what_its_events_cost():
    for name in ("vanilla", "improved"):
        ratio = read_timeline(RECORDED / f"h200/fig11/{name}.timeline.json").overhead.ratio
        assert f"| {name} | {100 * (ratio - 1):.1f} % |" in PAGES["docs/fig11.md"]


def test_the_examples_are_those_of_the_records():
    """`python -m kperf examples --write docs/examples.md --gpu h200` fills the page anew."""
    assert between_marks("docs/examples.md", "examples") == examples.markdown(RECORDED / "h200")


def test_what_events_cost_a_launch_is_that_of_the_record():
    """`python -m kperf disturbance --write docs/accuracy.md --gpu h200` fills the section anew."""
    assert between_marks("docs/accuracy.md", "disturbance") == disturbance.markdown(RECORDED / "h200")


def test_what_a_sample_still_costs_is_that_of_the_record():
    rows = disturbance.newest_of_each(RecordStore(RECORDED / "h200", "disturbance", disturbance.ROWS).points())
    costs = {row.kernel: 100 * row.cost for row in rows if row.way == "sampled"}
    assert said(f"`flash_decoding_combine` (7 us) takes {costs['flash_decoding_combine']:.1f} % longer")
    layer_norm, mlp_norm = (f"a launch of `{name}` {costs[name]:.1f} %" for name in ("layer_norm", "mlp_norm"))
    assert said(f"{layer_norm}, and {mlp_norm}.")


def test_the_page_of_public_kernels_is_that_of_the_record():
    """`python -m kperf public --write docs/public.md --gpu h200` fills the page anew, and likewise docs/sped_up.md."""
    sections = public.sections(RECORDED / "h200")
    assert between_marks("docs/public.md", "public") == sections.pop("public")
    assert sections == all_between_marks("docs/sped_up")


def test_the_page_of_autotuner_lists_counts_the_operators_that_gained():
    rows = operators.recorded_run(RECORDED / "h100-80gb-hbm3").rows
    found = [one for row in rows for kernel in row.kernels for one in kernel.findings if one.id == "autotuner-list"]
    gains = [best.speedup for one in found if (best := proof.best_of(one)) is not None]
    page = " ".join((KERNELS.parents[2] / "docs/rules/autotuner-list.md").read_text().split())
    assert f"on an H100, {sum(gain >= 1.03 for gain in gains)} of {len(gains)} kernels of" in page


def test_the_readme_counts_the_operators_whose_advice_was_followed():
    rows = RecordStore(RECORDED / "h100-80gb-hbm3", "public", public_rows.ROWS).points()
    faster, slower = sum(map(public_rows.is_faster, rows)), sum(map(public_rows.is_slower, rows))
    assert said(
        f"of {len(rows)} randomly drawn operators, kperf's advice makes {faster} at least 10 % faster, and "
        f"{slower} slower."
    )


def test_the_page_of_public_operators_is_that_of_the_record():
    """`python -m kperf operators --write docs/operators.md --gpu h100-80gb-hbm3`, and likewise `kperf public`."""
    folder = RECORDED / "h100-80gb-hbm3"
    assert between_marks("docs/operators.md", "operators") == operators.markdown(folder)
    assert between_marks("docs/operators.md", "public") == public.markdown(folder)


def test_how_far_predictions_between_schedules_are_off_is_that_of_the_records():
    of_improved = next(claim for claim in claims.read_claims() if claim.id == "improved-predicted-from-vanilla")
    of_vanilla = of_improved.model_copy(update={"variant": "vanilla", "measured": "improved"})
    folders = [RECORDED / gpu for gpu in ("h200", "h100-80gb-hbm3")]
    off = [claims.evaluate(claim, folder).value for claim in (of_improved, of_vanilla) for folder in folders]
    assert said(f"the predictions are off by {100 * min(off):.1f} to {100 * max(off):.1f} %")


def test_the_page_of_the_proof_is_that_of_the_record():
    """`python -m kperf proof --write docs/proof.md --gpu h200` fills the page anew."""
    folder = RECORDED / "h200"
    assert all_between_marks("docs/proof") == proof_page.sections(folder, KERNELS) | proof_ncu.sections(folder)


def test_the_pages_of_rules_have_the_gains_of_the_proof_set():
    """On an H100 those that were recorded there."""
    gains = {
        row.name: row.gain.speedup
        for gpu in ("h200", "h100-80gb-hbm3")
        for row in proof.recorded_run(RECORDED / gpu, held_out=False).rows
        if not row.is_clean and row.gain is not None
    }
    shown = {}
    for path in (KERNELS.parents[2] / "docs/rules").glob("*.md"):
        sentences = re.split(r"(?<=[.:]) ", " ".join(path.read_text().split()))
        for sentence in sentences:
            if (gain := re.search(r"was (\d+\.\d\d) times as fast", sentence)) is not None:
                (name,) = {name for name in re.findall(r"`(\w+)`", sentence) if name in gains}
                shown[name] = gain[1]
    assert len(shown) >= 16
    assert shown == {name: f"{gains[name]:.2f}" for name in shown}


def test_the_pages_of_rules_have_the_gains_of_the_record():
    points = RecordStore(RECORDED / "h200", "diagnose", proof.ROWS).points()
    rows = {row.name: row for row in reversed(points)}  # the first: the fixed copies of then are what the pages tell of
    rule = (KERNELS.parents[2] / "docs/rules/loads-not-pipelined.md").read_text()
    longer = 1 / rows["descriptor_one_stage"].gain.speedup
    words = "with three stages, with which only one CTA fits on an SM, as with one stage"
    assert f"took {longer:.2f} times as long {words}" in " ".join(rule.split())
    columns = (KERNELS.parents[2] / "docs/rules/uncoalesced-access.md").read_text()
    columns = " ".join(columns.split())
    assert re.search(
        rf"In `column_mean`, .*: the fix made it {rows['column_mean'].gain.speedup:.1f} times as fast", columns
    )
    assert f"stores of half sectors took {rows['rope_pairs'].gain.speedup:.1f} times as long" in columns
    others = RecordStore(RECORDED / "h200", "public", public_rows.ROWS).points()
    rotary = next(row for row in others if row.kernel == "apply_rotary_pos_emb_kernel")
    before, after = map(statistics.median, (rotary.original_samples_ms, rotary.changed_samples_ms))
    short = (KERNELS.parents[2] / "docs/rules/few-bytes-in-flight.md").read_text()
    assert f"instead of 4 made a loop over short rows {before / after:.2f} times as fast" in " ".join(short.split())
    atomic = (KERNELS.parents[2] / "docs/rules/atomic-contention.md").read_text()
    assert f"one atomic on an address every {H200_ATOMIC_NS} ns" in " ".join(atomic.split())
