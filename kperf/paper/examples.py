"""`make examples`: every script of examples/ traced through `kperf trace`; its records, figures, a table, a gallery.

Without a GPU each script's kernels are compiled, instrumented and lowered here, and drawn from the recorded run.
"""

import gzip
import html
import shlex
import statistics
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from rich.console import Console
from rich.table import Table

from kperf.console import titled_table
from kperf.diagnose.engine import found_in
from kperf.errors import MeasurementError, UsageError
from kperf.installation import EXAMPLES as SCRIPTS
from kperf.installation import require_checkout
from kperf.ir import offline
from kperf.plots import trace as plot
from kperf.record import device
from kperf.record.files import require_writable, write_atomically
from kperf.record.store import gpu_slug, recorded_folder
from kperf.report.sentences import verdict
from kperf.studies import child
from kperf.trace.analyze.models import Timeline
from kperf.trace.analyze.recorded import read_timeline
from kperf.trace.capture.instrumented import make_instrumented, resource_usage
from kperf.trace.instrument.events import read_rules

RECORDS = (".timeline.json", ".chrome_trace.json.gz")
"""What is recorded of an example; Perfetto opens a packed trace as well."""
FILES = (*RECORDS, ".png", ".pdf")
"""What is kept of it."""
KPERF = (sys.executable, "-m", "kperf")
"""The command, in this Python."""
_RECORDS_BYTES = 1 << 30
_LIMIT_S = 300


@dataclass(frozen=True)
class Script:
    """A script with its arguments, and what of it is traced.

    `kernels`: name of an example -> the kernel, with * and ?. `small`: arguments that make its tensors small, for a
    machine without a GPU; None if it launches no Triton kernel there.
    """

    name: str
    kernels: dict[str, str]
    arguments: tuple[str, ...] = ()
    small: tuple[str, ...] | None = ()

    @property
    def path(self) -> Path:
        """The file."""
        return SCRIPTS / self.name


_SMALL_GEMM = ("--size", "512")
_SMALL_ATTENTION = ("--batch", "1", "--heads", "1", "--seq-len", "256")

EXAMPLES = (
    Script("vector_add.py", {"vector_add": "add"}, small=("--n", "100000")),
    Script("softmax.py", {"softmax": "softmax_rows"}, small=("--rows", "4")),
    Script("layer_norm.py", {"layer_norm": "layer_norm_rows"}, small=("--rows", "4")),
    *(
        Script("gemm.py", {f"gemm_{n}_stage{'s' * (n > 1)}": "gemm_kernel"}, stages, (*stages, *_SMALL_GEMM))
        for n in (1, 2, 3)
        for stages in [("--stages", str(n))]
    ),
    Script("gemm.py", {"gemm_133_tiles": "gemm_kernel"}, ("--tiles", "133"), _SMALL_GEMM),
    Script("gemm_tma.py", {"gemm_tma": "gemm_tma_kernel"}, small=_SMALL_GEMM),
    Script("gemm_persistent_ws.py", {"gemm_persistent_ws": "gemm_persistent"}, small=_SMALL_GEMM),
    Script("gemm_gluon_ws.py", {"gemm_gluon_ws": "gemm_gluon"}, small=_SMALL_GEMM),
    Script("split_k.py", {"split_k": "gemm_split_k"}, small=("--size", "128", "--k", "2048")),
    Script("moe.py", {"moe": "experts_gemm"}, small=("--tokens", "64", "--experts", "8", "--size", "256")),
    Script(
        "attention.py",
        {
            "attention_forward": "attention_forward",
            "attention_backward_kv": "attention_backward_kv",
            "attention_backward_q": "attention_backward_q",
        },
        small=_SMALL_ATTENTION,
    ),
    Script("attention.py", {"attention_causal": "attention_forward"}, ("--causal",), (*_SMALL_ATTENTION, "--causal")),
    Script(
        "flash_decoding.py",
        {"flash_decoding": "decode_split", "flash_decoding_combine": "combine"},
        small=("--batch", "1", "--seq-len", "4096"),
    ),
    Script("mlp.py", {"mlp_norm": "triton_[rp]e[dr]_*", "mlp_gate": "triton_poi_*mul*"}, small=None),
)
"""All that `make examples` shows."""


