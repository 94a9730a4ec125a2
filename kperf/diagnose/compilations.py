"""Diagnoses all kernels of a script: those of an autotuner, and what one function was compiled for, together."""

from collections.abc import Iterator, Sequence

from kperf.diagnose.candidates import checked
from kperf.diagnose.engine import diagnose, key_of, merged, ranked
from kperf.diagnose.finding import Diagnosis
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.rule import doubts_results
from kperf.trace.analyze.finding import LEVELS, Finding, Level, Source

_Function = tuple[str, Source, bool]


def diagnose_all(kernels: Sequence[Kernel]) -> list[Diagnosis]:
    """Each kernel, with advice that was compiled: of a tuner's configurations the best, and all compilations together.

    Which configuration is fastest, a GPU would have to say.
    """
    of_function: dict[_Function, list[Diagnosis]] = {}
    for kernel, diagnosis in kernels_with_diagnoses(kernels):
        of_function.setdefault(_function_of(kernel, diagnosis), []).append(checked(kernel, diagnosis))
    return [_together(compilations) for compilations in of_function.values()]


def _function_of(kernel: Kernel, diagnosis: Diagnosis) -> _Function:
    """What compilations of one function have in common: two files may have functions of one name."""
    return kernel.name, diagnosis.source, kernel.tuned


def _together(compilations: Sequence[Diagnosis]) -> Diagnosis:
    """What is found in any of a function's compilations, each finding once; skipped is what none of them could run."""
    first = compilations[0]
    if len(compilations) == 1:
        return first
    return first.model_copy(
        update={
            "findings": ranked(merged(_with_constants(compilations))),
            "constants": {
                name: value
                for name, value in first.constants.items()
                if all(one.constants.get(name) == value for one in compilations)
            },
            "skipped": {
                rule: why for rule, why in first.skipped.items() if all(rule in one.skipped for one in compilations)
            },
            "ignored": list(dict.fromkeys(words for one in compilations for words in one.ignored)),
        }
    )


def _with_constants(compilations: Sequence[Diagnosis]) -> Iterator[Finding]:
    """The findings of each compilation; what others have not says by which constants it differs from those."""
    for diagnosis in compilations:
        for finding in diagnosis.findings:
            others = [one for one in compilations if key_of(finding) not in map(key_of, one.findings)]
            own = diagnosis.apart_from(others)
            message = f"{finding.message} (with {own})" if own else finding.message
            yield finding.model_copy(update={"message": message})


def kernels_with_diagnoses(kernels: Sequence[Kernel]) -> list[tuple[Kernel, Diagnosis]]:
    """What `diagnose_all` gives, each with its kernel."""
    found: list[tuple[Kernel, Diagnosis]] = []
    of_tuner: dict[_Function, list[tuple[Kernel, Diagnosis]]] = {}
    for kernel in kernels:
        diagnosis = diagnose(kernel)
        if kernel.tuned:
            of_tuner.setdefault(_function_of(kernel, diagnosis), []).append((kernel, diagnosis))
        else:
            found.append((kernel, diagnosis))
    for tried in of_tuner.values():
        best, diagnosis = min(tried, key=lambda one: [*(_count(one[1], level) for level in LEVELS), _gain(one[1])])
        findings = [one for one in diagnosis.findings if not doubts_results(one)]
        findings += _doubts([one for _, one in tried])
        found.append((best, diagnosis.model_copy(update={"findings": ranked(findings), "configurations": len(tried)})))
    return found


def _gain(diagnosis: Diagnosis) -> float:
    """What the worst finding's advice gives: of two configurations with the same faults the slower one gains more."""
    worst = next(iter(diagnosis.findings), None)
    return worst.estimate.speedup if worst is not None and worst.estimate is not None else 1.0


def _doubts(tried: Sequence[Diagnosis]) -> Iterator[Finding]:
    """What doubts the results of a tuner's configurations, each once: the tuner may choose any of them."""
    together: dict[tuple[str, Source], list[tuple[Finding, Diagnosis]]] = {}
    for diagnosis in tried:
        doubts = [one for one in diagnosis.findings if doubts_results(one)]
        worst_of = {(one.id, one.source): one for one in reversed(doubts)}  # the worst come first
        for key, finding in worst_of.items():
            together.setdefault(key, []).append((finding, diagnosis))
    for doubted in together.values():
        worst, its = min(doubted, key=lambda one: LEVELS.index(one[0].severity))
        if len(doubted) == len(tried):
            yield worst
            continue
        such = its.apart_from(one for one in tried if one is not its)
        yield worst.model_copy(
            update={
                "message": f"{worst.message} ({len(doubted)} of {len(tried)} configurations of the autotuner, such as "
                f"{such})",
                "advice": f"{worst.advice}; or leave these configurations out",
            }
        )


def _count(diagnosis: Diagnosis, level: Level) -> int:
    return sum(finding.severity == level for finding in diagnosis.findings)
