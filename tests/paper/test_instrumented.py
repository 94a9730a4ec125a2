"""The committed instrumented kernels are what the committed overrides and the rules give."""

import pytest

from kperf.attention import overrides
from kperf.attention.variants import FULL_AND_CAUSAL, VARIANTS
from kperf.paper import instrumented

pytestmark = pytest.mark.kernels


@pytest.mark.parametrize("special", FULL_AND_CAUSAL, ids=lambda special: special.file_name)
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_committed_instrumented_kernels_are_generated_byte_for_byte(variant, special, tmp_path):
    original = overrides.find(variant, special)
    assert instrumented.generate(original, tmp_path).read_bytes() == instrumented.path_of(original).read_bytes()