AFTER = {
    "gemm_1_stage": ("three stages", "gemm_3_stages"),
    "gemm_2_stages": ("three stages", "gemm_3_stages"),
    "gemm_3_stages": ("TMA descriptors in the place of pointers", "gemm_tma"),
}
"""A fix that was made, and the example that has it: the same work."""


def names() -> list[str]:
    """Every example, in order."""
    return [name for script in EXAMPLES for name in script.kernels]


FIRST = f"examples/{names()[0]}{FILES[0]}"
"""By which a GPU's folder of recorded examples is known."""


def run(console: Console, results: Path, *, only: Sequence[str], require_gpu: bool) -> None:
    """Trace and draw the chosen examples, all if none is named, and print a row for each.

    Raises `UsageError` for a name that there is not, and without a checkout; at the end `MeasurementError` if an
    example failed.
    """
    if unknown := [name for name in only if name not in names()]:
        raise UsageError(f"there is no example {unknown[0]}; there are {', '.join(names())}")
    require_checkout("what `kperf examples` runs, examples/,")
    scripts = [script for script in EXAMPLES if not only or any(name in only for name in script.kernels)]
    why_static = device.why_static()
    if why_static and require_gpu:
        raise UsageError(why_static)
    folder = _recorded_folder(results) if why_static else results / gpu_slug(device.gpu_name()) / "examples"
    require_writable(folder)
    failed = _lower_all(console, scripts, why_static) if why_static else _trace_all(console, scripts, folder)
    if failed:
        console.print("\n".join(failed))
    chosen = [name for script in scripts for name in script.kernels]
    timelines = dict(recorded(folder, chosen))
    for name, timeline in timelines.items() if why_static else ():  # `kperf trace` draws what it traces
        plot.draw(timeline, _stamp(timeline), folder / name)
    if timelines and not only:
        write_gallery(timelines, folder)
    console.print(table(timelines))
    console.print(_costs(timelines))
    if failed:
        raise MeasurementError(f"{len(failed)} of {len(chosen)} examples failed: {failed[0]}")


def _recorded_folder(results: Path) -> Path:
    """Where the recorded examples are; where there are none, `results` itself."""
    try:
        return recorded_folder(results, FIRST) / "examples"
    except UsageError:
        return results


def recorded(folder: Path, chosen: Sequence[str]) -> Iterator[tuple[str, Timeline]]:
    """Those of the chosen examples that have a record. Raises `UsageError` if one is broken."""
    for name in chosen:
        path = folder / f"{name}.timeline.json"
        if path.exists():
            yield name, read_timeline(path)


def _trace_all(console: Console, scripts: Sequence[Script], folder: Path) -> list[str]:
    """Trace each script in a process of its own; returns what failed, a sentence each."""
    folder.mkdir(parents=True, exist_ok=True)
    failed = []
    with tempfile.TemporaryDirectory(prefix="kperf-examples-") as scratch:
        outs = [Path(scratch, str(place)) for place in range(len(scripts))]
        commands = [
            trace_command(
                (str(script.path.relative_to(SCRIPTS.parent)), *script.arguments), script.kernels.values(), out
            )
            for script, out in zip(scripts, outs, strict=True)
        ]
        for ended in child.side_by_side(commands, child.at_once(), _LIMIT_S, cwd=SCRIPTS.parent):
            script = scripts[ended.place]
            words = " ".join((script.name, *script.arguments))
            console.print(f"examples/{words}\n{ended.printed.rstrip()}", highlight=False)
            if ended.status is None:
                failed.append(f"{words} took more than {_LIMIT_S} s")
                continue
            if ended.status:
                failed.append(f"{words} ended with exit status {ended.status}")
            failed += [
                f"{name} was not traced"
                for name, pattern in script.kernels.items()
                if not _kept(name, _slowest(outs[ended.place], pattern), folder)
            ]
    return failed


def trace_command(script: Sequence[str], patterns: Iterable[str], out: Path, *options: str) -> list[str]:
    """`kperf trace` of a script with its arguments: waits for the GPU; all kernels where there is no pattern."""
    kernels = ",".join(dict.fromkeys(patterns)) or "*"
    return [*KPERF, "trace", "--wait", *options, "--kernel", kernels, "--out", str(out), *script]


