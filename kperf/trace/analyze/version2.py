"""Timelines of version 2: what version 3 says besides follows from the numbers that they keep."""

import re
from typing import Any

Json = dict[str, Any]


def upgrade(old: Json) -> Json:
    """The record of version 3 with what version 2 knew. Raises LookupError, TypeError, ValueError or AttributeError."""
    new = {name: value for name, value in old.items() if name not in ("tensor_core_busy", "verdict", "slack")}
    new = _in_words_of_now(new)
    busy, bound = old["tensor_core_busy"], old["bound"]
    computes = "none"
    if bound or any(region["kind"] in ("tensor", "issue") for region in old["regions"]):
        computes = "fma" if bound and bound["dtype"] == "fp32" else "tensor core"
    use = None
    if busy:
        use = {"sm": None, "cta_main_loop": busy["at_issue_rate"], "in_flight_cta": busy["in_flight"]}
    awaited = "; ".join(region["name"] for region in old["regions"] if region["name"].startswith("wait "))
    return new | {
        "regions": [region | _mixed(region, awaited) for region in old["regions"]],
        "windows": [window | {"bars": [_bar(bar, awaited) for bar in window["bars"]]} for window in old["windows"]],
        "schema_version": 3,
        "unit_of_compute": computes,
        "mma_use": use if computes == "tensor core" else None,
        "fma_use": use if computes == "fma" else None,
        "what_if": [row | {"assumed_low": row["low"], "assumed_high": row["high"]} for row in old.get("slack", [])],
    }


def _in_words_of_now(old: Json) -> Json:
    """With what the orders of instructions of its passes differ in, in the words of version 3."""

    def renewed(record: Json) -> Json:
        order = record["sass_order"]
        words = [
            line.replace(" in the plain kernel", " in the original kernel").replace(
                " in the traced one", " in the instrumented one"
            )
            for line in order["differences"]
        ]
        return record | {"sass_order": order | {"differences": words}}

    new = old | {"passes": [renewed(record) for record in old["passes"]]}
    for name, within in (("apart", "passes"), ("joined", "one_pass")):
        if part := new.get(name):
            passes = [renewed(record) for record in part[within]] if within == "passes" else renewed(part[within])
            new[name] = part | {within: passes}
    return new


def _bar(bar: Json, awaited: str) -> Json:
    if bar["track"] != "warps":
        return bar
    mixed = _mixed(bar, awaited)
    kinds = dict.fromkeys(part["kind"] for part in mixed.get("parts", ()))
    return bar | {"kind": mixed.get("kind", bar["kind"]), "parts": list(kinds) if len(kinds) > 1 else []}


def _mixed(region: Json, awaited: str) -> Json:
    """The parts of a gap that issues loads and an MMA. The MMA waits for loads into registers that stand before it.

    That is all that the names of version 2 tell of what stands in a gap; they are those of its rules. `awaited`: the
    names of the regions that wait, as one does for what is not loaded into registers.
    """
    names = region["name"].split(" + ")
    loads = [name for name in names if name.startswith("load ")]
    if region["kind"] not in ("issue", "tensor") or not loads or len(loads) == len(names):
        return {}
    parts = [{"name": name, "kind": _kind(name)} for name in names]
    buffers = [name.removeprefix("load ") for name in names[: len(loads)] if name in loads]
    if len(buffers) < len(loads) or any(re.search(rf"\b{re.escape(buffer)}\b", awaited) for buffer in buffers):
        return {"parts": parts}
    used = {"name": f"use {'+'.join(buffers)}", "kind": "wait"}
    return {"kind": "wait", "parts": [*parts[: len(loads)], used, *parts[len(loads) :]]}


def _kind(name: str) -> str:
    """Of one operation's name, by the rules of version 2."""
    for begins, kind in (("load ", "load"), ("store ", "store"), ("atomic ", "store")):
        if name.startswith(begins):
            return kind
    return "issue" if name.endswith(" issue") else "tensor" if " @ " in name else "arithmetic"


def unit_cycles(old: Json) -> float | None:
    """Cycles of an SM that the MMAs of the main loops take at their peak rate; None if events were lost.

    What is peeled off a loop, one iteration of each tile at most, was not counted.
    """
    bound = old["bound"]
    return float(old["units"] * bound["cycles"]) if bound and not old["records"]["lost"] else None
