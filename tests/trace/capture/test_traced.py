"""What an instrumented kernel may take more than the original, and where its records go, by made-up resources."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from kperf.arch import SM_90A
from kperf.errors import UsageError
from kperf.ir.compile import Resources
from kperf.trace.capture import traced as traced_module
from kperf.trace.capture.traced import Orders, Traced, TracedKernel, choose, compile_orders, recording_for
from kperf.trace.instrument.session import Recording

ORIGINAL = Resources(registers=168, stack_bytes=8, local_bytes=4, shared_bytes=1000)


def made(shared_bytes=ORIGINAL.shared_bytes, records=1):
    return TracedKernel("k", "original", shared_bytes, lambda text: text, lambda program: records)


@pytest.mark.parametrize(
    ("warps", "change", "said"),
    [
        (3, {"stack_bytes": 24}, None),
        (3, {"stack_bytes": 32}, "spills 32 bytes where the original kernel spills 8"),
        (2, {"stack_bytes": 16}, None),
        (2, {"stack_bytes": 24}, "spills 24 bytes"),
        (1, {"stack_bytes": 16}, None),
        (3, {"local_bytes": 8}, "spills 8 bytes"),
        (3, {"shared_bytes": SM_90A.cta_shared_bytes}, None),
        (3, {"shared_bytes": SM_90A.cta_shared_bytes + 1}, "too little is left for 24576 bytes of events"),
    ],
)
def test_an_instrumented_kernel_may_keep_a_counter_a_warp_on_the_stack_and_spills_nothing_more(
    monkeypatch, warps, change, said
):
    instrumented = Resources(**(vars(ORIGINAL) | change))
    monkeypatch.setattr(traced_module, "session", lambda recording: nullcontext())
    monkeypatch.setattr(traced_module.compiler, "resources", {"original": ORIGINAL, "instrumented": instrumented}.get)
    monkeypatch.setattr(traced_module.compiler, "sass", lambda kernel: "")
    traced = Traced("instrumented", Recording(tuple(range(warps)), 4))
    if said is None:
        assert compile_orders(made(), traced).differences == []
    else:
        with pytest.raises(UsageError, match=said):
            compile_orders(made(), traced)


@pytest.mark.parametrize(
    ("free", "records", "memory", "bytes_per_warp"),
    [
        (16384, 1024, "shared", 8192),
        (16384, 1025, "global", 16384),
        (16383, 512, "shared", 4096),
        (16383, 513, "global", 8192),
        (0, 1, "global", 64),
        (128, 1, "shared", 64),
        (127, 1, "global", 64),
    ],
)
def test_buffers_of_records_are_halved_while_all_records_of_a_warp_fit(free, records, memory, bytes_per_warp):
    program = SimpleNamespace(groups=[SimpleNamespace(first_warp=warp) for warp in (4, 0)], total_warps=8)
    found = recording_for(program, made(SM_90A.cta_shared_bytes - free, records))
    assert (found.warps, found.memory, found.bytes_per_warp) == ((0, 4), memory, bytes_per_warp)


def test_a_kernel_with_more_shared_memory_than_there_is_cannot_be_launched():
    with pytest.raises(UsageError, match=f"k takes {SM_90A.cta_shared_bytes + 1} of {SM_90A.cta_shared_bytes} bytes"):
        recording_for(SimpleNamespace(), made(SM_90A.cta_shared_bytes + 1))


IN_ORDER, MOVED, SPILLS = Orders(["a", "b"], ["a", "b"]), Orders(["a", "b"], ["b", "a"]), UsageError("it spills")
ALL = {"arithmetic", "store", "wait"}
COARSE_FIRST, FINE_FIRST = ["coarse", "fine"], ["fine", "coarse"]


@pytest.mark.parametrize(
    ("shown", "fine", "coarse", "kept", "compiled"),
    [
        (ALL, IN_ORDER, IN_ORDER, "coarse", ["coarse"]),
        (ALL, IN_ORDER, MOVED, "fine", COARSE_FIRST),
        (ALL, MOVED, MOVED, "coarse", COARSE_FIRST),
        (ALL, MOVED, SPILLS, "fine", COARSE_FIRST),
        (ALL, SPILLS, SPILLS, None, COARSE_FIRST),
        (ALL - {"store"}, MOVED, IN_ORDER, "fine", ["fine"]),
        (ALL - {"arithmetic"}, MOVED, IN_ORDER, "fine", ["fine"]),
        (ALL - {"arithmetic"}, SPILLS, MOVED, "coarse", FINE_FIRST),
    ],
)
def test_of_instrumented_kernels_the_one_that_shows_most_is_kept_and_of_alike_the_least_disturbing_or_smaller(
    monkeypatch, shown, fine, coarse, kept, compiled
):
    """`shown`: kinds of intervals of the coarse kernel, which has fewer records; none is compiled in vain."""
    texts = {"fine": "proton.record " * 4, "coarse": "proton.record " * 2}
    details = {text: detail for detail, text in texts.items()}
    kinds = {texts["fine"]: ALL, texts["coarse"]: shown}
    seen = []

    def make_traced(_, text, path):
        intervals = {((0, number), (1, True)): SimpleNamespace(kind=kind) for number, kind in enumerate(kinds[text])}
        return Traced(text, None), SimpleNamespace(
            scopes=[SimpleNamespace(number=number, loop=7) for number in range(2)], intervals=intervals
        )

    def compile_orders(_, traced):
        seen.append(details[traced.text])
        found = {"fine": fine, "coarse": coarse}[seen[-1]]
        if found is SPILLS:
            raise found
        return found

    monkeypatch.setattr(traced_module, "instrument", lambda _, *, detail, rules: texts[detail])
    monkeypatch.setattr(traced_module, "make_traced", make_traced)
    monkeypatch.setattr(traced_module, "compile_orders", compile_orders)
    if kept is None:
        with pytest.raises(UsageError, match="it spills"):
            choose(made())
    else:
        assert details[choose(made())] == kept
    assert seen == compiled
