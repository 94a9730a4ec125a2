"""How a configuration is written in the tables of `kperf tune`."""

import pytest

from kperf.tune import tables
from kperf.tune.space import DEFAULT


@pytest.mark.parametrize(("first", "words"), [(True, "128x64, v first, 4, 1"), (False, "128x64, 4, 1")])
def test_a_configuration_that_loads_v_first_says_so(first, words):
    assert tables._short(DEFAULT.model_copy(update={"PRELOAD_V": first})) == words
