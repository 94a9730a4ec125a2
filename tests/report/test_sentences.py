"""What is said of two kernels that do the same work."""

from kperf.record.store import RECORDED
from kperf.report.report import read_report
from kperf.report.sentences import between, verdict
from kperf.trace.analyze.recorded import read_timeline


def test_what_one_saves_is_of_an_iteration_and_what_agrees_is_the_times():
    slow, fast = (read_timeline(RECORDED / f"h200/fig11/{name}.timeline.json") for name in ("vanilla", "improved"))
    saved = slow.iteration.cycles - fast.iteration.cycles
    idle = [sum(bubble.cycles for bubble in timeline.bubbles) for timeline in (slow, fast)]
    first, second = between(slow, fast)
    assert first == (
        f"{fast.label} saves {saved:.0f} cycles an iteration against {slow.label}; "
        f"bubbles go from {idle[0]:.0f} to {idle[1]:.0f}."
    )
    shared = fast.model_copy(update={"bubbles_of": "SM"})
    assert between(slow, shared)[0] == f"{fast.label} saves {saved:.0f} cycles an iteration against {slow.label}."
    plain = slow.overhead.launch_ms / fast.overhead.launch_ms
    assert f"{slow.iteration.cycles / fast.iteration.cycles:.3f}, the original kernels' times by {plain:.3f}" in second
    iteration_time = slow.iteration.model_copy(update={"cycles": fast.iteration.cycles * plain * 1.06})
    assert "they do not agree within 5 %" in between(slow.model_copy(update={"iteration": iteration_time}), fast)[1]
    iteration_time = slow.iteration.model_copy(update={"cycles": fast.iteration.cycles * plain * 1.04})
    assert "they agree within 5 %" in between(slow.model_copy(update={"iteration": iteration_time}), fast)[1]


def test_sentences_of_a_timeline_are_those_it_was_recorded_with_and_made_where_it_has_none(tmp_path):
    path = tmp_path / "gemm.timeline.json"
    recorded = read_timeline(RECORDED / "h200/examples/attention_forward.timeline.json")
    for own, wanted in ((["said then"], ["said then"]), ([], verdict(recorded))):
        path.write_text(recorded.model_copy(update={"verdict": own}).model_dump_json())
        assert read_report(path).timeline.verdict == wanted != []
