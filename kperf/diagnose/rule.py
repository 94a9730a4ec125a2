"""A rule: what it is called, what it needs to know of a kernel, and its check. The registry is the folder `rules`."""

import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Literal

from kperf.diagnose.reading.kernel import Kernel
from kperf.trace.analyze.finding import Finding
from kperf.trace.analyze.models import Timeline

Stage = Literal["ttgir", "machine code", "launch", "history"]
"""What a static rule reads besides the TTGIR, which all of them do: `launch` is a grid, `history` all launches."""


@dataclass(frozen=True)
class Rule:
    """A static rule, in `rules/<id with underscores>.py` as `RULE`; its page is docs/rules/<id>.md.

    targets: beginnings of the targets to which it applies (`sm_90a`). explained_by: rules whose finding at the same
    line names the cause of this one's, so that one advice is given for both. moves_less: whether its advice leaves out
    bytes that launches move for nothing, so that it helps a kernel that moves them as fast as memory can. only_options:
    whether its advice means its candidates alone, so that their times say what it gives. of_results: whether it says
    what the kernel may compute, not how fast: it stands before the others, and no bound on speed makes it a hint.
    by_options: whether constexprs and compile options may bring it to a kernel that had not got it: advice to change
    them is compiled first.
    """

    id: str
    title: str
    check: Callable[[Kernel], Iterable[Finding]]
    needs: Stage = "ttgir"
    targets: tuple[str, ...] = ("sm_", "gfx")
    explained_by: tuple[str, ...] = ()
    moves_less: bool = False
    only_options: bool = False
    of_results: bool = False
    by_options: bool = False

    def lacks(self, kernel: Kernel) -> str | None:
        """Why it cannot run on a kernel; None if it can."""
        if self.needs == "machine code" and kernel.resources is None:
            return "no machine code was made for this target"
        if self.needs == "launch" and kernel.grid is None:
            return "no launch is known"
        if self.needs == "history" and kernel.history is None:
            return "no launch is known"
        return None


@dataclass(frozen=True)
class DynamicRule:
    """A rule on what was measured, in `rules/<id with underscores>.py` as `RULE`.

    explained_by: static rules whose finding at the same line names the cause of what is measured there. is_bound: its
    finding's estimate, where it has one, is the most that any other one's advice can give for that launch. of_kernel:
    adds to a finding what only the kernel's code says, which a timeline does not have.
    """

    id: str
    title: str
    check: Callable[[Timeline], Iterable[Finding]]
    explained_by: tuple[str, ...] = ()
    is_bound: bool = False
    of_kernel: Callable[[Finding, Kernel], Finding] = lambda finding, _: finding


def _modules() -> list[str]:
    from kperf.diagnose import rules

    return sorted(module.name for module in pkgutil.iter_modules(rules.__path__))


@cache
def all_rules() -> tuple[Rule | DynamicRule, ...]:
    """Every rule, by name."""
    return tuple(import_module(f"kperf.diagnose.rules.{name}").RULE for name in _modules())


def static_rules() -> tuple[Rule, ...]:
    """Rules that need no GPU."""
    return tuple(rule for rule in all_rules() if isinstance(rule, Rule))


def doubts_results(finding: Finding) -> bool:
    """Whether it says what the kernel may compute, not how fast."""
    return any(rule.id == finding.id and rule.of_results for rule in static_rules())


def may_be_brought(finding: Finding) -> bool:
    """Whether other constexprs and options may bring it to a kernel that had not got it."""
    return any(rule.id == finding.id and rule.by_options for rule in static_rules())


def has_only_options(finding: Finding) -> bool:
    """Whether its advice means its candidates alone, so that their times say what it gives."""
    return any(rule.id == finding.id and rule.only_options for rule in static_rules())


def dynamic_rules() -> tuple[DynamicRule, ...]:
    """Rules on a timeline."""
    return tuple(rule for rule in all_rules() if isinstance(rule, DynamicRule))
