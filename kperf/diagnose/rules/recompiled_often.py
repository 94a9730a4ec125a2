"""A function that is compiled again and again for other values of its arguments."""

from collections.abc import Iterator

from kperf.console import agreeing
from kperf.diagnose.analyses.vectors import narrowed_by
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.rule import Rule
from kperf.diagnose.script.history import History
from kperf.diagnose.thresholds import COMPILATIONS, MANY_COMPILATIONS
from kperf.trace.analyze.finding import Finding

_SHOWN = 8
"""Values that are printed."""


def check(kernel: Kernel) -> Iterator[Finding]:
    """By the arguments of which the compiler assumed different things: a constexpr, the value 1, multiples of 16."""
    history = kernel.history or History()
    changing = {name: values for name in _names(history) if len(values := _values(history, name)) > 1}
    kinds = {tuple(one.specialisation.get(name) for name in changing) for one in history.compilations.values()}
    if len(kinds) < COMPILATIONS:
        return
    name = max(changing, key=lambda one: len(changing[one]))
    values = changing[name]
    others = [other for other in changing if other != name]
    yield kernel.finding(
        RULE.id,
        None,
        "medium" if len(kinds) >= MANY_COMPILATIONS else "low",
        f"Triton compiled the kernel {len(kinds)} times for {history.launches} launches: {_in_words(name, values)}"
        + (f"; {', '.join(others)} {agreeing(len(others), 'differs', 'differ')} too" if others else ""),
        _advice(kernel, name, values),
        {
            "compilations": len(kinds),
            "launches": history.launches,
            "argument": name,
            "values": ", ".join(map(str, list(values.values())[:_SHOWN])),
            "kinds": ", ".join(dict.fromkeys("constexpr" if _is_constexpr(values) else kind for kind in values)),
            "other_arguments": ", ".join(others),
        },
    )


def _advice(kernel: Kernel, name: str, values: dict[str, int | str]) -> str:
    """Without do_not_specialize where an access of more than one element needs what the compiler knows of the value.

    Of a stride it has to know that it is a multiple of 16, or 1; of the number at which a mask ends, the former.
    """
    if _is_constexpr(values):
        return f"declare {name} without tl.constexpr, or round it up to a few values"
    if any(kind.endswith("aligned to 16 bytes") for kind in values):
        return f"pass as {name} tensors that begin at a multiple of 16 bytes (a slice such as x[1:] may not)"
    if any(name in access.value.arguments for access in kernel.accesses):
        layouts = any(kind.startswith("the value") for kind in values)
        fewer = "pass tensors of one layout" if layouts else f"pad {name} to multiples of 16"
        return f"{fewer}; leave out do_not_specialize, because accesses become narrow where a stride is not known"
    if narrowed_by(kernel, name):
        return (
            f"pad {name} to multiples of 16; leave out do_not_specialize, because a mask ends at {name}, and accesses "
            f"become narrow where {name} is not known to be a multiple of 16"
        )
    return f'write @triton.jit(do_not_specialize=["{name}"]), or pad {name} to multiples of 16'


def _is_constexpr(values: dict[str, int | str]) -> bool:
    return any(kind.startswith("the constexpr") for kind in values)


def _in_words(name: str, values: dict[str, int | str]) -> str:
    """What differs, with the values at which it was seen first."""
    shown = list(values.items())[:_SHOWN]
    if _is_constexpr(values):
        return f"{name}, a constexpr, has {len(values)} values ({', '.join(str(value) for _, value in shown)})"
    return f"{name} differs ({', '.join(f'{value}: {kind}' for kind, value in shown)})"


def _names(history: History) -> list[str]:
    """Arguments whose values the script chooses: no autotuner's, and no tile's, whose lengths are powers of two."""
    names = dict.fromkeys(name for one in history.compilations.values() for name in one.specialisation)
    return [name for name in names if name not in history.tuned_names and not _is_tile(history, name)]


def _is_tile(history: History, name: str) -> bool:
    kinds = [one.specialisation.get(name, "") for one in history.compilations.values()]
    values = [one.values.get(name) for one in history.compilations.values()]
    constexpr = all(kind.startswith("the constexpr") for kind in kinds)
    return constexpr and all(value is None or (value > 0 and value & (value - 1) == 0) for value in values)


def _values(history: History, name: str) -> dict[str, int | str]:
    """What the compiler assumed of an argument -> the value that first made it do so."""
    found: dict[str, int | str] = {}
    for one in history.compilations.values():
        kind = one.specialisation.get(name)
        if kind is not None:
            found.setdefault(kind, one.values.get(name, "a tensor"))
    return found


RULE = Rule("recompiled-often", "Compiled again for other arguments", check, needs="history")