def _kept(name: str, timeline: Path | None, folder: Path) -> bool:
    """Whether there is a timeline: it and the files beside it are kept in `folder` as the example's."""
    if timeline is None:
        return False
    for suffix in FILES:
        written = timeline.parent / f"{timeline.name.removesuffix(FILES[0])}{suffix.removesuffix('.gz')}"
        content = written.read_bytes()
        packed = gzip.compress(content, mtime=0) if suffix.endswith(".gz") else content
        write_atomically(folder / f"{name}{suffix}", packed)
    return True


def _slowest(out: Path, pattern: str) -> Path | None:
    """Of the kernels that fit the pattern, the timeline of the one that takes longest."""
    found = {path: read_timeline(path) for path in sorted(out.glob(f"*{FILES[0]}"))}
    fitting = {path: t.overhead.launch_ms for path, t in found.items() if fnmatchcase(t.kernel, pattern)}
    return max(fitting, key=lambda path: fitting[path], default=None)


def _lower_all(console: Console, scripts: Sequence[Script], why: str) -> list[str]:
    """Compile each script's kernels and their instrumented kernels for sm_90a; returns what failed, a sentence each."""
    console.print(f"{why}: kernels are compiled, instrumented and lowered here; records and figures are recorded ones")
    rules, failed = read_rules(), []
    for script in scripts:
        if script.small is None:
            console.print(f"{', '.join(script.kernels)}: makes its Triton kernels on a GPU only")
            continue
        launches = offline.launched_by(script.path, script.small)
        for name, pattern in script.kernels.items():
            found = next((launch for launch in launches if fnmatchcase(launch.name, pattern)), None)
            if found is None:
                failed.append(f"{script.name} launches no {pattern}")
                continue
            try:
                with tempfile.TemporaryDirectory(prefix="kperf-examples-") as scratch:
                    made = make_instrumented(
                        found.kernel, 1, Path(scratch), memory=_RECORDS_BYTES, regions=("*",), rules=rules
                    )  # checks that what was compiled is the instrumented kernel
            except (UsageError, MeasurementError) as error:
                failed.append(f"{name}: {error}")
                continue
            original, traced = resource_usage(made.original), resource_usage(made.kernel)
            console.print(
                f"{name}: registers {original.registers} -> {traced.registers}, spilled bytes "
                f"{original.spilled_bytes} -> {traced.spilled_bytes}, "
                f"CTAs an SM {original.occupancy} -> {traced.occupancy}"
            )
    return failed


def table(timelines: dict[str, Timeline]) -> Table:
    """A row an example: its view, its verdict, what tracing it costs."""
    stamps = ", ".join(dict.fromkeys(_stamp(timeline) for timeline in timelines.values()))
    words = ("example", "view", "verdict")
    result = titled_table(f"examples: {stamps or 'none is recorded'}", *words, "overhead", left=words)
    result.show_lines = True
    for name, timeline in timelines.items():
        result.add_row(name, timeline.view, "\n".join(_said(timeline)), _overhead(timeline))
    return result


def _stamp(timeline: Timeline) -> str:
    return f"recorded on {timeline.environment.gpu}, {timeline.environment.recorded_at[:10]}"


def _overhead(timeline: Timeline) -> str:
    ratio = timeline.overhead.ratio
    return "-" if ratio is None else f"{ratio - 1:+.1%}"


def _said(timeline: Timeline) -> list[str]:
    """The verdict on the recorded numbers, without the kernel's name before each sentence."""
    colon, space = f"{timeline.label}: ", f"{timeline.label} "
    sentences = [line.removeprefix(colon).removeprefix(space) for line in verdict(timeline)]
    return [line[:1].upper() + line[1:] for line in sentences]


_SUBJECTS = (
    ("An iteration takes", "An iteration of {} takes"),
    ("The median CTA runs", "The median CTA of {} runs"),
    ("A CTA that does not return early", "A CTA of {} that does not return early"),
    ("Loads and stores request", "Loads and stores of {} request"),
    ("Loads request", "Loads of {} request"),
    ("Stores request", "Stores of {} request"),
    ("Counting each address once, device memory has", "Counting each address of {} once, device memory has"),
    ("The SM has", "In {} an SM has"),
    ("The MMAs of all CTAs", "The MMAs of all CTAs of {}"),
    ("The kernel reads", "{} reads"),
    ("The slowest CTA,", "The slowest CTA of {}, number"),
    ("With all events the kernel is", "With all events {} is"),
)
"""How a sentence of the verdict begins, and how it begins with the name of its example."""


