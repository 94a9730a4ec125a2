"""A kernel in which `buffer-race` finds a buffer too few computes wrong results on a GPU; its fixed copy does not."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu

KERNELS = Path(__file__).parent / "kernels"


def checked(path):
    """What `kperf diagnose` says of the results of the script's kernel; None where nothing doubts them."""
    command = [sys.executable, "-m", "kperf", "diagnose", "--json", str(path)]
    (kernel,) = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)["kernels"]
    return next((one["checked"] for one in kernel["findings"] if one["id"] == "buffer-race"), None)


def test_a_kernel_with_a_buffer_too_few_is_wrong_and_its_fixed_copy_is_right():
    found = checked(KERNELS / "drafts/reward_head.py")
    assert found["than"] == "num_stages=1"
    assert found["different"] > 0
    assert checked(KERNELS / "fixed/reward_head.py") is None
