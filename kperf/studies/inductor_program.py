"""The blocks that `make inductor` profiles, and the scopes in which it does."""

import sys
from types import ModuleType

from kperf.installation import EXAMPLES

SCRIPT = EXAMPLES / "transformer_block.py"
"""Where the blocks are."""
ROUNDS = 20
"""Calls of the whole block under Proton."""


def blocks() -> ModuleType:
    """`SCRIPT` as a module: SIZES, and make(name, device, dtype)."""
    sys.path.insert(0, str(SCRIPT.parent))
    try:
        import transformer_block  # type: ignore[import-not-found]
    finally:
        del sys.path[0]
    found: ModuleType = transformer_block
    return found


def scope_of(number: int) -> str:
    """Proton's scope of a launch."""
    return f"launch {number}"


def round_of(number: int) -> str:
    """Proton's scope of a round."""
    return f"round {number}"