def _with_name(line: str, name: str) -> str:
    """A sentence of the verdict that names its example, for a reader who sees it without its section's title."""
    for beginning, named in _SUBJECTS:
        if line.startswith(beginning):
            return named.format(f"`{name}`") + line.removeprefix(beginning)
    return f"In `{name}` {line[:1] if line[1:2].isupper() else line[:1].lower()}{line[1:]}"


def markdown(folder: Path) -> str:
    """The sections of docs/examples.md, from a GPU's records."""
    timelines = dict(recorded(folder / "examples", names()))
    of = {name: script for script in EXAMPLES for name in script.kernels}
    sections = [_section(name, of[name], timelines) for name in timelines]
    return "\n\n".join([*sections, "## What tracing costs", _costs(timelines)])


def _section(name: str, script: Script, timelines: dict[str, Timeline]) -> str:
    """Command, the first sentences of the reading, the worst finding's advice, and what came of it if that is known."""
    timeline = timelines[name]
    path = script.path.relative_to(SCRIPTS.parent)
    lines = [f"## {name}", ""]
    lines += [
        f"    kperf trace --kernel {shlex.quote(script.kernels[name])} {shlex.join((str(path), *script.arguments))}"
    ]
    sentences = [line for line in _said(timeline) if not line.startswith("That is pass")]
    lines += ["", *(f"- {_with_name(line, name)}" for line in sentences[:3])]
    lines += ["", f"Confidence in the reading of `{name}` is {timeline.confidence.level}."]
    lines[-1] += f" Events change the time of a launch of `{name}` by {_overhead(timeline)}."
    if advised := [finding for finding in found_in(timeline) if finding.severity != "low"]:
        rule = f"[{advised[0].id}](rules/{advised[0].id}.md)"
        lines += ["", f"*Fix.* The rule {rule} of `kperf diagnose` reports `{name}`, and advises: {advised[0].advice}."]
    if name in AFTER and (after := timelines.get(AFTER[name][1])):
        before_ms, after_ms = timeline.overhead.launch_ms, after.overhead.launch_ms
        lines += [
            "",
            f"*After.* With {AFTER[name][0]} ([{AFTER[name][1]}](#{AFTER[name][1]})) the same GEMM takes "
            f"{after_ms:.3f} ms instead of {before_ms:.3f} ms on an {timeline.environment.gpu}, and is "
            f"{before_ms / after_ms:.2f} times as fast.",
        ]
    return "\n".join(lines)


def write_gallery(timelines: Mapping[str, Timeline], folder: Path) -> Path:
    """A page of cards beside the pictures: each example's name, the start of its reading, and its picture."""
    cards = [
        f"<article><h2>{html.escape(name)}</h2><p>{html.escape(next(iter(_said(timeline)), ''))}</p>"
        f'<a href="{name}.png"><img src="{name}.png" alt="Timeline of {name}" loading="lazy"></a></article>'
        for name, timeline in timelines.items()
    ]
    path = folder / "gallery.html"
    write_atomically(path, "\n".join([_GALLERY, *cards, "</main></body></html>", ""]))
    return path


_GALLERY = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>kperf: examples</title><style>
:root { color-scheme: light dark; } body { margin: 1rem; font: 1rem/1.45 system-ui, sans-serif; }
main { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 24rem), 1fr)); }
article { border: 1px solid #8888; border-radius: .4rem; padding: .75rem; break-inside: avoid; }
h1 { grid-column: 1 / -1; margin: 0; } h2 { font-size: 1.1rem; margin: 0; }
p { margin: .35rem 0; } img { width: 100%; background: #fff; }
</style></head><body><main><h1>Inside the examples' kernels</h1>"""


def _costs(timelines: dict[str, Timeline]) -> str:
    """What tracing costs over all of them."""
    costs = {name: t.overhead.ratio - 1 for name, t in timelines.items() if t.overhead.ratio is not None}
    if not costs:
        return "None of these examples is recorded."
    most = max(costs, key=lambda name: costs[name])
    mean = statistics.fmean(costs.values())
    count = f"{len(costs)} example{'s' * (len(costs) > 1)}"
    worst = f"{costs[most]:.1%} slower at most ({most})"
    return f"Over {count}, events make a launch {mean:.1%} slower on average, and {worst}."
