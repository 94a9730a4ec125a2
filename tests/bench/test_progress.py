"""What a sweep shows: one bar, a line a GPU where there are several, a line a workload above."""

import io

from kperf.attention.workload import Workload
from kperf.bench.progress import sweep_progress
from kperf.console import WholeConsole
from tests.conftest import failed, point

KEY = ("seq_len", Workload(batch=16, seq_len=1024))


def shown(tell):
    console = WholeConsole(width=120, file=io.StringIO(), force_terminal=True, color_system=None)
    with sweep_progress(console) as progress:
        progress.begin(10, 100)
        tell(progress)
    return console.file.getvalue()


def test_of_one_gpu_the_bar_says_what_it_does():
    text = shown(lambda progress: progress.step(KEY, "round 3 of 40", ""))
    assert "16 x 1024: round 3 of 40" in text
    assert "all GPUs" not in text


def test_of_several_each_has_its_line():
    def tell(progress):
        for gpu, what in (("GPU 0", "settling"), ("GPU 3", "checking FA3"), ("GPU 0", "round 3 of 40")):
            progress.step(KEY, what, gpu)

    *_, last = shown(tell).rpartition("all GPUs")
    assert "GPU 0: 16 x 1024: round 3 of 40" in last
    assert "GPU 3: 16 x 1024: checking FA3" in last
    assert "settling" not in last


def test_a_workload_s_line_says_where_it_was_measured():
    points = [point("fa3", 1.0), failed("triton")]
    assert "GPU 3: 16 x 16 x 1024 x 128 bfloat16 full: fa3" in shown(lambda progress: progress.points(points, "GPU 3"))
    alone = shown(lambda progress: progress.points(points, ""))
    assert "16 x 16 x 1024 x 128 bfloat16 full: fa3" in alone
    assert "GPU" not in alone
    assert "  triton: too large" in alone
