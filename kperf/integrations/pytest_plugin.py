"""A fixture for pytest that tests budgets of kernels: `kperf_budget`. docs/api.md has examples.

pytest imports this module in each of its runs, whoever's: it imports nothing else until the fixture is asked for.
"""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kperf.integrations.budget import Budget


@pytest.fixture
def kperf_budget() -> "Budget":
    """`compiled()` gives what kernels are compiled to, without a GPU; `traced()` what they do on one.

    Skips the test where torch or Triton is missing.
    """
    from kperf.record import stack

    if reason := stack.look().why_no_compiler():
        pytest.skip(reason)
    from kperf.integrations.budget import Budget

    return Budget()
