"""One panel of Fig. 12 as the original's two scripts print it, without a GPU."""

import pytest

from kperf.paper.fig12 import Mode
from tests.command import kperf
from tests.paper.test_fig12 import fill


def rows(done):
    """By shape: the first implementation's rate, and the run."""
    assert done.returncode == 0, done.stderr
    cells = [[cell.strip() for cell in line.split("│")] for line in done.stdout.splitlines() if "(16, 16, " in line]
    return {row[1]: (row[2], row[-3]) for row in cells}


@pytest.mark.parametrize("other", ["fa2,cudnn", "improved"])
def test_a_number_is_the_same_beside_whatever_it_is_printed_and_its_run_is_named(tmp_path, other):
    """A newer run of some implementations alone is not taken for the figure's."""
    mode = Mode()
    fill(tmp_path / "h200", mode, seed=1)
    fill(tmp_path / "h200", mode, seed=2, keys=["fa3"])
    alone = rows(kperf("sweep", "seq_len", "--only", "fa3", "--results", tmp_path))
    beside = rows(kperf("sweep", "seq_len", "--only", f"fa3,{other}", "--results", tmp_path))
    assert alone == beside
    assert len(alone) == 8
    assert {run.partition("-")[0] for _, run in alone.values()} == {"1"}
