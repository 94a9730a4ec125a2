"""A kernel in which `buffer-race` finds a buffer too few computes wrong results on a GPU; its fixed copy does not."""

import json
from pathlib import Path

import pytest

from tests.command import kperf

pytestmark = pytest.mark.gpu

KERNELS = Path(__file__).parent / "kernels"


def checked(path):
    """What `kperf diagnose` says of the results of the script's kernel."""
    done = kperf("diagnose", "--json", str(path))
    (kernel,) = json.loads(done.stdout)["kernels"]
    return done.returncode, next((one["checked"] for one in kernel["findings"] if one["id"] == "buffer-race"), None)


def test_a_kernel_with_a_buffer_too_few_is_wrong_and_its_fixed_copy_is_right():
    status, found = checked(KERNELS / "drafts/reward_head.py")
    assert status == 1  # of the script: it compares with torch
    assert found["than"] == "num_stages=1"
    assert found["different"] > 0
    assert checked(KERNELS / "fixed/reward_head.py") == (0, None)
